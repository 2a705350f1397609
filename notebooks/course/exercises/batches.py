"""Ragged random batches. What stands in their padding is garbage, so that it is noticed if it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

Arguments = dict[str, Any]  # of one call, by name, in order


def number(generator: Generator, low: int, high: int) -> int:
    """A whole number from low to high - 1."""
    return int(torch.randint(low, high, (1,), generator=generator))


def ragged_mask(generator: Generator, rows: int, columns: int) -> Tensor:
    """A mask (rows, columns): lengths from 2 on, the first row's is 2, the second one is full."""
    counts = torch.randint(2, columns + 1, (rows,), generator=generator)
    counts[0], counts[1] = 2, columns
    return torch.arange(columns) < counts[:, None]


def rollout(generator: Generator) -> Arguments:
    """What a function may take of four responses with up to six tokens."""

    def normal(scale: float = 1.0) -> Tensor:
        return scale * torch.randn(4, 6, generator=generator)

    old = -5 * torch.rand(4, 6, generator=generator) - 0.01
    values = normal()
    log_probs = old + normal(0.9)
    return {
        "log_probs": log_probs,
        "old_log_probs": old,
        "ref_log_probs": log_probs + normal(0.7),
        "advantages": torch.randn(4, 1, generator=generator),
        "scores": torch.randn(4, generator=generator),
        "x": normal(2.0) + 3,
        "values": values,
        "old_values": values + normal(0.4),
        "returns": values + normal(0.5),
        "mask": ragged_mask(generator, 4, 6),
    }


def some(names: str, **others: Any) -> Callable[[Generator], Arguments]:
    """Random batches of these arguments of a rollout, in this order, then the others as they are.

    "loss=x" gives an argument another name.
    """

    def batch(generator: Generator) -> Arguments:
        whole = rollout(generator)
        pairs = [name.partition("=") for name in names.split()]
        return {name: whole[source or name] for name, _, source in pairs} | others

    return batch


def groups(generator: Generator) -> Arguments:
    """Rewards of three groups, each with a level and a spread of its own."""
    group_size = number(generator, 2, 6)
    level = 3 * torch.randn(3, 1, generator=generator)
    spread = torch.rand(3, 1, generator=generator) + 0.2
    rewards = level + spread * torch.randn(3, group_size, generator=generator)
    return {"rewards": rewards.flatten(), "group_size": group_size}
