"""How far best-of-n is from the policy, in nats per answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course.exercises import Case, Exercise, Mistake
from rl.equations import best_of_n as library


def best_of_n_kl(n: int) -> float:
    return math.log(n) - (n - 1) / n


def only_the_log(n: int) -> float:
    return math.log(n)


def all_but_one(n: int) -> float:
    return math.log(n) - (n - 1)


def one_nth(n: int) -> float:
    return math.log(n) - 1 / n


def in_bits(n: int) -> float:
    return math.log2(n) - (n - 1) / n


def added(n: int) -> float:
    return math.log(n) + (n - 1) / n


def as_tensor(n: int) -> Tensor:
    return torch.tensor(library.best_of_n_kl(n))


def some_n(generator: torch.Generator) -> Mapping[str, Any]:
    return {"n": int(torch.randint(2, 1000, (1,), generator=generator))}


EXERCISE = Exercise(
    statement=(
        "Compute KL(best of n || policy) in nats per answer, log n - (n - 1) / n, from the integer n. "
        "Return a number."
    ),
    solution=best_of_n_kl,
    library=as_tensor,
    cases=(
        Case("one answer, which is the policy itself", {"n": 1}, 0.0),
        Case("the better of two", {"n": 2}, 0.193147),
        Case("the best of 512", {"n": 512}, 5.240278),
    ),
    random=some_n,
    mistakes=(
        Mistake(
            "only_the_log",
            "log n alone is too far. It would be right if the best answer were one single text; "
            "the best of n still varies, and that takes (n - 1) / n off.",
            only_the_log,
        ),
        Mistake(
            "all_but_one",
            "you subtract n - 1; it is (n - 1) / n, a number below 1.",
            all_but_one,
        ),
        Mistake(
            "one_nth",
            "you subtract 1 / n. For n = 1 the distance must be 0, and (n - 1) / n is.",
            one_nth,
        ),
        Mistake("in_bits", "your logarithm has base 2: that is bits. Nats need math.log.", in_bits),
        Mistake("added", "the second term is subtracted, not added.", added),
    ),
)
