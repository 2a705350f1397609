"""The reward to go: a token's own reward and all that come after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course.exercises import Case, Exercise, Mistake, ragged_mask
from rl.equations.advantages import discounted_returns

MASK = torch.tensor([[True, True, True, False]])


def reward_to_go(token_rewards: Tensor, mask: Tensor) -> Tensor:
    return (token_rewards * mask).flip(1).cumsum(1).flip(1) * mask


def ragged(generator: torch.Generator) -> Mapping[str, Any]:
    return {
        "token_rewards": torch.randn(4, 6, generator=generator) + 0.5,
        "mask": ragged_mask(generator, 4, 6),
    }


EXERCISE = Exercise(
    statement=(
        "Of every token t compute sum_{u >= t} r_u over the tokens where mask is True, (N, T), and "
        "0 where it is False."
    ),
    solution=reward_to_go,
    library=lambda token_rewards, mask: discounted_returns(token_rewards, mask, 1.0),
    cases=(
        Case(
            "rewards 1, 2, 3, then padding",
            {"token_rewards": torch.tensor([[1.0, 2.0, 3.0, 9.0]]), "mask": MASK},
            [[6.0, 5.0, 3.0, 0.0]],
        ),
    ),
    random=ragged,
    mask="mask",
    mistakes=(
        Mistake(
            "past_not_future",
            "this adds up what came before. A token can change only what comes from it on: flip, "
            "cumsum, flip.",
            lambda r, mask: (r * mask).cumsum(1) * mask,
        ),
        Mistake(
            "total_everywhere",
            "this gives every token the whole sum, past rewards included: right on average, but "
            "noisier. It is the terminal placement.",
            lambda r, mask: (r * mask).sum(1, keepdim=True) * mask,
        ),
        Mistake(
            "own_reward_left_out",
            "the token's own reward is missing: the sum begins at t itself.",
            lambda r, mask: reward_to_go(r, mask) - r * mask,
        ),
        Mistake(
            "padding_counted",
            "rewards at padding are in your sums: multiply by the mask before you add up.",
            lambda r, mask: r.flip(1).cumsum(1).flip(1) * mask,
        ),
        Mistake(
            "own_reward_alone",
            "you give a token its own reward alone. It also decides what comes after it.",
            lambda r, mask: r * mask,
        ),
    ),
)
