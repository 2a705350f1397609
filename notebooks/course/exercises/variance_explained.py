"""Whether a critic is worth having: the share of the returns' variance that its values explain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course.exercises import Case, Exercise, Mistake, ragged_mask
from rl.training.metrics import explained_variance


def variance_explained(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    errors = (returns - values)[mask]  # valid tokens of all rows together
    return 1 - errors.var() / returns[mask].var()


def by_the_library(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    return torch.tensor(explained_variance(values, returns, mask)["explained_variance"])


def with_padding(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    return 1 - (returns - values).var() / returns.var()


def squared_error(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    return 1 - (returns - values)[mask].square().mean() / returns[mask].var(correction=0)


def left_over(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    return (returns - values)[mask].var() / returns[mask].var()


def of_the_values(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    return values[mask].var() / returns[mask].var()


def against_the_values(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    return 1 - (returns - values)[mask].var() / values[mask].var()


def ragged(generator: torch.Generator) -> Mapping[str, Any]:
    rows, columns = 5, 6
    returns = torch.randn(rows, columns, generator=generator)
    values = 0.6 * returns + 0.5 * torch.randn(rows, columns, generator=generator) + 0.4
    mask = ragged_mask(generator, rows, columns)
    mask[0, -1] = False
    returns = torch.where(mask, returns, 9.0)  # what stands at padding is never read
    return {"values": values, "returns": returns, "mask": mask}


EXERCISE = Exercise(
    statement=(
        "From values, returns and mask, (N, T) each, compute 1 - Var(returns - values) / Var(returns) "
        "over all valid tokens together, one number."
    ),
    solution=variance_explained,
    library=by_the_library,
    cases=(
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
            "a critic that says 5 everywhere explains nothing",
            {
                "values": torch.full((1, 3), 5.0),
                "returns": torch.tensor([[0.0, 1.0, 2.0]]),
                "mask": torch.ones(1, 3, dtype=torch.bool),
            },
            0.0,
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
            "with_padding",
            "padding counts as well: take both variances over the mask's True positions only.",
            with_padding,
        ),
        Mistake(
            "squared_error",
            "you take the mean of the squared error. A critic that is off by a constant is a perfect "
            "baseline all the same: take the variance of the error.",
            squared_error,
        ),
        Mistake(
            "left_over",
            "that is the share that is left over. What is explained is 1 minus that.",
            left_over,
        ),
        Mistake(
            "of_the_values",
            "you divide the variance of the values. A critic of pure noise has much of that: look at "
            "what is left of the returns, Var(returns - values).",
            of_the_values,
        ),
        Mistake(
            "against_the_values",
            "you divide by the variance of the values. The question is how much of the returns is "
            "explained: divide by Var(returns).",
            against_the_values,
        ),
    ),
)
