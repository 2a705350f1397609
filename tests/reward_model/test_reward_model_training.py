"""Fitting the reward model: what it learns, from which pairs, and how a killed run goes on."""

from __future__ import annotations

import html
import json
import math
import os
import random
from dataclasses import replace
from functools import partial

import pytest
import torch
from forked import forked
from safetensors.torch import load_file
from toys import GLASSBOX, saved_gpt, seeded, split_by_question, weights, write_pairs

from data.records import SPLITS
from data.sources import world_source
from gpt.model import GPT, GPTConfig
from harness.errors import UserError
from harness.files import read_jsonl, read_object
from harness.metric_log import MetricLog
from harness.training_state import saved_step
from reward_model import reward_model_training, world_pairs
from reward_model.accuracy_report import normalise_and_test, score_pairs
from reward_model.pairs import TokenPair, collate_pairs
from reward_model.reward_model_training import RewardModelConfig, main, train
from reward_model.scalar_head import RewardModel, save_reward_model

V, EOS = 20, 0
CONFIG = RewardModelConfig(batch_size=16, lr=5e-3, warmup_steps=2)


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


TRAIN, HELD_OUT = synthetic_pairs(320, 0), synthetic_pairs(100, 1)


def accuracy(model: RewardModel, pairs: list[TokenPair]) -> float:
    chosen, rejected, _ = score_pairs(model, pairs, EOS)
    return float((chosen > rejected).double().mean())


@pytest.mark.parametrize("pooling", ["mean_score", "last_token"])
def test_training_separates_pairs_it_never_saw(pooling):
    model = fresh_model(pooling)
    rows = train(model, TRAIN, CONFIG, MetricLog(60), eos_id=EOS)
    assert accuracy(model, HELD_OUT) > 0.95
    assert [row["step"] for row in rows] == list(range(1, 61))
    last = rows[-1]
    assert last["loss"] < 0.2 and last["accuracy"] > 0.9 and last["margin"] > 1


def test_the_seed_orders_the_prompts():
    """At learning rate 0 a step's loss tells which pairs it reads."""
    first, again, other = (
        [row["loss"] for row in train(fresh_model(), TRAIN, config, MetricLog(3), eos_id=EOS)]
        for config in (replace(CONFIG, lr=0.0, seed=seed) for seed in (1, 1, 2))
    )
    assert first == again and not set(first) & set(other)


def test_an_epoch_is_a_pass_over_the_prompts(tmp_path, monkeypatch):
    """Three pairs of each: two passes over the training prompts, four at a time."""
    monkeypatch.setattr(reward_model_training, "plot_report", lambda *_: None)
    saved_gpt(tmp_path / "base", 1)
    rows = [
        {"prompt": f"Question {n}?\n", "chosen": f"Answer {n}.", "rejected": f"No {k}."}
        for n in range(30) for k in range(3)
    ]  # fmt: skip
    (tmp_path / "mine.json").write_text(json.dumps(rows))
    prompts = sum(split_by_question(row["prompt"]) == "train" for row in rows) // 3
    config = RewardModelConfig(
        data=str(tmp_path / "mine.json"), model=tmp_path / "base", epochs=2, batch_size=4, ranks=1,
        device="cpu", out=tmp_path / "out",
    )  # fmt: skip
    out = main(config)
    assert len(read_jsonl(out / "metrics.jsonl")) == -(-2 * prompts // 4) > 8
    counts = {
        name: sum(split_by_question(row["prompt"]) == name for row in rows) for name in SPLITS
    }
    report = read_object(out / "report.json")  # all that is not trained on is held out
    assert report["test_pairs"] == counts["test"] > 0 < counts["validation"]
    assert report["pairs"] == counts["test"] + counts["validation"]
    assert "trivial rule" in report["said"] and "padded" in report["said"]
    assert report["said"] in html.unescape((out / "report.html").read_text(encoding="utf-8"))


def test_the_seed_draws_the_head(tmp_path, monkeypatch):
    """The trunk is the base's; two runs of one seed have one head."""
    monkeypatch.setattr(reward_model_training, "plot_report", lambda *_: None)
    base, heads = saved_gpt(tmp_path / "base", 1), []
    write_pairs(tmp_path / "mine.json")
    for number, seed in enumerate((0, 0, 1)):
        config = RewardModelConfig(
            data=str(tmp_path / "mine.json"), model=tmp_path / "base", lr=0.0, steps=1, seed=seed,
            ranks=1, device="cpu", out=tmp_path / str(number),
        )  # fmt: skip
        found = load_file(main(config) / "model.safetensors")
        assert torch.equal(found["gpt.wte.weight"], base.wte.weight)
        heads.append(found["head.weight"])
    assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])


