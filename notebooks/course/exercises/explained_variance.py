"""The critic's mark: which share of the returns' variance its values explain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course.exercises import Case, Exercise, Mistake, ragged_mask
from rl.training import metrics


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    error = (returns - values)[mask]
    return 1 - error.var() / returns[mask].var()


def by_library(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    return torch.tensor(metrics.explained_variance(values, returns, mask)["explained_variance"])


def share_of_error(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    return (returns - values)[mask].var() / returns[mask].var()


def variance_of_values(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    return values[mask].var() / returns[mask].var()


def squared_error(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    return 1 - (returns - values)[mask].square().mean() / returns[mask].var(correction=0)


def padding_counted(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    return 1 - (returns - values).var() / returns.var()


def upside_down(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    return 1 - returns[mask].var() / (returns - values)[mask].var()


def by_values(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    return 1 - (returns - values)[mask].var() / values[mask].var()


def ragged(generator: torch.Generator) -> Mapping[str, Any]:
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
    mistakes=(
        Mistake(
            "share_of_error",
            "this is the share that is *not* explained: take it from 1.",
            share_of_error,
        ),
        Mistake(
            "variance_of_values",
            "you compare how much values and returns vary. A critic may vary as much as the returns "
            "and be wrong each time: use the variance of the error.",
            variance_of_values,
        ),
        Mistake(
            "squared_error",
            "you use the squared error, which also counts a constant offset. The variance of the "
            "error does not.",
            squared_error,
        ),
        Mistake("padding_counted", "the padding takes part: use the mask.", padding_counted),
        Mistake(
            "upside_down",
            "your fraction is upside down: the error's variance is above.",
            upside_down,
        ),
        Mistake(
            "by_values", "divide by the variance of the returns, not of the values.", by_values
        ),
    ),
)
