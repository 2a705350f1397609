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
    source="Lu et al. 2025, On-Policy Distillation (Thinking Machines)",
    says="A policy that RL has trained, distilled back into its start on the start's own samples, is "
    "matched in 7 to 10 times fewer steps than RL took, because every token is judged.",
    counts="GRPO's policy of a seed teaches the start that it came from. To four fifths of GRPO's gain in "
    "accuracy GRPO needs at least 7 times as many answers as the student, whose learning rate is the "
    "best of three on another seed.",
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
