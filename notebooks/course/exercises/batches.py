"""Ragged random batches. What stands in their padding is garbage, so that it is noticed if it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator

from conformance import batches

Arguments = dict[str, Any]  # of one call, by name, in order


def number(generator: Generator, low: int, high: int) -> int:
    """A whole number from low to high - 1."""
    return int(torch.randint(low, high, (1,), generator=generator))


def between(generator: Generator, low: float, high: float) -> float:
    """A number from low to high."""
    return low + (high - low) * float(torch.rand((), generator=generator))


def ragged_mask(generator: Generator, rows: int, columns: int) -> torch.Tensor:
    """A mask (rows, columns): lengths from 2 on, the first row's is 2, the second one is full."""
    counts = torch.randint(2, columns + 1, (rows,), generator=generator)
    counts[0], counts[1] = 2, columns
    return torch.arange(columns) < counts[:, None]


def rollout(generator: Generator) -> Arguments:
    """What a function may take of three to five responses with up to seven tokens.

    "x" is any number of each token, "loss" the same, at times with infinity in its padding.
    """
    rows, columns = number(generator, 3, 6), number(generator, 4, 8)
    drawn = batches.rollout(generator, rows, columns)
    mask = drawn["mask"] = ragged_mask(generator, rows, columns)
    drawn["advantages"] = drawn["advantages_of_rows"]
    drawn["loss"] = drawn["x"].where(mask | (number(generator, 0, 2) == 0), torch.inf)
    return drawn


def some(names: str, **ranges: tuple[float, float]) -> Callable[[Generator], Arguments]:
    """Random batches of these arguments of a rollout, in this order, then numbers from these ranges.

    "loss=x" gives an argument another name.
    """

    def batch(generator: Generator) -> Arguments:
        whole = rollout(generator)
        pairs = [name.partition("=") for name in names.split()]
        drawn = {name: whole[source or name] for name, _, source in pairs}
        return drawn | {name: between(generator, *ends) for name, ends in ranges.items()}

    return batch


def groups(generator: Generator) -> Arguments:
    """Rewards of some groups, each with a level and a spread of its own, at times one without a spread.

    They are eighths, so that some are alike and the mean of equal ones is exactly theirs.
    """
    count, group_size = number(generator, 2, 5), number(generator, 2, 6)
    level = 3 * torch.randn(count, 1, generator=generator)
    spread = torch.rand(count, 1, generator=generator) + 0.2
    spread[0] *= number(generator, 0, 2)
    rewards = level + spread * torch.randn(count, group_size, generator=generator)
    return {"rewards": (8 * rewards).round().flatten() / 8, "group_size": group_size}
