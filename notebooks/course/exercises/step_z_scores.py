"""Step rewards as z-scores: one mean and one deviation for all steps of all responses to a prompt."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from rl.equations.advantages import process_advantages

EPS = 1e-4


def step_z_scores(step_rewards, step_mask, group_size):
    scores = torch.zeros_like(step_rewards)
    for first in range(0, len(step_rewards), group_size):
        rows = slice(first, first + group_size)
        pool = step_rewards[rows][step_mask[rows]]
        scores[rows] = (step_rewards[rows] - pool.mean()) / (pool.std() + 1e-4)
    return scores * step_mask


def by_the_library(step_rewards, step_mask, group_size):
    """Steps of one token each: the advantage of a token less that of the next is its z-score."""
    N, K = step_rewards.shape
    ends = torch.arange(K).expand(N, K)
    everything = torch.ones(N, K, dtype=torch.bool)
    A = process_advantages(step_rewards, ends, step_mask, everything, group_size)
    return A - torch.cat([A[:, 1:], torch.zeros(N, 1)], 1)


@mistake
def within_each_response(step_rewards, step_mask, group_size):
    """you compare a response with itself. Then a response that is wrong in every step looks like
    one that is right in every step: pool the steps of the whole group."""
    return step_z_scores(step_rewards, step_mask, 1)


@mistake
def over_all_prompts(step_rewards, step_mask, group_size):
    """your pool holds the steps of all prompts. A hard prompt would look bad: pool the steps of one
    prompt's group."""
    return step_z_scores(step_rewards, step_mask, len(step_rewards))


@mistake
def padding_counted(step_rewards, step_mask, group_size):
    """padding counts in your mean and deviation: take the rewards where step_mask is True."""
    every = torch.ones_like(step_mask)
    return step_z_scores(step_rewards, every, group_size) * step_mask


@mistake
def mean_alone(step_rewards, step_mask, group_size):
    """you subtract the mean but do not divide by the standard deviation."""
    scores = torch.zeros_like(step_rewards)
    for first in range(0, len(step_rewards), group_size):
        rows = slice(first, first + group_size)
        scores[rows] = step_rewards[rows] - step_rewards[rows][step_mask[rows]].mean()
    return scores * step_mask


def ragged(generator: torch.Generator) -> Arguments:
    counts = torch.randint(2, 5, (4, 1), generator=generator)
    return {
        "step_rewards": torch.randn(4, 4, generator=generator) + 1,
        "step_mask": torch.arange(4) < counts,
        "group_size": 2,
    }


EXERCISE = Exercise(
    statement=(
        "For each prompt take all its step rewards, those of its group_size neighbouring rows of "
        "step_rewards (N, K) where step_mask is True, and compute (r - mean) / (std + 1e-4); 0 where "
        "step_mask is False: (N, K)."
    ),
    solution=step_z_scores,
    library=by_the_library,
    cases=(
        Case(
            "one prompt, steps worth 2, 1 and 0, 1: mean 1, deviation 0.8165",
            {
                "step_rewards": torch.tensor([[2.0, 1.0], [0.0, 1.0]]),
                "step_mask": torch.ones(2, 2, dtype=torch.bool),
                "group_size": 2,
            },
            [[1.224595, 0.0], [-1.224595, 0.0]],
        ),
    ),
    random=ragged,
    mask="step_mask",
)
