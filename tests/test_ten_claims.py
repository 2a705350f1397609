"""The claims: what their rules say of runs whose answer is known, and that the page is the recording's."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from studies.claims import __main__ as claims
from studies.claims import sigmoid, ten
from studies.claims.rules import FAILED, HELD, UNTOLD, Rule, Weakest, at_equal_accuracy, instead

NOISE = (-0.03, 0.01, 0.02, -0.01, 0.03, -0.02)


def made_up(mean, seeds=6):
    return {"arm": {seed: {"x": mean + NOISE[seed]} for seed in range(seeds)}}


RULE = Rule("x", 0.1, lambda runs: runs["arm"]["x"])


@pytest.mark.parametrize(
    "mean,seeds,word", [(0.2, 6, HELD), (0.0, 6, FAILED), (0.11, 6, UNTOLD), (0.2, 4, UNTOLD)]
)
def test_a_rule_says_all_three(mean, seeds, word):
    """Above the least that counts, below it, within the noise of it, and of too few seeds."""
    assert RULE(made_up(mean, seeds)).word == word


def test_several_rules_hold_together_and_one_that_fails_is_one_of_several():
    """By hand: the second rule asks for 0.05 less, so the first decides; failing, its p is doubled."""
    easier = Rule("y", 0.05, RULE.effect)
    both = Weakest((RULE, easier))
    held, failed = both(made_up(0.2)), both(made_up(0.0))
    assert (held.unit, held.word, held.p) == ("x", HELD, RULE(made_up(0.2)).p)
    assert (failed.unit, failed.word) == ("x", FAILED)
    assert failed.p == pytest.approx(2 * RULE(made_up(0.0)).p)


def test_a_verdict_is_that_of_the_corrected_p():
    verdict = RULE(made_up(0.13))
    assert verdict.word == HELD and replace(verdict, corrected=10 * verdict.p).word == UNTOLD


def test_what_rules_read():
    """By hand: both gain 0.2 or more from 0.1, so they are compared where they first reach 0.26."""
    slow, fast = ([0.1, 0.2, 0.3], [0.0, 1.0, 2.0]), ([0.1, 0.5, 0.2], [0.0, 4.0, 5.0])
    runs = [{"points": {"accuracy": x, "kl": y}} for x, y in (slow, fast)]
    assert at_equal_accuracy("kl", *runs) == pytest.approx([1.6, 1.6])
    flat = {"points": {"accuracy": [0.1] * 3, "kl": [0.0] * 3}}
    assert at_equal_accuracy("kl", flat, runs[0]) is None
    assert instead(a="b-c")({"a": {}, "b-c": {0: {}}}) == {"a": {0: {}}, "b-c": {0: {}}}


def test_a_sigmoid_is_extrapolated_where_there_is_one():
    """Rewards on an exact sigmoid of the grid: the fit to a third of them says where they end."""
    steps = np.arange(1.0, 181)
    top, middle, power = 0.9, sigmoid.MIDDLES[13], sigmoid.EXPONENTS[12]
    rewards = 0.1 + (top - 0.1) / (1 + (middle / steps) ** power)
    run = {"curve": {"reward": list(rewards)}, "points": {"accuracy": [0.1]}}
    assert sigmoid.error(run, sigmoid.sigmoid) == pytest.approx(0, abs=1e-9)
    assert min(sigmoid.error(run, rival) for rival in (sigmoid.power_law, sigmoid.constant)) > 0.02
    (again,) = sigmoid.without_time({"grpo-long": {0: run}})["grpo-long"].values()
    assert sorted(again["curve"]["reward"]) == sorted(rewards)
    assert again["points"]["accuracy"][0] == pytest.approx(rewards.mean())


def test_the_law_of_entropy_explains_what_follows_it():
    """R = 1 - 0.5 exp(H) exactly, and the same backwards, where entropy would not be a price."""
    entropy = [0.5, 0.3, 0.2, 0.1]
    for order, least in ((1, 1.0), (-1, 0.0)):
        accuracy = [1 - 0.5 * math.exp(h) for h in entropy[::order]]
        run = {"points": {"entropy": entropy, "accuracy": accuracy}}
        assert ten.explained("grpo")({"grpo": run}) == pytest.approx(least)


def climbing(end=0.5, *, speed=1.0, shift=0.0, steps=60):
    """A run from 0.1 to `end` in 60 steps at speed 1; wrong answers grow, and are `shift` longer."""
    at = list(range(0, steps + 1, steps // 6))
    reached = [min(speed * step / 60, 1.0) for step in at]
    points = {
        "step": at, "accuracy": [0.1 + (end - 0.1) * part for part in reached], "kl": reached,
        "steps": [0.3] * 7, "length_right": [20.0] * 7,
        "length_wrong": [9 + 10 * part + shift for part in reached],
    }  # fmt: skip
    return {"points": points, "curve": {"entropy": [0.3] * 10}}


def preferring(before, after):
    return climbing() | {"preference_before": before, "preference": after}


MADE_UP = {  # claim -> arms of one seed, by an effect of the claim's own unit
    "two_answers": lambda x: {"grpo-g2": climbing(0.5 + x), "grpo-g16": climbing()},
    "lora": lambda x: {"lora-1": climbing(0.5 + x), "grpo": climbing()},
    "distillation": lambda x: {"distilled": climbing(speed=x, steps=12), "grpo": climbing()},
    "random_rewards": lambda x: {
        "coins-clip": preferring(-3.0, x - 3.0), "coins-free": preferring(-3.0, -9.0)
    },
    "length_bias": lambda x: {"grpo": climbing(shift=x), "grpo-constant": climbing()},
}  # fmt: skip


@pytest.mark.parametrize(
    "name,held,failed",
    [
        ("two_answers", 0.0, -0.2),
        ("lora", 0.0, -0.2),
        ("distillation", 12.0, 3.0),
        ("random_rewards", 0.5, -0.5),
        ("length_bias", 3.0, 0.0),
    ],
)
def test_each_claim_can_hold_fail_and_stay_open(name, held, failed):
    """Runs that are made up: clearly beyond the least that counts, clearly short of it, and around it."""
    claim = claims.CLAIMS[name]
    least = getattr(claim.rule, "least", 0.1)
    for mean, word in ((held, HELD), (failed, FAILED), (least, UNTOLD)):
        seeds = {seed: MADE_UP[name](mean + NOISE[seed] * abs(held - failed)) for seed in range(6)}
        results = {arm: {seed: runs[arm] for seed, runs in seeds.items()} for arm in seeds[0]}
        assert claim.rule(results).word == word, (name, mean)


def test_a_student_that_never_arrives_is_no_better_than_its_steps():
    """By hand: GRPO ends at 0.467, the mean of two; four fifths of that gain are there after 44 steps."""
    (effect,) = (
        claims.CLAIMS["distillation"]
        .rule({"grpo": {0: climbing()}, "distilled": {0: climbing(steps=12)}})
        .values.values()
    )
    assert effect == pytest.approx(44 / 12)


def leaves(value, place=""):
    """What stands in nested objects: a floating-point number or anything else, by its place."""
    if not isinstance(value, dict):
        return {place: value}
    return {
        k: v for key, inner in value.items() for k, v in leaves(inner, f"{place}/{key}").items()
    }


def test_the_page_is_that_of_the_recording(monkeypatch):
    """Verdicts follow from the recorded runs, the page's tables from the verdicts; all ten are there.

    The last bits are the processor's. What is recorded with four digits may stand half-way between two
    such numbers, so these are compared before they are rounded.
    """
    recorded = json.loads((claims.DOCS / "claims.json").read_text("utf-8"))["claims"]
    text = (claims.DOCS / "claims.md").read_text("utf-8")
    for record in recorded.values():
        assert all(record.pop(words) in text for words in ("source", "says", "counts"))
    assert len(recorded) == 10 and claims.with_tables(text, recorded) == text
    assert all(f"<!-- {name} -->" in text for name in ("verdicts", *recorded))
    monkeypatch.setattr(claims, "significant", lambda value: value)
    results = claims.gathered(Path("nowhere"), claims.DOCS)
    found, wanted = leaves(claims.judged(results, claims.CLAIMS)), leaves(recorded)
    assert found.keys() == wanted.keys()
    half_a_digit = 0.5001e-3  # of four
    for place, value in wanted.items():
        if isinstance(value, float):
            near = 1e-9 if "/also/" in place else half_a_digit
            assert found[place] == pytest.approx(value, rel=near), place
        else:
            assert found[place] == value, place
