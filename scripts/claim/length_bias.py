"""The length bias is Dr. GRPO's to cure: without a division by its length a wrong answer does not grow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from claim.arms_more import gap
from claim.figures import curves
from claim.rules import Claim, Control, Effect, Results, Rule, Run, instead, where

LEAST = 1.0  # token
SHARE_OF_GAIN = 0.5  # of the smaller gain in accuracy: where the lengths are compared


def at_equal_accuracy(key: str) -> Effect:
    """GRPO's average less Dr. GRPO's where both have made half of the smaller gain."""

    def effect(runs: Mapping[str, Run]) -> float | None:
        both = [runs[arm] for arm in ("grpo", "grpo-constant")]
        curves = [[point["accuracy"] for point in run["points"]] for run in both]
        at = curves[0][0] + SHARE_OF_GAIN * (min(map(max, curves)) - curves[0][0])
        found = [
            where(curve, [point[key] for point in run["points"]], at)
            for curve, run in zip(curves, both, strict=True)
        ]
        return None if None in found else found[0] - found[1]  # type: ignore[operator]

    return effect


def draw(axis: Any, results: Results) -> None:
    """The length of wrong answers against accuracy."""
    shown = {"grpo": "GRPO's average", "grpo-constant": "Dr. GRPO's average"}
    curves(axis, results, shown, key="length_wrong", against="accuracy")
    axis.set(xlabel="accuracy", ylabel="mean length of wrong answers (tokens)")


CLAIM = Claim(
    name="length_bias",
    title="The length bias is Dr. GRPO's to cure",
    source="2503.20783",
    says="Dividing each answer's loss by its length makes a long wrong answer cheap, so wrong answers "
    "grow; divided by a constant, they stay short at the same accuracy.",
    counts="Where both have made half of the smaller gain in accuracy, wrong answers are at least one "
    "token longer with GRPO's average than with Dr. GRPO's, everything else equal. (At the end all "
    "answers are long, because long ones are right more often.)",
    arms=("grpo", "grpo-constant", "grpo-twin"),
    rule=Rule(
        "tokens, wrong answers, GRPO's average less Dr. GRPO's",
        LEAST,
        at_equal_accuracy("length_wrong"),
    ),
    control=Control("GRPO's average twice, with other samples", instead(grpo_constant="grpo-twin")),
    draw=draw,
    also={
        "tokens, right answers at the same accuracy": at_equal_accuracy("length_right"),
        "share of answers with steps at the same accuracy": at_equal_accuracy("steps"),
        "tokens, wrong answers at the end": gap("grpo", "grpo-constant", "length_wrong"),
        "accuracy at the end": gap("grpo", "grpo-constant"),
    },
)
