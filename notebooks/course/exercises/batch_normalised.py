"""REINFORCE++-baseline's advantages: minus the group's mean, over the batch's deviation."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from rl.equations import advantages as library


def batch_normalised(rewards, group_size):
    groups = rewards.view(-1, group_size)
    centred = (groups - groups.mean(1, keepdim=True)).view(-1, 1)  # the prompt's mean
    return centred / (centred.std() + 1e-6)  # the batch's deviation


def by_library(rewards, group_size):
    centred = library.group_advantages(rewards, group_size, scale="none")
    return library.whiten(centred, torch.ones_like(centred, dtype=torch.bool))


@mistake
def groups_deviation(rewards, group_size):
    """you divide by the deviation of each group: that is GRPO. Here it is the batch's."""
    return library.group_advantages(rewards, group_size)


@mistake
def batch_mean(rewards, group_size):
    """you subtract the mean of the batch. Then an easy prompt's answers all look good: subtract the
    mean of their own group."""
    return ((rewards - rewards.mean()) / (rewards.std() + 1e-6)).view(-1, 1)


@mistake
def not_divided(rewards, group_size):
    """you do not divide by a deviation (Dr. GRPO)."""
    return library.group_advantages(rewards, group_size, scale="none")


@mistake
def deviation_of_rewards(rewards, group_size):
    """your deviation is that of the rewards as they came. Take it after the group's mean has been
    subtracted."""
    return not_divided(rewards, group_size) / (rewards.std() + 1e-6)


@mistake
def biased_deviation(rewards, group_size):
    """your deviation divides by n. The library divides by n - 1, as tensor.std() does."""
    centred = not_divided(rewards, group_size)
    return centred / (centred.std(correction=0) + 1e-6)


def ragged(generator: torch.Generator) -> Arguments:
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
)
