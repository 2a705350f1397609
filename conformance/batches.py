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


def ragged_mask(generator: torch.Generator, rows: int, columns: int) -> Tensor:
    """A response mask (rows, columns): lengths from 1 to `columns`, the longest one among them."""
    lengths = torch.randint(1, columns + 1, (rows,), generator=generator)
    lengths[int(torch.randint(rows, (1,), generator=generator))] = columns
    return torch.arange(columns) < lengths[:, None]


def random_log_probs(generator: torch.Generator, *shape: int) -> Tensor:
    """Plausible log-probabilities of tokens: from -5 to just below 0."""
    return -5 * torch.rand(*shape, generator=generator) - 0.01


def rollout(generator: torch.Generator, rows: int = 4, columns: int = 6) -> Arguments:
    """All that a function may take of four responses with six tokens; its padding is garbage."""

    def normal(scale: float = 1.0) -> Tensor:
        return scale * torch.randn(rows, columns, generator=generator)

    mask = ragged_mask(generator, rows, columns)
    mask[0], mask[1] = torch.arange(columns) < 2, True  # lengths differ for certain
    old, values = random_log_probs(generator, rows, columns), normal()
    log_probs = old + normal(0.9)
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
        "x": normal(2.0) + 3,
        "mask": mask,
        "length": 9,
        "clip_low": 0.2,
        "clip_high": 0.2 + 0.08 * int(torch.randint(2, (1,), generator=generator)),
        "clip": 0.2,
        "cap": 2.0,
        "low": 0.5,
        "gamma": 0.9,
        "lam": 0.8,
        "kl_coef": 0.1,
    }


def groups(generator: torch.Generator) -> Arguments:
    """Rewards of three groups, each with a scale of its own."""
    G = int(torch.randint(3, 6, (1,), generator=generator))
    scale = torch.randint(1, 4, (3, 1), generator=generator)
    rewards = (torch.randn(3, G, generator=generator) + 2).abs() * scale
    return {"rewards": rewards.view(-1), "group_size": G}


def pairs(generator: torch.Generator) -> Arguments:
    """Log-probs of whole responses, and a policy that has moved a few nats."""
    ref = -10 - 5 * torch.rand(2, 5, generator=generator)
    policy = ref + 2 * torch.randn(2, 5, generator=generator)
    names = ("policy_chosen", "policy_rejected", "ref_chosen", "ref_rejected", "beta")
    return dict(zip(names, (*policy, *ref, 0.3), strict=True))


def scored(generator: torch.Generator) -> Arguments:
    """Logits and tokens of three rows: prompts of 1 to 3 tokens, responses of 3, 1 and 2."""
    prompt = torch.randint(0, 3, (3, 1), generator=generator)
    lengths = torch.tensor([[3], [1], [2]])
    column = torch.arange(5)
    return {
        "logits": 2 * torch.randn(3, 6, 5, generator=generator),
        "tokens": torch.randint(0, 5, (3, 6), generator=generator),
        "mask": (column >= prompt) & (column < prompt + lengths),
        "temperature": (1.0, 0.7)[int(torch.randint(2, (1,), generator=generator))],
    }


def sampled(generator: torch.Generator) -> Arguments:
    """Tokens (5, 7) with EOS 0: one row never stops, one says EOS twice."""
    tokens = torch.randint(0, 5, (5, 7), generator=generator)
    tokens[0] = tokens[0].clamp(min=1)
    tokens[1, 1], tokens[1, -1] = 0, 0
    return {"tokens": tokens, "eos_id": 0}
