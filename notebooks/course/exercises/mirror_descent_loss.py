"""Policy mirror descent: the log-ratio of a response is regressed on its centred reward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course.exercises import Case, Exercise, Mistake
from rl.equations.advantages import group_advantages


def mirror_descent_loss(log_ratio: Tensor, rewards: Tensor, group_size: int, tau: float) -> Tensor:
    groups = rewards.view(-1, group_size)
    centred = (groups - groups.mean(1, keepdim=True)).view(-1)
    return (centred - tau * log_ratio) ** 2


def by_the_library(log_ratio: Tensor, rewards: Tensor, group_size: int, tau: float) -> Tensor:
    centred = group_advantages(rewards, group_size, scale="none")[:, 0]
    return (centred - tau * log_ratio).square()


def over_the_deviation(log_ratio: Tensor, rewards: Tensor, group_size: int, tau: float) -> Tensor:
    return (group_advantages(rewards, group_size)[:, 0] - tau * log_ratio) ** 2


def batch(generator: torch.Generator) -> Mapping[str, Any]:
    return {
        "log_ratio": torch.randn(8, generator=generator),
        "rewards": torch.randn(8, generator=generator) + 1,
        "group_size": 4,
        "tau": 0.3,
    }


EXERCISE = Exercise(
    statement=(
        "Compute (r - mean of its group - tau log_ratio)^2 per response, (N,), where log_ratio (N,) "
        "is log pi(y) - log pi_old(y) and the group_size responses to a prompt are neighbours."
    ),
    solution=mirror_descent_loss,
    library=by_the_library,
    cases=(
        Case(
            "rewards 1, 0, 0, 1 with log-ratios 1, 0, -1, 0 and tau 0.5",
            {
                "log_ratio": torch.tensor([1.0, 0.0, -1.0, 0.0]),
                "rewards": torch.tensor([1.0, 0.0, 0.0, 1.0]),
                "group_size": 4,
                "tau": 0.5,
            },
            [0.0, 0.25, 0.0, 0.25],
        ),
    ),
    random=batch,
    gradient="log_ratio",
    mistakes=(
        Mistake(
            "reward_not_centred",
            "you leave out the group's mean, which stands for tau log Z. Without it every response "
            "with a positive reward is pushed up, the bad ones too.",
            lambda lr, r, size, tau: (r - tau * lr) ** 2,
        ),
        Mistake(
            "tau_forgotten",
            "tau is missing: it says how far one batch may go.",
            lambda lr, r, size, tau: mirror_descent_loss(lr, r, size, 1.0),
        ),
        Mistake(
            "sign_of_the_log_ratio",
            "you add tau log_ratio. Then a good response would be made *less* likely: subtract it.",
            lambda lr, r, size, tau: mirror_descent_loss(lr, r, size, -tau),
        ),
        Mistake(
            "divided_by_the_deviation",
            "you divide the rewards by their deviation, as GRPO does. Mirror descent subtracts the "
            "mean alone.",
            over_the_deviation,
        ),
        Mistake(
            "mean_of_all_prompts",
            "your mean runs over all prompts. Each prompt has its own Z: take the mean of the group.",
            lambda lr, r, size, tau: (r - r.mean() - tau * lr) ** 2,
        ),
    ),
)