def test_answers_labels_and_splits_of_a_world_draw_from_streams_of_their_own(monkeypatch):
    """And the held-out pairs are of two answers each, at temperature 1, whatever the others are."""
    seen = []

    def spy(policy, tokenizer, prompts, count, annotator, how, *, generator, rng):
        seen.append((count, how.responses_per_prompt, how.wide_temperature))
        drawn.append((rng.random(), torch.rand((), generator=generator).item()))
        return iter(())

    monkeypatch.setattr(world_pairs, "sample_pairs", spy)
    streams = []
    for seed in (0, 0, 1):
        drawn: list[tuple[float, float]] = []
        config = RewardModelConfig(pairs=60, held_out_pairs=8, seed=seed, wide_temperature=1.3)
        world_pairs.sampled_pairs(fresh_model().gpt, GLASSBOX, config)
        streams.append([number for numbers in drawn for number in numbers])
    assert seen == [(60, 8, 1.3), (8, 2, 1.0)] * 3
    assert streams[0] == streams[1] and len({*streams[0], *streams[2]}) == 8


def test_the_scale_of_the_scores_is_that_of_the_training_answers():
    """Mean 0 and deviation 1 there; held-out answers, none of which needs to be like them, set nothing."""
    scales = []
    for held_out in (HELD_OUT, TRAIN[:7]):
        model = fresh_model(vocab_size=GLASSBOX.n_vocab)
        normalise_and_test(model, TRAIN, held_out, GLASSBOX, 64)
        scores = torch.cat(score_pairs(model, TRAIN, GLASSBOX.eos_id)[:2])
        assert float(scores.mean()) == pytest.approx(0, abs=1e-5)
        assert float(scores.std()) == pytest.approx(1, abs=1e-5)
        scales.append(float(model.std))
    assert scales[0] == scales[1]


def softplus(x: float) -> float:
    return math.log(1 + math.exp(x))


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


@pytest.mark.parametrize("weighting", ["pair", "prompt"])
def test_micro_batches_do_not_change_the_update(weighting):
    """Prompts with one pair, with two and with six; their answers fit in a forward, or do not."""
    pairs = [TokenPair([6 + k], [7 + i, EOS], [5, i + 1, EOS]) for k in range(6) for i in range(k)]
    config, ends = RewardModelConfig(batch_size=4, lr=1e-2, pair_weighting=weighting), []
    for size in (None, 1, 5):
        model = fresh_model().double()
        rows = train(model, pairs, replace(config, micro_batch_size=size), MetricLog(2), eos_id=EOS)
        kept = ("loss", "accuracy", "margin", "grad_norm")
        ends.append((weights(model), [[float(row[name]) for name in kept] for row in rows]))
    for end, rows in ends[1:]:
        torch.testing.assert_close(end, ends[0][0], rtol=0, atol=1e-8)
        torch.testing.assert_close(torch.tensor(rows), torch.tensor(ends[0][1]))


def test_scores_in_training_are_those_in_use():
    """Dropout of the base model plays no part."""
    plain, dropped = fresh_model(), fresh_model(dropout=0.5).train()
    one, other = (train(m, TRAIN, CONFIG, MetricLog(2), eos_id=EOS) for m in (plain, dropped))
    assert [row["loss"] for row in one] == [row["loss"] for row in other]
    assert torch.equal(weights(plain), weights(dropped))


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
    saved_gpt(tmp_path / "base", 1, context=96)
    config = RewardModelConfig(
        model=str(tmp_path / "base"), pairs=60, responses_per_prompt=4, held_out_pairs=8, batch_size=2,
        save_every=2, max_response_tokens=8, device="cpu", ranks=1,
    )  # fmt: skip
    whole = main(replace(config, out=tmp_path / "whole"))
    expected = load_file(whole / "model.safetensors")
    assert len(read_jsonl(whole / "metrics.jsonl")) >= 5
    for name, split in (("pairs.jsonl", "train"), ("held_out_pairs.jsonl", "validation")):
        of_split = {record.prompt for record in world_source("reviews").prompts(split)}
        assert {row["prompt"] for row in read_jsonl(whole / name)} <= of_split
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
        data=str(tmp_path / "mine.json"), model=str(tmp_path / "judge"), pooling="mean_score", lr=0.0,
        ranks=1, device="cpu", out=tmp_path / "mine",
    )  # fmt: skip
    after, before = (load_file(main(config) / "model.safetensors"), judge.state_dict())
    for name in before.keys() - {"mean", "std"}:
        assert torch.equal(after[name], before[name]), name
    assert len(read_jsonl(tmp_path / "mine" / "metrics.jsonl")) == 50
    for wrong in (dict(data="reviews"), dict(pooling="last_token")):
        with pytest.raises(UserError):
            main(replace(config, **wrong))
