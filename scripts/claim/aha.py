"""Where "aha" comes from: what RL gains, against the share of worked steps in pre-training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from claim.figures import curves
from claim.rules import Claim, Control, Effect, Results, Rule, Run, instead, last, points


def gain(run: Run) -> float:
    """In accuracy, from the start to the end."""
    accuracy = points(run, "accuracy")
    return accuracy[-1] - accuracy[0]


def more_gained(arm: str, than: str) -> Effect:

    def effect(runs: Mapping[str, Run]) -> float:
        return gain(runs[arm]) - gain(runs[than])

    return effect


def draw(axis: Any, results: Results) -> None:
    shown = {"grpo": "30% worked steps", "grpo-share-3": "3%", "grpo-share-0": "none"}
    curves(axis, results, shown)
    axis.set(xlabel="step of GRPO (32 answers each)", ylabel="accuracy")


CLAIM = Claim(
    name="aha",
    title="RL's gain comes from worked steps seen in pre-training",
    source="2503.01307",
    says="Whether a model improves itself under RL is decided before: models that show the habits of "
    "worked solutions, right or wrong, gain; those without plateau, until the habits are put into what "
    "they are pre-trained on.",
    counts="The same GRPO gains at least 0.05 more accuracy from a start that has seen worked steps in 30% "
    "of its documents than from one that has seen none.",
    arms=("grpo", "grpo-twin", "grpo-share-3", "grpo-share-0"),
    rule=Rule("accuracy gained", 0.05, more_gained("grpo", "grpo-share-0")),
    control=Control("the same start twice, with another seed", instead(grpo_share_0="grpo-twin")),
    draw=draw,
    also={
        "accuracy gained with worked steps in 30%": lambda runs: gain(runs["grpo"]),
        "accuracy gained with 3%": lambda runs: gain(runs["grpo-share-3"]),
        "accuracy gained with none": lambda runs: gain(runs["grpo-share-0"]),
        "share of answers with steps at the end, from 3%": last("grpo-share-3", "steps"),
        "share of answers with steps at the end, from none": last("grpo-share-0", "steps"),
    },
)
