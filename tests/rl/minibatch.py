"""Small enough for loops over all of it: a minibatch, and a language with all its responses."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from toys import randomized

from gpt.model import GPT, GPTConfig

# A minibatch of three and of two tokens and an empty row, with garbage in the padding: ratios inside
# and outside of a clip at 0.8 and 1.2.
RATIO = torch.tensor([[1.0, 2.0, 0.7, 9], [0.5, 2.2, 1.1, 9], [9, 9, 9, 9]])
OLD = torch.full((3, 4), -2.0)
NEW, REF = OLD + RATIO.log(), OLD + 0.3
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()


def pessimistic(ratio: float, advantage: float, low: float = 0.8, high: float = 1.2) -> float:
    """-min(ratio A, clip(ratio) A)."""
    return -min(ratio * advantage, min(max(ratio, low), high) * advantage)


def k3_by_hand(i: int, t: int) -> float:
    """Of one token of the minibatch above."""
    delta = float(REF[i, t] - NEW[i, t])
    return math.exp(delta) - delta - 1


def mean_of_means(term: Callable[[int, int], float], rows: int = 5) -> float:
    """1/rows sum_i 1/L_i sum_t term(i, t) of the minibatch above, whose empty row adds nothing."""
    return sum(term(i, t) / n / rows for i, n in ((0, 3), (1, 2)) for t in range(n))


def tiny_gpt(seed: int) -> GPT:
    return randomized(GPT(GPTConfig(3, 8, n_layer=1, n_head=1, n_embd=6)).double().eval(), seed)


def after(rewards: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The sum of the rewards of the tokens after t, by loops."""
    table = torch.zeros_like(rewards)
    for i, row in enumerate(mask.tolist()):
        for t in range(sum(row)):
            table[i, t] = sum(float(rewards[i, u]) for u in range(t + 1, sum(row)))
    return table
