"""Leave-one-out's baseline: for every response the mean reward of the others of its group."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from rl.equations.advantages import leave_one_out_advantages


def others_mean(rewards, group_size):
    groups = rewards.view(-1, group_size)
    return ((groups.sum(1, keepdim=True) - groups) / (group_size - 1)).flatten()


def from_the_advantages(rewards, group_size):
    """The library returns R_i - b_i."""
    return rewards - leave_one_out_advantages(rewards, group_size)[:, 0]


@mistake
def group_mean(rewards, group_size):
    """your baseline contains row i itself: that is GRPO's group mean. Leave the row's own reward
    out."""
    groups = rewards.view(-1, group_size)
    return groups.mean(1, keepdim=True).expand_as(groups).flatten()


@mistake
def over_the_batch(rewards, group_size):
    """you leave the row out, but take the mean over the whole batch. Only answers to the same
    prompt can be compared: stay within the group."""
    return (rewards.sum() - rewards) / (len(rewards) - 1)


@mistake
def divided_by_all(rewards, group_size):
    """you sum the others and divide by group_size. There are group_size - 1 others."""
    return others_mean(rewards, group_size) * (group_size - 1) / group_size


@mistake
def the_advantage(rewards, group_size):
    """this is the advantage, reward minus baseline. Return the baseline alone."""
    return rewards - others_mean(rewards, group_size)


@mistake
def interleaved(rewards, group_size):
    """you take every n-th row as a group. The rows of a group stand next to each other: view(-1,
    group_size)."""
    groups = rewards.view(group_size, -1).T
    return ((groups.sum(1, keepdim=True) - groups) / (group_size - 1)).T.flatten()


def some_groups(generator: torch.Generator) -> Arguments:
    group_size = int(torch.randint(2, 6, (1,), generator=generator))
    prompts = int(torch.randint(2, 5, (1,), generator=generator))
    return {
        "rewards": torch.randn(prompts * group_size, generator=generator),
        "group_size": group_size,
    }


EXERCISE = Exercise(
    statement=(
        "Return for each of the N rewards the mean of the *other* rewards of its group, (N,). The "
        "first group_size rows are one group, the next group_size rows the next one."
    ),
    solution=others_mean,
    library=from_the_advantages,
    cases=(
        Case(
            "one group of four",
            {"rewards": torch.tensor([1.0, 2.0, 3.0, 6.0]), "group_size": 4},
            [11 / 3, 10 / 3, 3.0, 2.0],
        ),
        Case(
            "two groups of two: each row's baseline is its neighbour",
            {"rewards": torch.tensor([1.0, 5.0, 0.0, 2.0]), "group_size": 2},
            [5.0, 1.0, 2.0, 0.0],
        ),
    ),
    random=some_groups,
)
