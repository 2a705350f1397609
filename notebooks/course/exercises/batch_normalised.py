"""REINFORCE++-baseline's advantages: minus the group's mean, over the batch's deviation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course.exercises import Case, Exercise, Mistake
from rl.equations import advantages as library


def batch_normalised(rewards: Tensor, group_size: int) -> Tensor:
    groups = rewards.view(-1, group_size)
    centred = (groups - groups.mean(1, keepdim=True)).view(-1, 1)  # the prompt's mean
    return centred / (centred.std() + 1e-6)  # the batch's deviation


def by_library(rewards: Tensor, group_size: int) -> Tensor:
    centred = library.group_advantages(rewards, group_size, scale="none")
    return library.whiten(centred, torch.ones_like(centred, dtype=torch.bool))


def groups_deviation(rewards: Tensor, group_size: int) -> Tensor:
    return library.group_advantages(rewards, group_size)


def batch_mean(rewards: Tensor, group_size: int) -> Tensor:
    return ((rewards - rewards.mean()) / (rewards.std() + 1e-6)).view(-1, 1)


def not_divided(rewards: Tensor, group_size: int) -> Tensor:
    return library.group_advantages(rewards, group_size, scale="none")


def deviation_of_rewards(rewards: Tensor, group_size: int) -> Tensor:
    return not_divided(rewards, group_size) / (rewards.std() + 1e-6)


def biased_deviation(rewards: Tensor, group_size: int) -> Tensor:
    centred = not_divided(rewards, group_size)
    return centred / (centred.std(correction=0) + 1e-6)


def ragged(generator: torch.Generator) -> Mapping[str, Any]:
    group_size = int(torch.randint(2, 6, (1,), generator=generator))
    prompts = int(torch.randint(2, 5, (1,), generator=generator))
    level = 3 * torch.randn(prompts, 1, generator=generator)
    spread = torch.rand(prompts, 1, generator=generator) + 0.2
    rewards = level + spread * torch.randn(prompts, group_size, generator=generator)
    return {"rewards": rewards.view(-1), "group_size": group_size}


EXERCISE = Exercise(
    statement=(
        "From rewards (N,) with G = group_size neighbours to each prompt: subtract the group's mean, "
        "then divide by the standard deviation (n - 1) of all N centred numbers; (N, 1)."
    ),
    solution=batch_normalised,
    library=by_library,
    cases=(
        Case(
            "two groups of two: 1, 0 and 1, 1",
            {"rewards": torch.tensor([1.0, 0.0, 1.0, 1.0]), "group_size": 2},
            [[1.224745], [-1.224745], [0.0], [0.0]],
        ),
    ),
    random=ragged,
    mistakes=(
        Mistake(
            "groups_deviation",
            "you divide by the deviation of each group: that is GRPO. Here it is the batch's.",
            groups_deviation,
        ),
        Mistake(
            "batch_mean",
            "you subtract the mean of the batch. Then an easy prompt's answers all look good: "
            "subtract the mean of their own group.",
            batch_mean,
        ),
        Mistake("not_divided", "you do not divide by a deviation (Dr. GRPO).", not_divided),
        Mistake(
            "deviation_of_rewards",
            "your deviation is that of the rewards as they came. Take it after the group's mean has "
            "been subtracted.",
            deviation_of_rewards,
        ),
        Mistake(
            "biased_deviation",
            "your deviation divides by n. The library divides by n - 1, as tensor.std() does.",
            biased_deviation,
        ),
    ),
)
