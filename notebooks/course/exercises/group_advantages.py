"""GRPO's advantage of each response: its distance from the mean of its group, in deviations."""

from conformance.kinds import KINDS
from course.exercises import Exercise, mistake, shared
from rl.equations import advantages as library


def group_advantages(rewards, group_size):
    groups = rewards.view(-1, group_size)  # (prompts, G): neighbours answer the same prompt
    mean = groups.mean(1, keepdim=True)
    std = groups.std(1, keepdim=True)
    return ((groups - mean) / (std + 1e-4)).view(-1, 1)  # (N, 1)


@mistake
def without_deviation(rewards, group_size):
    """you subtract the group's mean but do not divide by its standard deviation. (That is Dr.
    GRPO's choice; GRPO divides.)"""
    groups = rewards.view(-1, group_size)
    return (groups - groups.mean(1, keepdim=True)).view(-1, 1)


@mistake
def biased_deviation(rewards, group_size):
    """your standard deviation divides by n. The library divides by n - 1, as tensor.std() does
    unless you tell it otherwise."""
    groups = rewards.view(-1, group_size)
    std = groups.std(1, keepdim=True, correction=0)
    return ((groups - groups.mean(1, keepdim=True)) / (std + 1e-4)).view(-1, 1)


EXERCISE = Exercise(
    statement=(
        "From the rewards (N,) of N responses, G = group_size neighbours to each prompt, compute "
        "(reward - mean of its group) / (std of its group + 1e-4), of shape (N, 1)."
    ),
    solution=group_advantages,
    library=library.group_advantages,
    cases=[KINDS["advantages"].cases[i] for i in (1, 2, 0)],
    random=KINDS["advantages"].random,
    mistakes=shared(
        "advantages",
        "over_all_prompts deviation_and_leave_one_out by_the_variance wrong_way_round interleaved no_eps",
    ),
)
