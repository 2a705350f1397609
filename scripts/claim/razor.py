"""RL's Razor: at equal accuracy reinforcement moves the policy less than fine-tuning does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from claim.rules import Claim, Control, Results, Rule, Run, Weakest, shifted, where

SHARE_OF_GAIN = 0.8  # of the smaller gain: where the two are compared
LEAST_GAIN = 0.1  # a smaller one is noise: the seed has no effect


def points(run: Run, key: str) -> list[float]:
    """One number of every measured point."""
    return [point[key] for point in run["points"]]


def level(*runs: Run) -> float | None:
    """The accuracy at which runs from one start are compared; None where one gains too little."""
    curves = [points(run, "accuracy") for run in runs]
    begin, gain = curves[0][0], min(max(curve) - curve[0] for curve in curves)
    return begin + SHARE_OF_GAIN * gain if gain >= LEAST_GAIN else None


def log_ratio(key: str, tuned: str = "sft-oracle") -> Any:
    """log(KL of the fine-tuned / KL of GRPO's policy) where both reach the level."""

    def effect(runs: Mapping[str, Run]) -> float | None:
        at = level(runs[tuned], runs["grpo"])
        if at is None:
            return None
        moved = [
            where(points(runs[a], "accuracy"), points(runs[a], key), at) for a in (tuned, "grpo")
        ]
        return math.log(moved[0] / moved[1]) if all(moved) else None  # type: ignore[operator]

    return effect


def swap(results: Results) -> Results:
    """GRPO in the place of fine-tuning: the run of another seed."""
    return {**results, "sft-oracle": shifted(results["grpo"])}


def draw(axis: Any, results: Results) -> None:
    """KL against accuracy, a line for each run."""
    for arm, color in (("grpo", "tab:blue"), ("sft-oracle", "tab:red"), ("sft-own", "tab:orange")):
        for seed, run in results[arm].items():
            label = arm if seed == min(results[arm]) else None
            axis.plot(
                points(run, "accuracy"),
                points(run, "kl_back"),
                ".-",
                color=color,
                label=label,
                lw=1,
            )
    axis.set(xlabel="accuracy", ylabel="KL(start || policy), nats an answer")
    axis.legend(fontsize=8)


CLAIM = Claim(
    name="razor",
    title="At equal accuracy RL moves less than fine-tuning",
    source="2509.04259",
    says="Of all policies that solve the new task, on-policy RL finds one near to where it began in "
    "KL(start || policy), and fine-tuning on given answers ends anywhere: so RL forgets less.",
    counts="Where both reach four fifths of the smaller gain in accuracy, fine-tuning on an oracle's "
    "worked answers has moved further than GRPO by more than a tenth, in both directions of the KL.",
    arms=("grpo", "sft-oracle", "sft-own"),
    rule=Weakest(
        (
            Rule("log ratio of KL(start || policy)", 0.1, log_ratio("kl_back")),
            Rule("log ratio of KL(policy || start)", 0.1, log_ratio("kl")),
        )
    ),
    control=Control("GRPO against GRPO with another seed", swap),
    draw=draw,
    also={
        "log ratio of KL(start || policy), fine-tuned on its own right answers": log_ratio(
            "kl_back", "sft-own"
        ),
        "log ratio of KL(policy || start), fine-tuned on its own right answers": log_ratio(
            "kl", "sft-own"
        ),
    },
)
