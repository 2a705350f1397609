"""Causal attention of one head, written out."""

import math

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from gpt.model import causal_mask, plain_attention


def attention(query, key, value):
    scores = query @ key.T / math.sqrt(query.shape[1])
    future = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(-1) @ value


def by_the_library(query, key, value):
    mask = causal_mask(len(query), len(query), query.device)
    return plain_attention(query[None, None], key[None, None], value[None, None], mask)[0, 0]


@mistake
def sees_the_future(query, key, value):
    """nothing is masked: a token looks at the tokens after it, and the answer stands in the
    question."""
    return (query @ key.T / math.sqrt(query.shape[1])).softmax(-1) @ value


@mistake
def without_root(query, key, value):
    """the division by sqrt(d) is missing: wide vectors would put all weight on one token."""
    return attention(query * math.sqrt(query.shape[1]), key, value)


@mistake
def divided_by_the_width(query, key, value):
    """you divide by d. The scores have variance d, so their size is sqrt(d)."""
    return attention(query / math.sqrt(query.shape[1]), key, value)


@mistake
def masked_with_zero(query, key, value):
    """you set forbidden scores to 0. exp(0) is 1, so they still get weight: set them to -inf before
    the softmax."""
    scores = query @ key.T / math.sqrt(query.shape[1])
    return scores.tril().softmax(-1) @ value


@mistake
def masked_after_softmax(query, key, value):
    """you mask after the softmax: the weights of a row no longer add up to 1. Mask the scores,
    before it."""
    return (query @ key.T / math.sqrt(query.shape[1])).softmax(-1).tril() @ value


@mistake
def columns_normalised(query, key, value):
    """your softmax runs down the columns. Each row, who asks, needs weights that add up to 1:
    softmax(-1)."""
    scores = query @ key.T / math.sqrt(query.shape[1])
    future = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(0) @ value


@mistake
def mask_turned_round(query, key, value):
    """your mask is turned round: every token sees itself and the future, not the past."""
    scores = query @ key.T / math.sqrt(query.shape[1])
    past = torch.ones_like(scores, dtype=torch.bool).tril(-1)
    return scores.masked_fill(past, float("-inf")).softmax(-1) @ value


def some_tokens(generator: torch.Generator) -> Arguments:
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
)
