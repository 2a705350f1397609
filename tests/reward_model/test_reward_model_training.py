"""Fitting the reward model: what it learns, from which pairs, and how a killed run goes on."""

from __future__ import annotations

import itertools
import math
import os
import random
from dataclasses import replace
from functools import partial

import pytest
import torch
from forked import forked
from safetensors.torch import load_file
from toys import flat_gradient, seeded, write_pairs

from gpt.checkpoint import save_gpt
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import load_tokenizer
from harness.errors import UserError
from harness.files import read_jsonl
from harness.metric_log import MetricLog
from harness.training_state import saved_step
from reward_model import reward_model_training
from reward_model.accuracy_report import score_pairs
from reward_model.pairs import TokenPair, collate_pairs
from reward_model.reward_model_training import RewardModelConfig, main, train
from reward_model.scalar_head import RewardModel, save_reward_model

V, EOS = 20, 0
GLASSBOX = load_tokenizer("glassbox")
CONFIG = RewardModelConfig(batch_size=16, lr=5e-3, warmup=2)


def fresh_model(pooling="mean_score", vocab_size: int = V, dropout: float = 0.0) -> RewardModel:
    shape = GPTConfig(vocab_size, context=64, n_layer=2, n_head=2, n_embd=16, dropout=dropout)
    policy = GPT(shape).initialize(seeded(0))
    return RewardModel.from_policy(policy, pooling, seeded(1))


