"""The terminal placement: all of a response's reward at its last token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course.exercises import Case, Exercise, Mistake, ragged_mask
from rl.equations.losses import row_sums
from rl.equations.token_rewards import at_last_token

MASK = torch.tensor([[True, True, True, False], [True, False, False, False]])


def terminal_rewards(token_rewards: Tensor, mask: Tensor) -> Tensor:
    total = (token_rewards * mask).sum(1, keepdim=True)
    is_last = mask & (mask.cumsum(1) == mask.sum(1, keepdim=True))
    return total * is_last


def last_of(mask: Tensor) -> Tensor:
    return mask & (mask.cumsum(1) == mask.sum(1, keepdim=True))


def last_column(token_rewards: Tensor, mask: Tensor) -> Tensor:
    placed = torch.zeros_like(token_rewards)
    placed[:, -1] = (token_rewards * mask).sum(1)
    return placed


def first_column(token_rewards: Tensor, mask: Tensor) -> Tensor:
    placed = torch.zeros_like(token_rewards)
    placed[:, 0] = (token_rewards * mask).sum(1)
    return placed


def ragged(generator: torch.Generator) -> Mapping[str, Any]:
    return {
        "token_rewards": torch.randn(4, 6, generator=generator) + 0.5,
        "mask": ragged_mask(generator, 4, 6),
    }


EXERCISE = Exercise(
    statement=(
        "Put the sum of each response's token rewards at its last token (the last True of its mask), "
        "and 0 everywhere else: (N, T)."
    ),
    solution=terminal_rewards,
    library=lambda token_rewards, mask: at_last_token(row_sums(token_rewards, mask), mask),
    cases=(
        Case(
            "a response of 3 tokens and one of 1, with padding",
            {
                "token_rewards": torch.tensor([[1.0, 2.0, 3.0, 9.0], [4.0, 9.0, 9.0, 9.0]]),
                "mask": MASK,
            },
            [[0.0, 0.0, 6.0, 0.0], [4.0, 0.0, 0.0, 0.0]],
        ),
    ),
    random=ragged,
    mask="mask",
    mistakes=(
        Mistake(
            "last_column",
            "you use the last column, which is padding for all but the longest response: then the "
            "reward never reaches a token. Use the last True of each row.",
            last_column,
        ),
        Mistake(
            "at_every_token",
            "you give the sum to every token. Then its total is paid L times over.",
            lambda r, mask: (r * mask).sum(1, keepdim=True) * mask,
        ),
        Mistake(
            "padding_counted",
            "rewards at padding are in your sum: multiply by the mask first.",
            lambda r, mask: r.sum(1, keepdim=True) * last_of(mask),
        ),
        Mistake(
            "mean_not_sum",
            "you place the mean over the tokens. The sum is what dense and terminal must share.",
            lambda r, mask: terminal_rewards(r, mask) / mask.sum(1, keepdim=True),
        ),
        Mistake(
            "first_column",
            "the sum stands at the first token. It is paid when the response is finished: at the "
            "last one.",
            first_column,
        ),
    ),
)
