"""GRPO's advantage of each response: its distance from the mean of its group, in deviations."""

import torch

from course.exercises import Arguments, Case, Exercise
from course.mistakes import mistake
from rl.equations import advantages as library

EPS = 1e-4


def group_advantages(rewards, group_size):
    groups = rewards.view(-1, group_size)  # (prompts, G): neighbours answer the same prompt
    mean = groups.mean(1, keepdim=True)
    std = groups.std(1, keepdim=True)
    return ((groups - mean) / (std + 1e-4)).view(-1, 1)  # (N, 1)


@mistake
def over_all_prompts(rewards, group_size):
    """your mean and std run over all responses. GRPO compares a response only with those to the
    same prompt: give the rewards the shape (prompts, G) first."""
    return ((rewards - rewards.mean()) / (rewards.std() + EPS)).view(-1, 1)


@mistake
def without_deviation(rewards, group_size):
    """you subtract the group's mean but do not divide by its standard deviation. (That is Dr.
    GRPO's choice; GRPO divides.)"""
    groups = rewards.view(-1, group_size)
    return (groups - groups.mean(1, keepdim=True)).view(-1, 1)


@mistake
def leave_one_out(rewards, group_size):
    """your baseline is the mean of the other responses: that is RLOO's. GRPO's mean contains the
    response itself."""
    groups = rewards.view(-1, group_size)
    others = (groups.sum(1, keepdim=True) - groups) / (group_size - 1)
    return ((groups - others) / (groups.std(1, keepdim=True) + EPS)).view(-1, 1)


@mistake
def biased_deviation(rewards, group_size):
    """your standard deviation divides by n. The library divides by n - 1, as tensor.std() does
    unless you tell it otherwise."""
    groups = rewards.view(-1, group_size)
    std = groups.std(1, keepdim=True, correction=0)
    return ((groups - groups.mean(1, keepdim=True)) / (std + EPS)).view(-1, 1)


@mistake
def by_the_variance(rewards, group_size):
    """you divide by the variance. The standard deviation is its square root."""
    groups = rewards.view(-1, group_size)
    return ((groups - groups.mean(1, keepdim=True)) / (groups.var(1, keepdim=True) + EPS)).view(
        -1, 1
    )


@mistake
def wrong_way_round(rewards, group_size):
    """your sign is flipped: a response that is better than its group must have a positive
    advantage."""
    return -group_advantages(rewards, group_size)


@mistake
def interleaved(rewards, group_size):
    """you take every (N / G)-th response for a group. Responses to one prompt are neighbours:
    rewards.view(-1, group_size), one row per prompt."""
    groups = rewards.view(group_size, -1)
    centred = groups - groups.mean(0, keepdim=True)
    return (centred / (groups.std(0, keepdim=True) + EPS)).view(-1, 1)


@mistake
def no_eps(rewards, group_size):
    """your standard deviation may be 0, when all rewards of a group are equal: 0 / 0 is NaN. Add
    1e-4 to it."""
    groups = rewards.view(-1, group_size)
    centred = groups - groups.mean(1, keepdim=True)
    return (centred / groups.std(1, keepdim=True)).view(-1, 1)


def ragged(generator: torch.Generator) -> Arguments:
    group_size = int(torch.randint(2, 7, (1,), generator=generator))
    prompts = int(torch.randint(2, 5, (1,), generator=generator))
    scale = torch.randint(1, 4, (prompts, 1), generator=generator)
    rewards = torch.randn(prompts, group_size, generator=generator) * scale + 2 * scale
    return {"rewards": rewards.view(-1), "group_size": group_size}


EXERCISE = Exercise(
    statement=(
        "From the rewards (N,) of N responses, G = group_size neighbours to each prompt, compute "
        "(reward - mean of its group) / (std of its group + 1e-4), of shape (N, 1)."
    ),
    solution=group_advantages,
    library=library.group_advantages,
    cases=(
        Case(
            "one group of four, rewards 1, 2, 3, 4",
            {"rewards": torch.tensor([1.0, 2, 3, 4]), "group_size": 4},
            [[-1.161805], [-0.387268], [0.387268], [1.161805]],
        ),
        Case(
            "a group in which all rewards are 2, beside 1, 2, 3, 4",
            {"rewards": torch.tensor([1.0, 2, 3, 4, 2, 2, 2, 2]), "group_size": 4},
            [[-1.161805], [-0.387268], [0.387268], [1.161805], [0.0], [0.0], [0.0], [0.0]],
        ),
        Case(
            "a group of two, rewards 0 and 1000",
            {"rewards": torch.tensor([0.0, 1000.0]), "group_size": 2},
            [[-0.707107], [0.707107]],
        ),
    ),
    random=ragged,
)
