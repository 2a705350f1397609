"""REINFORCE++'s return of each token: the rewards from this token to the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course.exercises import Case, Exercise, Mistake, ragged_mask
from rl.equations import advantages as library


def reward_to_go(token_rewards: Tensor, mask: Tensor) -> Tensor:
    valid = torch.where(mask, token_rewards, 0.0)
    to_come = valid.flip(1).cumsum(1).flip(1)  # summed from the end
    return torch.where(mask, to_come, 0.0)


def by_library(token_rewards: Tensor, mask: Tensor) -> Tensor:
    return library.discounted_returns(token_rewards, mask, 1.0)


def reward_so_far(token_rewards: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, torch.where(mask, token_rewards, 0.0).cumsum(1), 0.0)


def whole_return(token_rewards: Tensor, mask: Tensor) -> Tensor:
    total = torch.where(mask, token_rewards, 0.0).sum(1, keepdim=True)
    return torch.where(mask, total, 0.0)


def own_left_out(token_rewards: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, reward_to_go(token_rewards, mask) - token_rewards, 0.0)


def padding_summed(token_rewards: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, token_rewards.flip(1).cumsum(1).flip(1), 0.0)


def padding_kept(token_rewards: Tensor, mask: Tensor) -> Tensor:
    return token_rewards.flip(1).cumsum(1).flip(1)


def not_flipped_back(token_rewards: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, token_rewards, 0.0).flip(1).cumsum(1)


def ragged(generator: torch.Generator) -> Mapping[str, Any]:
    mask = ragged_mask(generator, 4, 6)
    mask[0], mask[1] = torch.arange(6) < 3, True  # lengths differ for certain
    return {"token_rewards": torch.randn(4, 6, generator=generator), "mask": mask}


EXERCISE = Exercise(
    statement=(
        "From token_rewards (N, T) and mask (N, T), compute for each token the sum of its own reward "
        "and all later ones of its response (gamma = 1); 0 in the padding."
    ),
    solution=reward_to_go,
    library=by_library,
    cases=(
        Case(
            "rewards 0.1, 0.2, 1 and -0.5, 1; fives in the padding",
            {
                "token_rewards": torch.tensor([[0.1, 0.2, 1.0, 5.0], [-0.5, 1.0, 5.0, 5.0]]),
                "mask": torch.tensor([[True, True, True, False], [True, True, False, False]]),
            },
            [[1.3, 1.2, 1.0, 0.0], [0.5, 1.0, 0.0, 0.0]],
        ),
    ),
    random=ragged,
    mask="mask",
    mistakes=(
        Mistake(
            "reward_so_far",
            "you add up from the beginning. A token answers for what comes after it: begin at the "
            "end.",
            reward_so_far,
        ),
        Mistake(
            "whole_return",
            "every token gets the whole return. Leave out the rewards that came before it.",
            whole_return,
        ),
        Mistake("own_left_out", "the token's own reward belongs to what is to come.", own_left_out),
        Mistake(
            "padding_summed", "rewards in the padding reach the tokens before it.", padding_summed
        ),
        Mistake(
            "padding_kept",
            "the mask is not used: the padding adds to the sums and keeps numbers of its own.",
            padding_kept,
        ),
        Mistake(
            "not_flipped_back",
            "the sums are right, but the columns are still in the wrong order: flip them back.",
            not_flipped_back,
        ),
    ),
)