def synthetic_pairs(count: int, seed: int) -> list[TokenPair]:
    """The better response holds the token 5 somewhere, the worse one never; all prompts differ."""
    rng = random.Random(seed)
    pairs = []
    for i in range(count):
        prompt = [6 + i % 14, 6 + i // 14 % 14, 6 + i // 196]
        chosen, rejected = (
            [rng.randrange(6, V) for _ in range(rng.randint(1, 6))] for _ in range(2)
        )
        chosen[rng.randrange(len(chosen))] = 5
        pairs.append(TokenPair(prompt, [*chosen, EOS], [*rejected, EOS]))
    return pairs


def swapped(pairs: list[TokenPair]) -> list[TokenPair]:
    return [TokenPair(pair.prompt, pair.rejected, pair.chosen) for pair in pairs]


TRAIN, HELD_OUT = synthetic_pairs(320, 0), synthetic_pairs(100, 1)


def accuracy(model: RewardModel, pairs: list[TokenPair]) -> float:
    chosen, rejected, _ = score_pairs(model, pairs, EOS)
    return float((chosen > rejected).double().mean())


def comparisons(prompts: int, responses: int) -> list[TokenPair]:
    """Every two of `responses` answers to each prompt."""
    rng = random.Random(0)
    pairs = []
    for i in range(prompts):
        answers = [[6 + j, *(rng.randrange(V) for _ in range(j))] for j in range(responses)]
        pairs += [TokenPair([7, 8 + i], a, b) for a, b in itertools.combinations(answers, 2)]
    return pairs


@pytest.mark.parametrize("weighting", ["pair", "prompt"])
def test_micro_batches_change_no_gradient(monkeypatch, weighting):
    """In float64, with prompts of 3 and of 2 answers: forwards of all, of several and of one prompt."""
    pairs = [*comparisons(4, 3), *swapped(synthetic_pairs(3, 2))]
    gradients, logs, rows = [], [], []
    real = RewardModel.raw_scores
    monkeypatch.setattr(
        RewardModel, "raw_scores", lambda self, b: rows.append(len(b)) or real(self, b)
    )
    for size in (None, 7, 2):
        model = fresh_model().double()
        config = replace(
            CONFIG, batch_size=7, micro_batch_size=size, pair_weighting=weighting, max_norm=1e9, lr=0.0,
        )  # fmt: skip
        [row] = train(model, pairs, config, MetricLog(1), eos_id=EOS)
        gradients.append(flat_gradient(model))
        logs.append([row[name] for name in ("loss", "accuracy", "margin", "grad_norm")])
    assert rows[0] == 18 and len(rows) == 1 + 3 + 7
    assert max(rows[1:4]) <= 7 and sorted(rows[4:]) == [2, 2, 2, 3, 3, 3, 3]
    for gradient, log in zip(gradients[1:], logs[1:], strict=True):
        torch.testing.assert_close(gradient, gradients[0], rtol=0, atol=1e-6)
        assert log == pytest.approx([float(x) for x in logs[0]], abs=1e-9)
    assert float(gradients[0].norm()) > 1e-2


@pytest.mark.parametrize("pooling", ["mean_score", "last_token"])
def test_training_separates_pairs_it_never_saw(pooling):
    model = fresh_model(pooling)
    rows = train(model, TRAIN, CONFIG, MetricLog(60), eos_id=EOS)
    assert accuracy(model, HELD_OUT) > 0.95
    assert [row["step"] for row in rows] == list(range(1, 61))
    last = rows[-1]
    assert last["loss"] < 0.2 and last["accuracy"] > 0.9 and last["margin"] > 1


@pytest.fixture
def batches(monkeypatch) -> list[list[TokenPair]]:
    """The pairs of each step of train."""
    seen: list[list[TokenPair]] = []
    collate = reward_model_training.collate_comparisons

    def spy(pairs, eos_id):
        seen.append(list(pairs))
        return collate(pairs, eos_id)

    monkeypatch.setattr(reward_model_training, "collate_comparisons", spy)
    return seen


def test_all_pairs_of_a_prompt_are_one_element_of_a_batch(batches):
    """Three prompts with 3, 1 and 6 pairs; two prompts a step."""
    pairs = [
        TokenPair([6 + prompt], [7 + i, EOS], [5, 5, EOS])
        for prompt, count in enumerate((3, 1, 6))
        for i in range(count)
    ]
    config = RewardModelConfig(batch_size=2, lr=1e-3, warmup=1)
    rows = train(fresh_model(), pairs, config, MetricLog(3), eos_id=EOS)
    counts = {6: 3, 7: 1, 8: 6}
    for batch in batches:
        prompts = {pair.prompt[0] for pair in batch}
        assert len(batch) == sum(counts[prompt] for prompt in prompts) and len(prompts) == 2
    assert all(row["pairs_per_second"] > 0 for row in rows)


def zero_headed() -> RewardModel:
    """Every score is 0, so the loss of a pair is -log sigmoid(-margin)."""
    model = fresh_model()
    model.head.weight.data.zero_()
    return model


def softplus(x: float) -> float:
    return math.log(1 + math.exp(x))


def test_equal_scores_cost_log_2():
    pairs = [TokenPair([6], [7, EOS], [5, EOS]), TokenPair([7], [7, EOS], [5, EOS])]
    (row,) = train(zero_headed(), pairs, RewardModelConfig(batch_size=2), MetricLog(1), eos_id=EOS)
    assert row["loss"] == pytest.approx(softplus(0.0), abs=1e-6)


def test_each_pair_counts_the_same_or_each_prompt():
    """Three pairs of one prompt and one of another."""
    pairs = [TokenPair([6 + (i == 3)], [7 + i, EOS], [5, EOS]) for i in range(4)]
    with torch.no_grad():
        chosen, rejected = fresh_model().raw_scores(collate_pairs(pairs, EOS)).chunk(2)
    losses = [softplus(gap) for gap in (rejected - chosen).tolist()]
    expected = {"pair": sum(losses) / 4, "prompt": (sum(losses[:3]) / 3 + losses[3]) / 2}
    assert abs(expected["pair"] - expected["prompt"]) > 1e-3
    for weighting, loss in expected.items():
        config = RewardModelConfig(batch_size=2, pair_weighting=weighting)
        (row,) = train(fresh_model(), pairs, config, MetricLog(1), eos_id=EOS)
        assert row["loss"] == pytest.approx(loss, abs=1e-5), weighting


def killed(config: RewardModelConfig, last: int) -> None:
    """The script, until the row of this step is written."""
    write = MetricLog.write

    def killing(self: MetricLog, *, step: int, **metrics: float) -> None:
        write(self, step=step, **metrics)
        if self.title == "reward model" and step == last:
            os.kill(os.getpid(), 9)

    MetricLog.write = killing  # type: ignore[method-assign]
    main(config)


def untimed_rows(folder) -> list[dict]:
    return [row | {"pairs_per_second": 0} for row in read_jsonl(folder / "metrics.jsonl")]


def test_a_killed_run_resumes_into_the_same_model(tmp_path):
    """Also before its first checkpoint: the pairs, which take the longest, are kept from the start."""
    shape = GPTConfig(GLASSBOX.n_vocab, 96, n_layer=1, n_head=2, n_embd=16)
    save_gpt(tmp_path / "base" / "model.safetensors", GPT(shape).initialize(seeded(1)), GLASSBOX)
    config = RewardModelConfig(
        base=tmp_path / "base", pairs=60, responses_per_prompt=4, held_out_pairs=8, batch_size=2,
        checkpoint_every=2, max_response_tokens=8, device="cpu", ranks=1,
    )  # fmt: skip
    whole = main(replace(config, out=tmp_path / "whole"))
    expected = load_file(whole / "model.safetensors")
    assert len(read_jsonl(whole / "metrics.jsonl")) >= 5
    for step, kept in ((1, 0), (3, 2)):
        out = tmp_path / f"killed after {step}"
        done = forked(partial(killed, replace(config, out=out), step))
        assert done.returncode == -9, done.stderr
        assert saved_step(out) == kept and not (out / "model.safetensors").exists()
        main(replace(config, out=out, resume=True))
        found = load_file(out / "model.safetensors")
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        assert untimed_rows(out) == untimed_rows(whole)
        for name in ("pairs.jsonl", "held_out_pairs.jsonl", "report.json"):
            assert (out / name).read_bytes() == (whole / name).read_bytes(), name
        assert {path.name for path in out.iterdir()} == {path.name for path in whole.iterdir()}


def test_a_reward_model_goes_on_from_another_one(tmp_path, capsys):
    """At learning rate 0 it is the one that it started from, head and all; few pairs get 50 steps."""
    shape = GPTConfig(GLASSBOX.n_vocab, context=64, n_layer=1, n_head=2, n_embd=16)
    judge = RewardModel.from_policy(GPT(shape).initialize(seeded(0)), "mean_score", seeded(1))
    save_reward_model(tmp_path / "judge" / "model.safetensors", judge, GLASSBOX)
    write_pairs(tmp_path / "mine.json")
    config = RewardModelConfig(
        data=str(tmp_path / "mine.json"), base=tmp_path / "judge", pooling="mean_score", lr=0.0,
        ranks=1, device="cpu", out=tmp_path / "mine",
    )  # fmt: skip
    after, before = (load_file(main(config) / "model.safetensors"), judge.state_dict())
    for name in before.keys() - {"mean", "std"}:
        assert torch.equal(after[name], before[name]), name
    assert len(read_jsonl(tmp_path / "mine" / "metrics.jsonl")) == 50
    for wrong in (dict(data="reviews"), dict(pooling="last_token")):
        with pytest.raises(UserError):
            main(replace(config, **wrong))
