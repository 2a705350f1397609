"""The length bias is Dr. GRPO's to cure: without a division by its length a wrong answer does not grow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from claim.arms_more import gap
from claim.figures import seeds
from claim.rules import Claim, Control, Results, Rule, Run, shifted

LEAST = 1.0  # token


def apart(key: str) -> Any:
    """GRPO's average less Dr. GRPO's, of what is measured at the end."""

    def effect(runs: Mapping[str, Run]) -> float:
        return runs["grpo-mean"][key] - runs["grpo-constant"][key]

    return effect


def swap(results: Results) -> Results:
    """GRPO's average of another seed in the place of Dr. GRPO's."""
    return {**results, "grpo-constant": shifted(results["grpo-mean"])}


def draw(axis: Any, results: Results) -> None:
    """Lengths at the end, a dot a seed."""
    columns = {}
    for kind in ("wrong", "right"):
        for arm, name in (("grpo-mean", "GRPO"), ("grpo-constant", "Dr. GRPO")):
            columns[f"{kind},\n{name}"] = (arm, lambda run, kind=kind: run[f"{kind}_length"])
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
    arms=("grpo-mean", "grpo-constant"),
    rule=Rule(
        "tokens, wrong answers, GRPO's average less Dr. GRPO's", LEAST, apart("wrong_length")
    ),
    control=Control("GRPO's average of another seed", swap),
    draw=draw,
    also={
        "tokens, right answers": apart("right_length"),
        "share of wrong answers with steps": apart("wrong_steps"),
        "accuracy": gap("grpo-mean", "grpo-constant"),
    },
)
