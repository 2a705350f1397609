"""RLOO's advantage: a reward minus the mean of the other rewards to the same prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course.exercises import Case, Exercise, Mistake
from rl.equations import advantages as library


def leave_one_out(rewards: Tensor, group_size: int) -> Tensor:
    groups = rewards.view(-1, group_size)
    others = (groups.sum(1, keepdim=True) - groups) / (group_size - 1)
    return (groups - others).view(-1, 1)


def itself_included(rewards: Tensor, group_size: int) -> Tensor:
    groups = rewards.view(-1, group_size)
    return (groups - groups.mean(1, keepdim=True)).view(-1, 1)


def factor_twice(rewards: Tensor, group_size: int) -> Tensor:
    return leave_one_out(rewards, group_size) * group_size / (group_size - 1)


def divided_by_all(rewards: Tensor, group_size: int) -> Tensor:
    groups = rewards.view(-1, group_size)
    return (groups - (groups.sum(1, keepdim=True) - groups) / group_size).view(-1, 1)


def other_prompts_too(rewards: Tensor, group_size: int) -> Tensor:
    others = (rewards.sum() - rewards) / (len(rewards) - 1)
    return (rewards - others).view(-1, 1)


def deviation_divided(rewards: Tensor, group_size: int) -> Tensor:
    return library.group_advantages(rewards, group_size)


def wrong_way_round(rewards: Tensor, group_size: int) -> Tensor:
    return -leave_one_out(rewards, group_size)


def ragged(generator: torch.Generator) -> Mapping[str, Any]:
    group_size = int(torch.randint(2, 7, (1,), generator=generator))
    prompts = int(torch.randint(2, 5, (1,), generator=generator))
    level = 3 * torch.randn(prompts, 1, generator=generator)
    rewards = level + torch.randn(prompts, group_size, generator=generator)
    return {"rewards": rewards.view(-1), "group_size": group_size}


EXERCISE = Exercise(
    statement=(
        "From rewards (N,) with G = group_size neighbours to each prompt, compute each reward minus "
        "the mean of the G - 1 others to its prompt, (N, 1)."
    ),
    solution=leave_one_out,
    library=library.leave_one_out_advantages,
    cases=(
        Case(
            "four responses to one prompt, rewards 1, 2, 3, 4",
            {"rewards": torch.tensor([1.0, 2, 3, 4]), "group_size": 4},
            [[-2.0], [-0.666667], [0.666667], [2.0]],
        ),
        Case(
            "two groups of two",
            {"rewards": torch.tensor([1.0, 0.0, 10.0, 12.0]), "group_size": 2},
            [[1.0], [-1.0], [-2.0], [2.0]],
        ),
    ),
    random=ragged,
    mistakes=(
        Mistake(
            "itself_included",
            "your baseline contains row i itself: that is the mean of the whole group, GRPO's. RLOO "
            "leaves it out.",
            itself_included,
        ),
        Mistake(
            "factor_twice",
            "the factor G / (G - 1) is there twice. Either leave the reward out of the mean, or "
            "correct the group's mean by the factor.",
            factor_twice,
        ),
        Mistake(
            "divided_by_all",
            "you left the reward out of the sum, but you still divide by G. There are G - 1 others.",
            divided_by_all,
        ),
        Mistake(
            "other_prompts_too",
            "your others include the responses to other prompts. Take those of the same group.",
            other_prompts_too,
        ),
        Mistake(
            "deviation_divided",
            "this is GRPO's advantage, with the group's mean and its deviation. RLOO divides by "
            "nothing.",
            deviation_divided,
        ),
        Mistake(
            "wrong_way_round",
            "your sign is flipped: better than the others must be positive.",
            wrong_way_round,
        ),
    ),
)
