"""DPO end to end on a GPT of two layers: where it goes, its metrics, its losses and its files."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engines import HELD_OUT, PAIRS, SHARE_OF_A, engine_named, small_gpt
from slow import log_prob
from toys import GLASSBOX, LETTERS, PROMPTS, saved_gpt
from watched import Validations

from data import sources
from gpt.generate import SamplingParams
from gpt.model import GPT
from harness.errors import UserError
from harness.files import append_jsonl, read_jsonl
from harness.run_folder import as_begun
from reward_model.pairs import TokenPair
from reward_model.scalar_head import RewardModel, save_reward_model
from rl.batches.preferences import (
    PREFERENCE_LOSSES,
    Compared,
    PairStream,
    pair_log_probs,
    pair_metrics,
)
from rl.dpo_engine import DPOConfig, main, of_whole_batch, preference_loss
from rl.run.evaluation import evaluate

DPO = engine_named("dpo")
CONFIG = DPO.config


def run(policy: GPT, pairs=PAIRS, **changes):
    """Train and return the metrics rows; keyword arguments change CONFIG."""
    return DPO.run(policy, pairs=pairs, **changes)


EOS = LETTERS.eos_id


# Where it goes


def samples(policy: GPT) -> float:
    """Share of a in sampled responses."""
    params = SamplingParams(max_new_tokens=8)
    return float(evaluate(policy, LETTERS, PROMPTS * 16, params, SHARE_OF_A).reward.mean())


@pytest.mark.parametrize("loss", ["dpo", "ipo", "kto", "orpo"])
@pytest.mark.parametrize("swapped", [False, True])
def test_it_learns_what_was_preferred_and_the_opposite_from_swapped_pairs(loss, swapped):
    turned = [TokenPair(p.prompt, p.rejected, p.chosen) for p in PAIRS]
    pairs, policy = turned if swapped else PAIRS, small_gpt()
    before = samples(policy)
    rows = run(policy, pairs, loss=loss, held_out=HELD_OUT)
    assert rows[-1]["accuracy"] == 1 and rows[-1]["margin"] > 0.2
    assert swapped or rows[-1]["held_out_accuracy"] == 1
    assert (rows[-1]["held_out_margin"] > 0) == (not swapped)
    assert samples(policy) < 0.85 * before if swapped else samples(policy) > 1.5 * before


def test_before_the_first_step_nothing_is_ordered_right_or_wrong():
    """The policy is the reference, and every pair a tie."""
    (row,) = run(small_gpt(), steps=1, batch_size=6)
    assert (row["accuracy"], row["margin"]) == (0.5, 0.0)


def test_the_metrics_of_a_step_are_those_of_the_policy_before_it():
    """Step 2 by hand: the policy after step 1 against the start, on the pairs of step 2."""
    start, seen = small_gpt(), Validations()
    rows = run(copy.deepcopy(start), steps=2, batch_size=6, eval_every=1, validate=seen)
    now, ref = (
        torch.tensor(
            [[log_prob(m, p.prompt, y).item() for y in (p.chosen, p.rejected)] for p in PAIRS]
        )
        for m in (seen.policies[0], start)
    )
    rewards = 0.1 * (now - ref)
    expected = {
        "loss": float(torch.log1p((rewards[:, 1] - rewards[:, 0]).exp()).mean()),
        "accuracy": float((rewards[:, 0] > rewards[:, 1]).float().mean()),
        "margin": float((rewards[:, 0] - rewards[:, 1]).mean()),
        "reward_chosen": float(rewards[:, 0].mean()),
        "reward_rejected": float(rewards[:, 1].mean()),
        "log_prob_chosen": float(now[:, 0].mean()),
        "log_prob_rejected": float(now[:, 1].mean()),
        "drift": float((ref - now).mean()),
    }
    assert {key: rows[1][key] for key in expected} == pytest.approx(expected, abs=1e-5)
    assert abs(expected["margin"]) > 0.01


# Files


def write_pairs(path: Path, prompts: list[str]) -> Path:
    sides = [dict(chosen=f"Gladly. It is {i}.", rejected=f"No {i}!") for i in range(len(prompts))]
    append_jsonl(path, [dict(prompt=p, **two) for p, two in zip(prompts, sides, strict=True)])
    return path


FILE_PROMPTS = [f"What is {i} and {i + 3}?\n" for i in range(60)]


def test_held_out_numbers_are_means_over_the_held_out_pairs():
    """At the start each of the three costs log 2, however many are in a batch or a forward."""
    for size, rows in ((2, 2), (6, 64)):
        options = dict(batch_size=size, micro_batch_size=rows, lr=0.0, steps=1)
        (row,) = run(small_gpt(), held_out=HELD_OUT, **options)
        assert row["held_out_loss"] == pytest.approx(math.log(2), abs=1e-5)
        assert row["held_out_margin"] == pytest.approx(0, abs=1e-5)


@pytest.fixture
def runs(tmp_path, monkeypatch) -> Path:
    """A folder in place of runs/ with a file of pairs and its pre-trained model, no more."""
    monkeypatch.setattr(sources, "RUNS", tmp_path)
    pairs = write_pairs(tmp_path / "pairs.jsonl", FILE_PROMPTS)
    saved_gpt(sources.default_folder("pretraining", str(pairs), "tiny"))
    return tmp_path


def test_the_whole_script_writes_what_every_engine_writes(runs):
    """On the reward model's pairs of the reviews; a file's are below."""
    folder = runs / "rm"
    scorer = RewardModel.from_policy(saved_gpt(runs / "base"))
    save_reward_model(folder / "model.safetensors", scorer, GLASSBOX)
    write_pairs(folder / "pairs.jsonl", ["Review the red kettle for Anna.\n"])
    write_pairs(folder / "held_out_pairs.jsonl", ["Review the blue bag for Leo.\n"])
    models = dict(model=str(runs / "base"), reward_model=(folder,))
    out = run_file(runs, data="reviews", out=runs / "out", **models)
    assert {path.name for path in out.iterdir()} == {
        "config.json", "metrics.jsonl", "samples.jsonl", "test_answers.jsonl", "report.json",
        "report.html", "tokens.jsonl", "model.safetensors",
    }  # fmt: skip
    rows = read_jsonl(out / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3]
    for key in ("held_out_accuracy", "validation/reward"):
        assert [key in row for row in rows] == [False, True, True]
    report = json.loads((out / "report.json").read_text())
    assert report["before"]["kl"] == 0 != report["after"]["kl"]
    assert "reward" in report["before"] and "reward" in report["after"]


def run_file(runs: Path, **changes) -> Path:
    options: dict[str, Any] = dict(
        data=str(runs / "pairs.jsonl"), steps=3, batch_size=4, eval_every=2, eval_prompts=4,
        test_prompts=4, max_new_tokens=20, device="cpu",
    )  # fmt: skip
    return main(DPOConfig(**(options | changes)))


# The table of preference losses


def test_every_row_of_the_table_by_its_formula():
    """Two pairs of different lengths; sums or means, with a reference or without, by plain loops."""
    policy, ref = [(-10.0, -12.0), (-7.0, -4.0)], [(-11.0, -11.5), (-6.0, -5.0)]
    lengths = [(5, 4), (2, 8)]
    both = Compared(*(torch.tensor(numbers) for numbers in (policy, ref, lengths)))

    def softplus(x: float) -> float:
        return math.log(1 + math.exp(x))

    expected: dict[str, float] = dict.fromkeys(PREFERENCE_LOSSES, 0.0)
    for (won, lost), (ref_won, ref_lost), (n, m) in zip(policy, ref, lengths, strict=True):
        h = (won - ref_won) - (lost - ref_lost)
        mean_h = (won - ref_won) / n - (lost - ref_lost) / m
        expected["dpo"] += 0.9 * softplus(-0.2 * h) + 0.1 * softplus(0.2 * h)
        expected["ipo"] += (h - 2.5) ** 2
        expected["ipo_mean"] += (mean_h - 2.5) ** 2
        expected["hinge"] += max(0.0, 1 - 0.2 * h)
        expected["simpo"] += softplus(-(1.5 * (won / n - lost / m) - 0.7))
        odds = [math.exp(x) / (1 - math.exp(x)) for x in (won / n, lost / m)]
        expected["orpo"] += -won / n + 0.2 * math.log(1 + odds[1] / odds[0])
        for r in (won - ref_won - 0.4, 0.4 - lost + ref_lost):
            expected["kto"] += (1 - 1 / (1 + math.exp(-0.2 * r))) / 2
    for name, value in expected.items():
        config = replace(
            CONFIG, loss=name, beta=0.2, simpo_beta=1.5, target_margin=0.7,
            label_smoothing=0.1 if name == "dpo" else 0.0,
        )  # fmt: skip
        more = dict(reference_point=torch.tensor(0.4)) if name == "kto" else {}
        loss = preference_loss(config, both, pairs=3, **more)
        assert float(loss) == pytest.approx(value / 3, rel=1e-5)
        if not PREFERENCE_LOSSES[name].needs_reference:
            alone = both._replace(ref_log_probs=None)
            assert float(preference_loss(config, alone, pairs=3)) == pytest.approx(value / 3)
    assert len({round(value, 4) for value in expected.values()}) == len(expected)


def test_the_reference_point_is_a_mean_over_answers_of_the_next_pair():
    """By hand, row by row; where the policy has lost on average it is 0. An answer is cut to fit."""
    policy, reference = small_gpt(1), small_gpt(2)
    long = TokenPair([0] * 14, PAIRS[0].chosen, PAIRS[0].rejected)  # leaves 2 of 16 positions
    pairs = [*PAIRS, long]
    gains = []
    for pair, other in zip(pairs, [*pairs[1:], pairs[0]], strict=True):
        for answer in (other.chosen, other.rejected):
            answer = answer[: 16 - len(pair.prompt)]
            gap = log_prob(policy, pair.prompt, answer) - log_prob(reference, pair.prompt, answer)
            gains.append(gap.item())
    mean = sum(gains) / len(gains)
    assert len(gains) == 14 and abs(mean) > 0.01
    config = replace(CONFIG, loss="kto", micro_batch_size=4)
    found = of_whole_batch(config, policy, reference, pairs, EOS)["reference_point"]
    again = [pairs[0], *pairs]  # beside itself it is no other prompt
    first, second = (of_whole_batch(config, policy, reference, p, EOS) for p in (pairs, again))
    assert first != second and float(second["reference_point"]) == pytest.approx(
        max((sum(gains) + sum(gains[:2])) / 16, 0), abs=1e-5
    )
    turned = of_whole_batch(config, reference, policy, pairs, EOS)["reference_point"]
    assert policy.wte.weight.requires_grad and not found.requires_grad  # a constant
    assert [float(found), float(turned)] == pytest.approx([max(mean, 0), max(-mean, 0)], abs=1e-5)
    assert of_whole_batch(CONFIG, policy, reference, pairs, EOS) == {}
    with pytest.raises(ValueError):
        replace(config, batch_size=1)


# Answers with a label: half a pair each


HALVES = [
    half
    for p in PAIRS
    for half in (TokenPair(p.prompt, p.chosen, []), TokenPair(p.prompt, [], p.rejected))
]


def test_kto_of_labelled_answers_row_by_row():
    """Loss, gradient and metrics against one forward an answer, with weights, in forwards of any size."""
    policy, reference = small_gpt(1), small_gpt(2)
    some = HALVES[:5]  # three good answers, two bad ones
    weights = dict(desirable_weight=1.5, undesirable_weight=0.5)
    config = replace(CONFIG, loss="kto", beta=0.2, **weights)
    gains, labels, losses = [], [], []
    z = float(of_whole_batch(config, policy, reference, some, EOS)["reference_point"])
    for half in some:
        answer, good = (half.chosen, True) if half.chosen else (half.rejected, False)
        ref = log_prob(reference, half.prompt, answer).item()
        r = log_prob(policy, half.prompt, answer) - ref
        value = 1 / (1 + torch.exp(-0.2 * (r - z)))
        losses.append(1.5 * (1 - value) if good else 0.5 * value)
        gains.append(0.2 * r.item())
        labels.append(good)
    expected = sum(losses) / len(some)
    (slow,) = torch.autograd.grad(expected, policy.wte.weight)
    for rows in (2, 64):
        config = replace(config, micro_batch_size=rows, batch_size=len(some))
        stream = PairStream(some, reference, EOS, config, batch_size=len(some), steps=1, seed=0)
        total, grad, parts = 0.0, torch.zeros_like(slow), []
        for batch, ref, lengths in stream.micro_batches(0):
            assert len(batch.lengths) == len(lengths)  # no row for an answer that is not there
            now = pair_log_probs(policy, batch, lengths, config)
            both = Compared(now, ref, lengths)
            loss = preference_loss(config, both, pairs=len(some), reference_point=torch.tensor(z))
            grad += torch.autograd.grad(loss, policy.wte.weight)[0]
            total += float(loss.detach())
            parts.append(both.detach())
        assert total == pytest.approx(float(expected.detach()), abs=1e-6)
        torch.testing.assert_close(grad, slow, atol=1e-5, rtol=1e-4)
        found = pair_metrics("kto", parts, config)
        good = [r for r, label in zip(gains, labels, strict=True) if label]
        bad = [r for r, label in zip(gains, labels, strict=True) if not label]
        every = [a - b for a in good for b in bad]
        assert found["margin"] == pytest.approx(sum(every) / 6, abs=1e-5)
        assert found["accuracy"] == sum(gap > 0 for gap in every) / 6
        assert found["reward_chosen"] == pytest.approx(sum(good) / 3, abs=1e-5)
        assert found["reward_rejected"] == pytest.approx(sum(bad) / 2, abs=1e-5)
        assert found["drift"] == pytest.approx(-sum(gains) / 5 / 0.2, abs=1e-5)


def test_the_reference_point_of_labelled_answers_is_of_another_prompt():
    """Both halves of a pair stand beside each other, and neither answers the other's prompt."""
    policy, reference = small_gpt(1), small_gpt(2)
    gains = []
    for at, half in enumerate(HALVES):
        others = [*HALVES[at + 1 :], *HALVES[:at]]
        other = next(each for each in others if each.prompt != half.prompt)
        answer = (other.chosen or other.rejected)[: 16 - len(half.prompt)]
        gains.append(
            (
                log_prob(policy, half.prompt, answer) - log_prob(reference, half.prompt, answer)
            ).item()
        )
    config = replace(CONFIG, loss="kto", micro_batch_size=4)
    found = [
        float(of_whole_batch(config, *models, HALVES, EOS)["reference_point"])
        for models in ((policy, reference), (reference, policy))
    ]
    mean = sum(gains) / len(gains)
    assert abs(mean) > 0.01
    assert found == pytest.approx([max(mean, 0), max(-mean, 0)], abs=1e-5)


