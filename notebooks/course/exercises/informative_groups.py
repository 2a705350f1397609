"""The share of groups that teach something: neither all right nor all wrong."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from rl.rewards.verifiable import solve_rates


def informative_groups(correct, group_size):
    groups = correct.view(-1, group_size)
    return (groups.any(1) & ~groups.all(1)).float().mean()


def by_the_library(correct, group_size):
    rates = solve_rates(correct, group_size)
    return torch.tensor(rates["solve_rate"] - rates["solve_rate_all"])


@mistake
def solve_rate(correct, size):
    """this is the solve rate, at least one right. A group that is all right teaches nothing either:
    its advantages are all 0."""
    return correct.view(-1, size).any(1).float().mean()


@mistake
def silent_groups(correct, size):
    """this is the share of *silent* groups: take one minus it."""
    return 1 - informative_groups(correct, size)


@mistake
def success_rate(correct, size):
    """this is the success rate, the share of right responses. Look at each group as a whole."""
    return correct.float().mean()


@mistake
def interleaved(correct, group_size):
    """you take every (N / G)-th response for a group. Responses to one prompt are neighbours:
    correct.view(-1, group_size)."""
    groups = correct.view(group_size, -1)
    return (groups.any(0) & ~groups.all(0)).float().mean()


def batch(generator: torch.Generator) -> Arguments:
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
)
