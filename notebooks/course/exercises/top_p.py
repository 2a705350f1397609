"""Nucleus sampling: the smallest set of tokens that has the probability p."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from gpt.generate import SamplingParams, truncate_logits


def top_p(logits, p):
    ordered, order = logits.softmax(-1).sort(descending=True)
    before = ordered.cumsum(-1) - ordered  # the probability of all likelier tokens
    kept = torch.where(before < p, ordered, 0.0)
    return torch.zeros_like(logits).scatter(0, order, kept / kept.sum())


def by_the_library(logits, p):
    return truncate_logits(logits[None], SamplingParams(top_p=p))[0].softmax(-1)


@mistake
def not_rescaled(logits, p):
    """the right tokens stay, but their probabilities do not add up to 1: divide by the sum."""
    return torch.where(top_p(logits, p) > 0, logits.softmax(-1), 0.0)


@mistake
def left_in_order(logits, p):
    """the numbers are right, but sorted: put them back to where the tokens stand (scatter)."""
    return top_p(logits.sort(descending=True).values, p)


@mistake
def one_too_few(logits, p):
    """you drop the token that crosses p. It stays: the kept ones must have *at least* p."""
    ordered, order = logits.softmax(-1).sort(descending=True)
    kept = torch.where(ordered.cumsum(-1) <= p, ordered, 0.0)
    kept[0] = ordered[0]
    return torch.zeros_like(logits).scatter(0, order, kept / kept.sum())


@mistake
def threshold(logits, p):
    """you keep tokens that are likely one by one. Top-p adds them up, from the likeliest down."""
    probabilities = logits.softmax(-1)
    kept = torch.where(probabilities > 1 - p, probabilities, 0.0)
    return kept / kept.sum().clamp(min=1e-9)


@mistake
def the_tail(logits, p):
    """you start from the unlikeliest token. Sort in descending order."""
    return top_p(-logits, p)


@mistake
def nothing_cut(logits, p):
    """nothing is cut: every token keeps its probability."""
    return logits.softmax(-1)


def some_words(generator: torch.Generator) -> Arguments:
    words = int(torch.randint(5, 12, (1,), generator=generator))
    return {"logits": 2 * torch.randn(words, generator=generator), "p": 0.7}


def case(about: str, p: float, wanted: list[float]) -> Case:
    """Four words with the probabilities 0.1, 0.5, 0.08 and 0.32."""
    return Case(about, {"logits": torch.tensor([0.1, 0.5, 0.08, 0.32]).log(), "p": p}, wanted)


EXERCISE = Exercise(
    statement=(
        "logits (V,). Keep the likeliest tokens, as few as reach the probability p together, set "
        "the others to 0, scale up to a sum of 1, and return probabilities (V,) in the old order."
    ),
    solution=top_p,
    library=by_the_library,
    cases=(
        case("p = 0.7: two words of 0.5 and 0.32 stay", 0.7, [0, 0.609756, 0, 0.390244]),
        case("p = 0.4: the likeliest word alone has more", 0.4, [0, 1, 0, 0]),
    ),
    random=some_words,
)
