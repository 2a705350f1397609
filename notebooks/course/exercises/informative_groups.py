"""The share of groups that teach something: neither all right nor all wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course.exercises import Case, Exercise, Mistake
from rl.rewards.verifiable import solve_rates


def informative_groups(correct: Tensor, group_size: int) -> Tensor:
    groups = correct.view(-1, group_size)
    return (groups.any(1) & ~groups.all(1)).float().mean()


def by_the_library(correct: Tensor, group_size: int) -> Tensor:
    rates = solve_rates(correct, group_size)
    return torch.tensor(rates["solve_rate"] - rates["solve_rate_all"])


def interleaved(correct: Tensor, group_size: int) -> Tensor:
    groups = correct.view(group_size, -1)
    return (groups.any(0) & ~groups.all(0)).float().mean()


def batch(generator: torch.Generator) -> Mapping[str, Any]:
    chance = torch.rand(7, 1, generator=generator)
    correct = torch.rand(7, 4, generator=generator) < chance**2
    return {"correct": correct.view(-1), "group_size": 4}


EXERCISE = Exercise(
    statement=(
        "From correct (N,) bool, the responses to a prompt next to each other in groups of "
        "group_size, compute the share of groups with at least one right and at least one wrong "
        "response: one number."
    ),
    solution=informative_groups,
    library=by_the_library,
    cases=(
        Case(
            "four prompts: one right of two, both right, none right, one right",
            {
                "correct": torch.tensor([True, False, True, True, False, False, False, True]),
                "group_size": 2,
            },
            0.5,
        ),
    ),
    random=batch,
    mistakes=(
        Mistake(
            "solve_rate",
            "this is the solve rate, at least one right. A group that is all right teaches nothing "
            "either: its advantages are all 0.",
            lambda correct, size: correct.view(-1, size).any(1).float().mean(),
        ),
        Mistake(
            "silent_groups",
            "this is the share of *silent* groups: take one minus it.",
            lambda correct, size: 1 - informative_groups(correct, size),
        ),
        Mistake(
            "success_rate",
            "this is the success rate, the share of right responses. Look at each group as a whole.",
            lambda correct, size: correct.float().mean(),
        ),
        Mistake(
            "interleaved",
            "you take every (N / G)-th response for a group. Responses to one prompt are neighbours: "
            "correct.view(-1, group_size).",
            interleaved,
        ),
    ),
)
