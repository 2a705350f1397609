"""Holm's correction: p-values that hold for all comparisons together."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from harness.report import intervals


def holm(p):
    m, order = len(p), p.argsort()
    steps = (m - torch.arange(m)) * p[order]
    corrected = torch.empty_like(p)
    corrected[order] = steps.cummax(0).values.clamp(max=1.0)
    return corrected


@mistake
def bonferroni(p):
    """you multiply every p by m: that is Bonferroni's correction, which is right but gives more away.
    Holm multiplies the i-th smallest by m - i + 1."""
    return (len(p) * p).clamp(max=1.0)


@mistake
def no_step_down(p):
    """right, except that a larger p may come out below a smaller one's. No corrected p is below that of
    a smaller one: take the running maximum."""
    return ((len(p) - p.argsort().argsort()) * p).clamp(max=1.0)


@mistake
def above_one(p):
    """right, except that a p-value is at most 1."""
    m, order = len(p), p.argsort()
    corrected = torch.empty_like(p)
    corrected[order] = ((m - torch.arange(m)) * p[order]).cummax(0).values
    return corrected


@mistake
def from_the_other_end(p):
    """you multiply the smallest by 1 and the largest by m. It is the other way: the smallest of m pays
    for all of them."""
    return ((p.argsort().argsort() + 1) * p).clamp(max=1.0)


@mistake
def unsorted(p):
    """you multiply in the order in which the p-values are given. Sort them first."""
    return ((len(p) - torch.arange(len(p))) * p).clamp(max=1.0)


@mistake
def false_discoveries(p):
    """m / i times the i-th smallest is Benjamini and Hochberg's, which bounds the share of false
    discoveries. Holm bounds the chance of any: m - i + 1."""
    rank = p.argsort().argsort() + 1
    return (len(p) / rank * p).clamp(max=1.0)


def from_library(p):
    found = intervals.holm({str(i): value for i, value in enumerate(p.tolist())})
    return torch.tensor([found[str(i)] for i in range(len(p))])


def some_p(generator: torch.Generator) -> Arguments:
    return {"p": torch.rand(10, generator=generator) ** 3}


EXERCISE = Exercise(
    statement=(
        "From p-values (m,) compute Holm's corrected ones (m,): the i-th smallest, i from 1, times "
        "m - i + 1, none below that of a smaller one, and none above 1."
    ),
    solution=holm,
    library=from_library,
    cases=(
        Case("three claims", {"p": torch.tensor([0.01, 0.04, 0.03])}, [0.03, 0.06, 0.06]),
        Case(
            "four claims",
            {"p": torch.tensor([0.001, 0.02, 0.2, 0.04])},
            [0.004, 0.06, 0.2, 0.08],
        ),
        Case("nothing there", {"p": torch.tensor([0.9, 0.6])}, [1.0, 1.0]),
    ),
    random=some_p,
)
