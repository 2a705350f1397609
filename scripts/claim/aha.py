"""Where "aha" comes from: what RL gains, against the share of worked steps in pre-training."""

from __future__ import annotations

from claim.figures import curves
from claim.rules import Claim, Control, Rule, Run, instead, last, points


def gain(run: Run) -> float:
    """In accuracy, from the start to the end."""
    accuracy = points(run, "accuracy")
    return accuracy[-1] - accuracy[0]


CLAIM = Claim(
    title="RL's gain comes from worked steps seen in pre-training",
    arms=("grpo", "grpo-twin", "grpo-share-3", "grpo-share-0"),
    rule=Rule(
        "accuracy gained", 0.05, lambda runs: gain(runs["grpo"]) - gain(runs["grpo-share-0"])
    ),
    control=Control("the same start twice, with another seed", instead(grpo_share_0="grpo-twin")),
    draw=curves(
        {"grpo": "30% worked steps", "grpo-share-3": "3%", "grpo-share-0": "none"},
        xlabel="step of GRPO (32 answers each)",
    ),
    also={
        "accuracy gained with worked steps in 30%": lambda runs: gain(runs["grpo"]),
        "accuracy gained with 3%": lambda runs: gain(runs["grpo-share-3"]),
        "accuracy gained with none": lambda runs: gain(runs["grpo-share-0"]),
        "share of answers with steps at the end, from 3%": last("grpo-share-3", "steps"),
        "share of answers with steps at the end, from none": last("grpo-share-0", "steps"),
    },
)
