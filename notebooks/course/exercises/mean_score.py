"""The reward model's pooling: one score per response, the mean over its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course.exercises import Case, Exercise, Mistake, ragged_mask
from rl.equations import losses as library


def mean_score(token_scores: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, token_scores, 0.0).sum(1) / mask.sum(1)


def by_library(token_scores: Tensor, mask: Tensor) -> Tensor:
    return library.row_means(token_scores, mask)


def last_token(token_scores: Tensor, mask: Tensor) -> Tensor:
    return token_scores[torch.arange(len(mask)), mask.sum(1) - 1]


def last_column(token_scores: Tensor, mask: Tensor) -> Tensor:
    return token_scores[:, -1]


def padding_included(token_scores: Tensor, mask: Tensor) -> Tensor:
    return token_scores.mean(1)


def padded_length(token_scores: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, token_scores, 0.0).mean(1)


def summed(token_scores: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, token_scores, 0.0).sum(1)


def eos_left_out(token_scores: Tensor, mask: Tensor) -> Tensor:
    earlier = mask & torch.cat([mask[:, 1:], torch.zeros_like(mask[:, :1])], 1)
    return torch.where(earlier, token_scores, 0.0).sum(1) / earlier.sum(1).clamp(min=1)


def ragged(generator: torch.Generator) -> Mapping[str, Any]:
    mask = ragged_mask(generator, 4, 6)
    mask[0], mask[1] = torch.arange(6) < 3, True  # lengths differ for certain
    return {"token_scores": torch.randn(4, 6, generator=generator) + 1, "mask": mask}


EXERCISE = Exercise(
    statement=(
        "From token_scores (N, T) and mask (N, T), True up to and including the EOS, compute the mean "
        "score of each response, (N,)."
    ),
    solution=mean_score,
    library=by_library,
    cases=(
        Case(
            "scores 1, 2, 6 and 4, in responses of three tokens and of one",
            {
                "token_scores": torch.tensor([[1.0, 2.0, 6.0], [4.0, 9.0, 9.0]]),
                "mask": torch.tensor([[True, True, True], [True, False, False]]),
            },
            [3.0, 4.0],
        ),
    ),
    random=ragged,
    mistakes=(
        Mistake(
            "last_token",
            "this is the score of the last token: the other pooling. Here the mean is wanted.",
            last_token,
        ),
        Mistake(
            "last_column",
            "you read the last column, which is padding for a short response.",
            last_column,
        ),
        Mistake("padding_included", "the padding takes part: use the mask.", padding_included),
        Mistake(
            "padded_length",
            "you divide by T. Divide by the response's own length, mask.sum(1).",
            padded_length,
        ),
        Mistake("summed", "you add the scores up: divide by the length.", summed),
        Mistake(
            "eos_left_out",
            "you left the last token out. The EOS is a token like the others, and it is scored.",
            eos_left_out,
        ),
    ),
)
