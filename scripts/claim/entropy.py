"""Reward is bought with entropy, R = -a exp(H) + b, and KL-Cov or Clip-Cov make it cheaper."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from claim.figures import curves
from claim.rules import (
    Claim,
    Control,
    Effect,
    Rule,
    Run,
    Weakest,
    instead,
    last,
    log_ratio_at_equal_accuracy,
    points,
)


def explained(arm: str, *, straight: bool = False) -> Effect:
    """R^2 of R = -a exp(H) + b over a run's points, 0 where a is not positive; or of R = -a H + b."""

    def effect(runs: Mapping[str, Run]) -> float:
        entropy = np.array(points(runs[arm], "entropy"))
        price = entropy if straight else np.exp(entropy)
        correlation = float(np.corrcoef(price, points(runs[arm], "accuracy"))[0, 1])
        return min(correlation, 0.0) ** 2

    return effect


CLAIM = Claim(
    title="Reward follows R = -a exp(H) + b, and KL-Cov moves it",
    arms=("grpo", "grpo-twin", "kl-cov", "clip-cov"),
    rule=Weakest(
        (
            Rule("R^2 of the law", 0.8, explained("grpo")),
            Rule(
                "log ratio of entropy kept by KL-Cov",
                0.05,
                log_ratio_at_equal_accuracy("entropy", "kl-cov"),
            ),
        )
    ),
    control=Control("GRPO with another seed instead of KL-Cov", instead(kl_cov="grpo-twin")),
    draw=curves(
        {"grpo": "GRPO", "kl-cov": "KL-Cov", "clip-cov": "Clip-Cov"},
        against="entropy",
        xlabel="entropy, nats a token",
    ),
    also={
        "R^2 of the law, GRPO": explained("grpo"),
        "R^2 of the law with KL-Cov": explained("kl-cov"),
        "R^2 of a straight line in H, GRPO": explained("grpo", straight=True),
        "log ratio of entropy kept by Clip-Cov": log_ratio_at_equal_accuracy("entropy", "clip-cov"),
        "accuracy at the end, GRPO": last("grpo"),
        "accuracy at the end, KL-Cov": last("kl-cov"),
        "accuracy at the end, Clip-Cov": last("clip-cov"),
    },
)
