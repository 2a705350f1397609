"""An ensemble whose most critical member decides."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from rl.equations import ensembles as library


def worst_case(scores):
    return scores.amin(0)


@mistake
def most_generous(scores):
    """that is the highest member: the reward of whoever is fooled most. The lowest one decides."""
    return scores.amax(0)


@mistake
def their_mean(scores):
    """that is the mean of the members. Here the lowest one decides alone."""
    return scores.mean(0)


@mistake
def worst_member_on_average(scores):
    """you choose one member for all responses. The lowest one may be another for each response."""
    return scores[scores.mean(1).argmin()]


def members(generator: torch.Generator) -> Arguments:
    K, N = (int(torch.randint(2, 7, (1,), generator=generator)) for _ in range(2))
    return {"scores": 2 * torch.randn(K, N, generator=generator)}


EXERCISE = Exercise(
    statement=(
        "From the scores (K, N) that K reward models give to the same N responses, compute the lowest "
        "score of each response, of shape (N,)."
    ),
    solution=worst_case,
    library=library.worst_case,
    cases=(
        Case("three members, one response", {"scores": torch.tensor([[1.0], [2.0], [4.0]])}, [1.0]),
        Case(
            "each of two members is the lowest once",
            {"scores": torch.tensor([[2.0, 0.0], [-1.0, 4.0]])},
            [-1.0, 0.0],
        ),
    ),
    random=members,
)
