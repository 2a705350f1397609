"""On-policy distillation needs a tenth of RL's samples: both climb to the same accuracy."""

from __future__ import annotations

from collections.abc import Mapping

from claim.figures import curves
from claim.rules import Claim, Control, Rule, Run, end, instead, points, where

SHARE_OF_GAIN = 0.8  # of what RL gains: where both are compared
LEAST_GAIN = 0.1  # a smaller one is noise: the seed has no effect
LEAST = 7.0  # times fewer: "7 to 10"


def times_fewer(runs: Mapping[str, Run]) -> float | None:
    """RL's answers to the level over the student's; as many answers make a step of both."""
    begin, reached = points(runs["grpo"], "accuracy")[0], end(runs["grpo"])
    if reached - begin < LEAST_GAIN:
        return None
    at = begin + SHARE_OF_GAIN * (reached - begin)
    rl, student = (
        where(points(runs[arm], "accuracy"), points(runs[arm], "step"), at)
        for arm in ("grpo", "distilled")
    )
    student = student or points(runs["distilled"], "step")[-1]  # at least as many
    return rl / student if rl else None


CLAIM = Claim(
    title="On-policy distillation needs a tenth of RL's samples",
    arms=("grpo", "distilled", "grpo-twin"),
    rule=Rule("times fewer answers", LEAST, times_fewer),
    control=Control(
        "GRPO with other samples instead of the student", instead(distilled="grpo-twin")
    ),
    draw=curves(
        {"grpo": "GRPO", "distilled": "distilled from GRPO's policy"},
        xlabel="answers sampled",
        scale=32,
    ),
)
