"""On-policy distillation needs a tenth of RL's samples: both climb to the same accuracy."""

from __future__ import annotations

from collections.abc import Mapping

from claim.figures import curves
from claim.rules import Claim, Control, Rule, Run, end, instead, where

SHARE_OF_GAIN = 0.8  # of what RL gains: where both are compared
LEAST_GAIN = 0.1  # a smaller one is noise: the seed has no effect
LEAST = 7.0  # times fewer: "7 to 10"


def steps_to(run: Run, at: float) -> float | None:
    """Steps until a run first has an accuracy."""
    points = run["points"]
    return where([p["accuracy"] for p in points], [p["step"] for p in points], at)


def times_fewer(runs: Mapping[str, Run]) -> float | None:
    """RL's answers to the level over the student's; as many answers make a step of both."""
    begin, reached = runs["grpo"]["points"][0]["accuracy"], end(runs["grpo"])
    if reached - begin < LEAST_GAIN:
        return None
    at = begin + SHARE_OF_GAIN * (reached - begin)
    rl, student = (steps_to(runs[arm], at) for arm in ("grpo", "distilled"))
    student = student or runs["distilled"]["points"][-1]["step"]  # at least as many
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