@pytest.mark.parametrize("swapped", [False, True])
def test_it_learns_from_labels_alone(swapped):
    turned = [TokenPair(h.prompt, h.rejected, h.chosen) for h in HALVES]
    policy = small_gpt()
    before = samples(policy)
    rows = run(policy, turned if swapped else HALVES, loss="kto", held_out=HELD_OUT)
    assert rows[-1]["accuracy"] > 0.9 and rows[-1]["margin"] > 0.1
    assert (rows[-1]["held_out_margin"] > 0) == (not swapped)
    assert samples(policy) < 0.9 * before if swapped else samples(policy) > 1.3 * before


def test_a_file_of_labelled_answers_is_for_kto_alone(runs):
    rows = [
        dict(prompt=p, completion=f"It is {i}.", label=i % 2 == 0)
        for i, p in enumerate(FILE_PROMPTS)
    ]
    path = runs / "labelled.jsonl"
    append_jsonl(path, rows)
    model = str(sources.default_folder("pretraining", str(runs / "pairs.jsonl"), "tiny"))
    for loss in ("dpo", "orpo"):
        with pytest.raises(UserError, match="--loss kto"):
            run_file(runs, data=str(path), model=model, loss=loss, out=runs / loss)
    out = run_file(
        runs, data=str(path), model=model, loss="kto", out=runs / "kto", batch_size=2, steps=9
    )
    rows = read_jsonl(out / "metrics.jsonl")
    assert math.isfinite(rows[-1]["held_out_loss"])
    held = [
        [name in row for name in ("margin", "reward_chosen", "reward_rejected")] for row in rows
    ]
    assert all(margin == (good and bad) for margin, good, bad in held)
    assert (
        len({*map(tuple, held)}) > 1
    )  # a batch with one kind of answers has no number of the other
    with pytest.raises(ValueError):
        DPOConfig(undesirable_weight=2.0)


def test_columns_of_a_run_are_recorded_and_kept_by_its_resumption(runs):
    path = runs / "theirs.jsonl"
    append_jsonl(path, [dict(q=p, good=f"Yes {p}", bad="No!") for p in FILE_PROMPTS])
    model = str(sources.default_folder("pretraining", str(runs / "pairs.jsonl"), "tiny"))
    columns = ("prompt=q", "chosen=good", "rejected=bad")
    options = dict(data=str(path), model=model, out=runs / "out", columns=columns)
    out = run_file(runs, **options)
    assert json.loads((out / "config.json").read_text())["columns"] == [*columns]
    with pytest.raises(UserError, match="columns"):
        run_file(
            runs, **options | dict(columns=("prompt=q", "chosen=bad", "rejected=good"), resume=True)
        )
    with pytest.raises(UserError):
        run_file(runs, **options | dict(columns=(), out=runs / "none"))
    assert as_begun(out, replace(DPOConfig(), columns=())).columns == columns
