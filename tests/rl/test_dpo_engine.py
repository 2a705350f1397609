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
from harness.files import append_jsonl, read_jsonl
from reward_model.pairs import TokenPair
from reward_model.scalar_head import RewardModel, save_reward_model
from rl.batches.preferences import (
    PREFERENCE_LOSSES,
    Compared,
)
from rl.dpo_engine import DPOConfig, main, of_whole_batch, preference_loss, steps_of
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


@pytest.mark.parametrize(("epochs", "pairs", "steps"), [(1, 64, 2), (3, 50, 5), (1, 5, 1)])
def test_an_epoch_is_a_pass_over_the_pairs(epochs, pairs, steps):
    config = replace(CONFIG, epochs=epochs, steps=None, batch_size=32)
    assert steps_of(config, PAIRS[:1] * pairs) == steps
    assert steps_of(replace(config, steps=7), PAIRS) == 7


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
    turned = of_whole_batch(config, reference, policy, pairs, EOS)["reference_point"]
    assert policy.wte.weight.requires_grad and not found.requires_grad  # a constant
    assert [float(found), float(turned)] == pytest.approx([max(mean, 0), max(-mean, 0)], abs=1e-5)
    assert of_whole_batch(CONFIG, policy, reference, pairs, EOS) == {}
    with pytest.raises(ValueError):
        replace(config, batch_size=1)
