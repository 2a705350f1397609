"""RLOO's advantage: a reward minus the mean of the other rewards to the same prompt."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake, shared
from rl.equations import advantages as library


def leave_one_out(rewards, group_size):
    groups = rewards.view(-1, group_size)
    others = (groups.sum(1, keepdim=True) - groups) / (group_size - 1)
    return (groups - others).view(-1, 1)


@mistake
def itself_included(rewards, group_size):
    """your baseline contains row i itself: that is the mean of the whole group, GRPO's. RLOO leaves
    it out."""
    groups = rewards.view(-1, group_size)
    return (groups - groups.mean(1, keepdim=True)).view(-1, 1)


@mistake
def deviation_divided(rewards, group_size):
    """this is GRPO's advantage, with the group's mean and its deviation. RLOO divides by
    nothing."""
    return library.group_advantages(rewards, group_size)


def ragged(generator: torch.Generator) -> Arguments:
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
    mistakes=shared("advantages", "factor_twice divided_by_all other_prompts_too no_baseline"),
)
