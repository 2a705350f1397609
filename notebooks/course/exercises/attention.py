"""Causal attention of one head, written out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course.exercises import Case, Exercise, Mistake
from gpt.model import causal_mask, plain_attention


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.T / math.sqrt(query.shape[1])
    future = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(-1) @ value


def by_the_library(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    mask = causal_mask(len(query), len(query), query.device)
    return plain_attention(query[None, None], key[None, None], value[None, None], mask)[0, 0]


def sees_the_future(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.T / math.sqrt(query.shape[1])).softmax(-1) @ value


def without_root(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return attention(query * math.sqrt(query.shape[1]), key, value)


def divided_by_the_width(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return attention(query / math.sqrt(query.shape[1]), key, value)


def masked_with_zero(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.T / math.sqrt(query.shape[1])
    return scores.tril().softmax(-1) @ value


def masked_after_softmax(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.T / math.sqrt(query.shape[1])).softmax(-1).tril() @ value


def columns_normalised(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.T / math.sqrt(query.shape[1])
    future = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(0) @ value


def mask_turned_round(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.T / math.sqrt(query.shape[1])
    past = torch.ones_like(scores, dtype=torch.bool).tril(-1)
    return scores.masked_fill(past, float("-inf")).softmax(-1) @ value


def some_tokens(generator: torch.Generator) -> Mapping[str, Any]:
    columns = int(torch.randint(3, 7, (1,), generator=generator))
    width = int(torch.randint(3, 9, (1,), generator=generator))
    names = ("query", "key", "value")
    return {name: torch.randn(columns, width, generator=generator) for name in names}


EXERCISE = Exercise(
    statement=(
        "query, key and value are (S, d). Return softmax(Q K^T / sqrt(d)) V, (S, d), where row s "
        "may look at the rows 0 to s only."
    ),
    solution=attention,
    library=by_the_library,
    cases=(
        Case(
            "keys all alike: each row is the plain average of the values it may see",
            {
                "query": torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]),
                "key": torch.ones(3, 2),
                "value": torch.tensor([[6.0, 0.0], [0.0, 6.0], [3.0, 3.0]]),
            },
            [[6.0, 0.0], [3.0, 3.0], [3.0, 3.0]],
        ),
        Case(
            "the three tokens of section 1",
            {
                "query": torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]),
                "key": torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]),
                "value": torch.tensor([[10.0, 0.0], [0.0, 10.0], [5.0, 5.0]]),
            },
            [[10.0, 0.0], [3.3024, 6.6976], [2.8203, 7.1797]],
        ),
    ),
    random=some_tokens,
    mistakes=(
        Mistake(
            "sees_the_future",
            "nothing is masked: a token looks at the tokens after it, and the answer stands in the "
            "question.",
            sees_the_future,
        ),
        Mistake(
            "without_root",
            "the division by sqrt(d) is missing: wide vectors would put all weight on one token.",
            without_root,
        ),
        Mistake(
            "divided_by_the_width",
            "you divide by d. The scores have variance d, so their size is sqrt(d).",
            divided_by_the_width,
        ),
        Mistake(
            "masked_with_zero",
            "you set forbidden scores to 0. exp(0) is 1, so they still get weight: set them to "
            "-inf before the softmax.",
            masked_with_zero,
        ),
        Mistake(
            "masked_after_softmax",
            "you mask after the softmax: the weights of a row no longer add up to 1. Mask the "
            "scores, before it.",
            masked_after_softmax,
        ),
        Mistake(
            "columns_normalised",
            "your softmax runs down the columns. Each row, who asks, needs weights that add up to "
            "1: softmax(-1).",
            columns_normalised,
        ),
        Mistake(
            "mask_turned_round",
            "your mask is turned round: every token sees itself and the future, not the past.",
            mask_turned_round,
        ),
    ),
)
