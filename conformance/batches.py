"""What a function is tried on: worked numbers of worked_numbers.json, and ragged random batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Arguments = dict[str, Any]


def worked(kind: str) -> list[Arguments]:
    """The arguments of the worked cases of a kind, in order."""
    numbers = json.loads((Path(__file__).parent / "worked_numbers.json").read_text("utf-8"))
    (rows,) = (rows for kinds, rows in numbers.items() if kind in kinds.split())
    beside = ("about", "wanted")  # for readers
    return [{k: tensor(v) for k, v in row.items() if k not in beside} for row in rows]


def tensor(value: Any) -> Any:
    """A list as a tensor, {"log": list} as the logarithms of one, a number as it is."""
    if isinstance(value, dict):
        return torch.tensor(value["log"]).log()
    return torch.tensor(value) if isinstance(value, list) else value


def is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def each(change: Callable[[Tensor], Tensor], arguments: Mapping[str, Any]) -> Arguments:
    """The arguments with every tensor changed."""
    return {k: change(v) if isinstance(v, Tensor) else v for k, v in arguments.items()}


def doubles(arguments: Mapping[str, Any]) -> Arguments:
    return each(lambda v: v.double() if is_float(v) else v, arguments)


# --- ragged random batches ------------------------------------------------------------------------


def number(generator: torch.Generator, low: int, high: int) -> int:
    """A whole number from low to high - 1."""
    return int(torch.randint(low, high, (1,), generator=generator))


def between(generator: torch.Generator, low: float, high: float) -> float:
    """A number from low to high."""
    return low + (high - low) * float(torch.rand((), generator=generator))


def ragged_mask(generator: torch.Generator, rows: int, columns: int) -> Tensor:
    """A mask (rows, columns): lengths from 2 on, the first row's is 2, the second one is full."""
    lengths = torch.randint(2, columns + 1, (rows,), generator=generator)
    lengths[0], lengths[1] = 2, columns
    return torch.arange(columns) < lengths[:, None]


def rollout(generator: torch.Generator) -> Arguments:
    """All that a function may take of three to five responses with up to seven tokens.

    What stands in the padding is garbage, so that it is noticed if it is read; no setting is always the
    same, so that a function that does not look at it is noticed.
    """
    rows, columns = number(generator, 3, 6), number(generator, 4, 8)

    def normal(scale: float = 1.0) -> Tensor:
        return scale * torch.randn(rows, columns, generator=generator)

    mask = ragged_mask(generator, rows, columns)
    old = -5 * torch.rand(rows, columns, generator=generator) - 0.01
    log_probs, values, x = old + normal(0.9), normal(), normal(2.0) + 3
    clip_low = between(generator, 0.1, 0.3)
    return {
        "log_probs": log_probs,
        "old_log_probs": old,
        "ref_log_probs": log_probs + normal(0.7),
        "sampler_log_probs": old + normal(0.6),
        "advantages": normal(),
        "advantages_of_rows": torch.randn(rows, 1, generator=generator),
        "scores": torch.randn(rows, generator=generator),
        "rewards": normal(),
        "values": values,
        "old_values": values + normal(0.4),
        "returns": values + normal(0.5),
        "loss": normal() + 1,
        "loss_or_inf": x.where(mask | (number(generator, 0, 2) == 0), torch.inf),
        "x": x,
        "mask": mask,
        "length": number(generator, columns, 12),
        "clip_low": clip_low,
        "clip_high": clip_low + 0.08 * number(generator, 0, 2),
        "clip": between(generator, 0.1, 0.4),
        "cap": between(generator, 1.5, 2.5),
        "low": between(generator, 0.4, 0.7),
        "gamma": between(generator, 0.7, 0.99),
        "lam": between(generator, 0.6, 0.95),
        "kl_coef": between(generator, 0.05, 0.6),
    }


def some(names: str, **ranges: tuple[float, float]) -> Callable[[torch.Generator], Arguments]:
    """Random batches of these arguments of a rollout, in this order, then numbers from these ranges.

    "loss=x" gives an argument another name.
    """

    def batch(generator: torch.Generator) -> Arguments:
        whole = rollout(generator)
        parts = [name.partition("=") for name in names.split()]
        drawn = {name: whole[source or name] for name, _, source in parts}
        return drawn | {name: between(generator, *ends) for name, ends in ranges.items()}

    return batch


def groups(generator: torch.Generator) -> Arguments:
    """Rewards of three groups, each with a scale of its own."""
    G = number(generator, 3, 6)
    scale = torch.randint(1, 4, (3, 1), generator=generator)
    rewards = (torch.randn(3, G, generator=generator) + 2).abs() * scale
    return {"rewards": rewards.view(-1), "group_size": G}


def pairs(generator: torch.Generator) -> Arguments:
    """Log-probs of whole responses, and a policy that has moved a few nats."""
    ref = -10 - 5 * torch.rand(2, 5, generator=generator)
    policy = ref + 2 * torch.randn(2, 5, generator=generator)
    names = ("policy_chosen", "policy_rejected", "ref_chosen", "ref_rejected", "beta")
    beta = between(generator, 0.05, 0.6)
    return dict(zip(names, (*policy, *ref, beta), strict=True))


def scored(generator: torch.Generator) -> Arguments:
    """Logits and tokens of three rows: prompts of 1 to 3 tokens, responses of 3, 1 and 2."""
    prompt = torch.randint(0, 3, (3, 1), generator=generator)
    lengths = torch.tensor([[3], [1], [2]])
    column = torch.arange(5)
    return {
        "logits": 2 * torch.randn(3, 6, 5, generator=generator),
        "tokens": torch.randint(0, 5, (3, 6), generator=generator),
        "mask": (column >= prompt) & (column < prompt + lengths),
        "temperature": (1.0, between(generator, 0.5, 2.0))[number(generator, 0, 2)],
    }


def sampled(generator: torch.Generator) -> Arguments:
    """Tokens (5, 7) and any of them as EOS: one row never stops, one says EOS twice."""
    tokens, eos_id = torch.randint(0, 5, (5, 7), generator=generator), number(generator, 0, 5)
    tokens[0] = tokens[0].clamp(min=1)
    tokens[1, 1], tokens[1, -1] = 0, 0
    return {"tokens": (tokens + eos_id) % 5, "eos_id": eos_id}
