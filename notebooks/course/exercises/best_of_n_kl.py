"""How far best-of-n is from the policy, in nats per answer."""

import math

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from rl.equations import best_of_n as library


def best_of_n_kl(n):
    return math.log(n) - (n - 1) / n


@mistake
def only_the_log(n):
    """log n alone is too far. It would be right if the best answer were one single text; the best
    of n still varies, and that takes (n - 1) / n off."""
    return math.log(n)


@mistake
def all_but_one(n):
    """you subtract n - 1; it is (n - 1) / n, a number below 1."""
    return math.log(n) - (n - 1)


@mistake
def one_nth(n):
    """you subtract 1 / n. For n = 1 the distance must be 0, and (n - 1) / n is."""
    return math.log(n) - 1 / n


@mistake
def in_bits(n):
    """your logarithm has base 2: that is bits. Nats need math.log."""
    return math.log2(n) - (n - 1) / n


@mistake
def added(n):
    """the second term is subtracted, not added."""
    return math.log(n) + (n - 1) / n


def as_tensor(n):
    return torch.tensor(library.best_of_n_kl(n))


def some_n(generator: torch.Generator) -> Arguments:
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
)
