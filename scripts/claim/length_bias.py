"""The length bias is Dr. GRPO's to cure: without a division by its length a wrong answer does not grow."""

from __future__ import annotations

from typing import Any

from claim.arms_more import end, gap
from claim.figures import seeds
from claim.rules import Claim, Control, Results, Rule

LEAST = 1.0  # token


def swap(results: Results) -> Results:
    """GRPO's average with other samples in the place of Dr. GRPO's."""
    return {**results, "grpo-constant": results["grpo-twin"]}


def draw(axis: Any, results: Results) -> None:
    """Lengths at the end, a dot a seed."""
    columns = {}
    for kind in ("wrong", "right"):
        for arm, name in (("grpo", "GRPO"), ("grpo-constant", "Dr. GRPO")):
            columns[f"{kind},\n{name}"] = (arm, lambda run, kind=kind: end(run, f"length_{kind}"))
    seeds(axis, results, columns)
    axis.set(ylabel="mean length at the end (tokens)")


CLAIM = Claim(
    name="length_bias",
    title="The length bias is Dr. GRPO's to cure",
    source="2503.20783",
    says="Dividing each answer's loss by its length makes a long wrong answer cheap, so wrong answers "
    "grow; divided by a constant, they stay short at the same accuracy.",
    counts="After the same training, wrong answers are at least one token longer with GRPO's average than "
    "with Dr. GRPO's, everything else equal.",
    arms=("grpo", "grpo-constant", "grpo-twin"),
    rule=Rule(
        "tokens, wrong answers, GRPO's average less Dr. GRPO's",
        LEAST,
        gap("grpo", "grpo-constant", "length_wrong"),
    ),
    control=Control("GRPO's average twice, with other samples", swap),
    draw=draw,
    also={
        "tokens, right answers": gap("grpo", "grpo-constant", "length_right"),
        "share of answers with steps": gap("grpo", "grpo-constant", "steps"),
        "accuracy": gap("grpo", "grpo-constant"),
    },
)
