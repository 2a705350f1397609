"""Policy mirror descent: the log-ratio of a response is regressed on its centred reward."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from rl.equations.advantages import group_advantages


def mirror_descent_loss(log_ratio, rewards, group_size, tau):
    groups = rewards.view(-1, group_size)
    centred = (groups - groups.mean(1, keepdim=True)).view(-1)
    return (centred - tau * log_ratio) ** 2


def by_the_library(log_ratio, rewards, group_size, tau):
    centred = group_advantages(rewards, group_size, scale="none")[:, 0]
    return (centred - tau * log_ratio).square()


@mistake
def reward_not_centred(lr, r, size, tau):
    """you leave out the group's mean, which stands for tau log Z. Without it every response with a
    positive reward is pushed up, the bad ones too."""
    return (r - tau * lr) ** 2


@mistake
def tau_forgotten(lr, r, size, tau):
    """tau is missing: it says how far one batch may go."""
    return mirror_descent_loss(lr, r, size, 1.0)


@mistake
def sign_of_the_log_ratio(lr, r, size, tau):
    """you add tau log_ratio. Then a good response would be made *less* likely: subtract it."""
    return mirror_descent_loss(lr, r, size, -tau)


@mistake
def divided_by_the_deviation(log_ratio, rewards, group_size, tau):
    """you divide the rewards by their deviation, as GRPO does. Mirror descent subtracts the mean
    alone."""
    return (group_advantages(rewards, group_size)[:, 0] - tau * log_ratio) ** 2


@mistake
def mean_of_all_prompts(lr, r, size, tau):
    """your mean runs over all prompts. Each prompt has its own Z: take the mean of the group."""
    return (r - r.mean() - tau * lr) ** 2


def batch(generator: torch.Generator) -> Arguments:
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
)
