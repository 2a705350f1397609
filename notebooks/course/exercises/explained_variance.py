"""The critic's mark: which share of the returns' variance its values explain."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake, ragged_mask
from rl.training import metrics


def explained_variance(values, returns, mask):
    error = (returns - values)[mask]
    return 1 - error.var() / returns[mask].var()


def by_library(values, returns, mask):
    return torch.tensor(metrics.explained_variance(values, returns, mask)["explained_variance"])


@mistake
def share_of_error(values, returns, mask):
    """this is the share that is *not* explained: take it from 1."""
    return (returns - values)[mask].var() / returns[mask].var()


@mistake
def variance_of_values(values, returns, mask):
    """you compare how much values and returns vary. A critic may vary as much as the returns and be
    wrong each time: use the variance of the error."""
    return values[mask].var() / returns[mask].var()


@mistake
def squared_error(values, returns, mask):
    """you use the squared error, which also counts a constant offset. The variance of the error
    does not."""
    return 1 - (returns - values)[mask].square().mean() / returns[mask].var(correction=0)


@mistake
def padding_counted(values, returns, mask):
    """the padding takes part: use the mask."""
    return 1 - (returns - values).var() / returns.var()


@mistake
def upside_down(values, returns, mask):
    """your fraction is upside down: the error's variance is above."""
    return 1 - returns[mask].var() / (returns - values)[mask].var()


@mistake
def by_values(values, returns, mask):
    """divide by the variance of the returns, not of the values."""
    return 1 - (returns - values)[mask].var() / values[mask].var()


def ragged(generator: torch.Generator) -> Arguments:
    mask = ragged_mask(generator, 3, 6)
    mask[0], mask[1] = torch.arange(6) < 3, True  # there is padding for certain
    returns = torch.randn(3, 6, generator=generator)
    noise = torch.randn(3, 6, generator=generator)
    values = 0.6 * returns + 0.4 * noise + 0.5
    returns = torch.where(mask, returns, 9.0)  # what stands at padding is never read
    return {"values": values, "returns": returns, "mask": mask}


EXERCISE = Exercise(
    statement=(
        "From values and returns (N, T) and mask (N, T), compute 1 - Var(returns - values) / "
        "Var(returns) over the True positions, a scalar."
    ),
    solution=explained_variance,
    library=by_library,
    cases=(
        Case(
            "returns 0, 1, 2, 3 and values that are half of them",
            {
                "values": torch.tensor([[0.0, 0.5], [1.0, 1.5]]),
                "returns": torch.tensor([[0.0, 1.0], [2.0, 3.0]]),
                "mask": torch.ones(2, 2, dtype=torch.bool),
            },
            0.75,
        ),
        Case(
            "a critic that says 7 everywhere",
            {
                "values": torch.full((1, 3), 7.0),
                "returns": torch.tensor([[0.0, 1.0, 2.0]]),
                "mask": torch.ones(1, 3, dtype=torch.bool),
            },
            0.0,
        ),
        Case(
            "a critic that is right up to a constant explains all of it",
            {
                "values": torch.tensor([[1.0, 2.0], [3.0, 7.0]]),
                "returns": torch.tensor([[2.0, 3.0], [4.0, 5.0]]),
                "mask": torch.tensor([[True, True], [True, False]]),
            },
            1.0,
        ),
        Case(
            "a critic with the wrong sign is worse than a constant",
            {
                "values": torch.tensor([[0.0, -1.0, -2.0]]),
                "returns": torch.tensor([[0.0, 1.0, 2.0]]),
                "mask": torch.ones(1, 3, dtype=torch.bool),
            },
            -3.0,
        ),
    ),
    random=ragged,
)
