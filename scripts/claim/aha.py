"""Where "aha" comes from: what RL gains, against the share of worked steps in pre-training."""

from __future__ import annotations

from claim.figures import curves
from claim.rules import Claim, Control, Effect, Rule, instead, last, points


def gain(arm: str) -> Effect:
    """In accuracy, from the start to the end."""
    return lambda runs: last(arm)(runs) - points(runs[arm], "accuracy")[0]


CLAIM = Claim(
    title="RL's gain comes from worked steps seen in pre-training",
    arms=("grpo", "grpo-twin", "grpo-share-3", "grpo-share-0"),
    rule=Rule(
        "accuracy gained", 0.05, lambda runs: gain("grpo")(runs) - gain("grpo-share-0")(runs)
    ),
    control=Control("the same start twice, with another seed", instead(grpo_share_0="grpo-twin")),
    draw=curves(
        {"grpo": "30% worked steps", "grpo-share-3": "3%", "grpo-share-0": "none"},
        xlabel="step of GRPO (32 answers each)",
    ),
    also={
        "accuracy gained with worked steps in 30%": gain("grpo"),
        "accuracy gained with 3%": gain("grpo-share-3"),
        "accuracy gained with none": gain("grpo-share-0"),
        "share of answers with steps at the end, from 3%": last("grpo-share-3", "steps"),
        "share of answers with steps at the end, from none": last("grpo-share-0", "steps"),
    },
)
