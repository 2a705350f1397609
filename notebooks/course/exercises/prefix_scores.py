"""The reward of each prefix, where a response's reward is the mean of its token scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course.exercises import Case, Exercise, Mistake, ragged_mask


def prefix_scores(token_scores: Tensor, mask: Tensor) -> Tensor:
    valid = torch.where(mask, token_scores, 0.0)
    tokens_so_far = mask.cumsum(1).clamp(min=1)
    return torch.where(mask, valid.cumsum(1) / tokens_so_far, 0.0)


def by_hand(token_scores: Tensor, mask: Tensor) -> Tensor:
    """Prefix by prefix, as the definition says."""
    rows = []
    for scores, valid in zip(token_scores, mask):
        means = [
            scores[: t + 1].mean() if valid[t] else scores.new_zeros(()) for t in range(len(scores))
        ]
        rows.append(torch.stack(means))
    return torch.stack(rows)


def only_summed(token_scores: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, torch.where(mask, token_scores, 0.0).cumsum(1), 0.0)


def whole_length(token_scores: Tensor, mask: Tensor) -> Tensor:
    return only_summed(token_scores, mask) / mask.sum(1, keepdim=True)


def token_itself(token_scores: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, token_scores, 0.0)


def one_token_late(token_scores: Tensor, mask: Tensor) -> Tensor:
    right = prefix_scores(token_scores, mask)
    shifted = torch.cat([torch.zeros_like(right[:, :1]), right[:, :-1]], 1)
    return torch.where(mask, shifted, 0.0)


def to_the_end(token_scores: Tensor, mask: Tensor) -> Tensor:
    valid = torch.where(mask, token_scores, 0.0)
    left = mask.flip(1).cumsum(1).flip(1).clamp(min=1)
    return torch.where(mask, valid.flip(1).cumsum(1).flip(1) / left, 0.0)


def padding_scored(token_scores: Tensor, mask: Tensor) -> Tensor:
    return token_scores.cumsum(1) / torch.arange(1, token_scores.shape[1] + 1)


def ragged(generator: torch.Generator) -> Mapping[str, Any]:
    mask = ragged_mask(generator, 3, 6)
    mask[0], mask[1] = torch.arange(6) < 3, True  # lengths differ for certain
    return {"token_scores": torch.randn(3, 6, generator=generator), "mask": mask}


EXERCISE = Exercise(
    statement=(
        "From token_scores (N, T) and mask (N, T), compute for each token the mean of the scores of "
        "its response up to and including it, (N, T); 0 in the padding."
    ),
    solution=prefix_scores,
    library=by_hand,
    cases=(
        Case(
            "scores 1, 2, 6 and 4, in responses of three tokens and of one",
            {
                "token_scores": torch.tensor([[1.0, 2.0, 6.0], [4.0, 9.0, 9.0]]),
                "mask": torch.tensor([[True, True, True], [True, False, False]]),
            },
            [[1.0, 1.5, 3.0], [4.0, 0.0, 0.0]],
        ),
    ),
    random=ragged,
    mask="mask",
    mistakes=(
        Mistake(
            "only_summed",
            "you add the scores up. Divide each sum by the number of tokens so far.",
            only_summed,
        ),
        Mistake(
            "whole_length",
            "you divide by the length of the whole response. A prefix of t tokens is divided by t.",
            whole_length,
        ),
        Mistake(
            "token_itself",
            "this is the score of each token alone. A prefix is judged by the mean up to there.",
            token_itself,
        ),
        Mistake(
            "one_token_late",
            "you are one token late: the reward model has read the token that it scores.",
            one_token_late,
        ),
        Mistake(
            "to_the_end",
            "you average from the token to the end. A prefix goes from the first token to this one.",
            to_the_end,
        ),
        Mistake(
            "padding_scored",
            "right where the mask is True. In the padding the result must be 0.",
            padding_scored,
        ),
    ),
)
