"""Does a noisy curve rise? The difference of its ends, in standard errors of that difference."""

import math

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from harness.report.rules import halves


def rise_in_errors(values):
    third = len(values) // 3
    first, last = values[:third], values[-third:]
    error = ((first.var() + last.var()) / third).sqrt()
    return (last.mean() - first.mean()) / error


def by_the_library(values):
    first, last, error = halves(values.tolist())
    return torch.tensor((last - first) / error)


@mistake
def in_deviations(values):
    """you divide by a standard deviation. A mean of k values is sqrt(k) times less noisy than one
    value: divide the variances by T // 3."""
    third = len(values) // 3
    first, last = values[:third], values[-third:]
    return (last.mean() - first.mean()) / (first.var() + last.var()).sqrt()


@mistake
def from_the_whole(values):
    """your noise is the deviation of the whole curve, in which the rise itself is contained. Take
    the variances within the two thirds."""
    third = len(values) // 3
    rise = values[-third:].mean() - values[:third].mean()
    return rise / math.sqrt(2 / third) / values.std()


@mistake
def two_points(values):
    """you compare the last value with the first one. Two single values are mostly noise: compare
    the means of two thirds."""
    third = len(values) // 3
    error = ((values[:third].var() + values[-third:].var()) / third).sqrt()
    return (values[-1] - values[0]) / error


@mistake
def falling(values):
    """your sign is flipped: a curve that rises has a positive result."""
    return -rise_in_errors(values)


@mistake
def without_error(values):
    """that is the rise itself. Whether it is more than noise is only known after a division by its
    standard error."""
    third = len(values) // 3
    return values[-third:].mean() - values[:third].mean()


def curve(generator: torch.Generator) -> Arguments:
    steps = int(torch.randint(9, 40, (1,), generator=generator))
    slope = 0.1 * torch.randn((), generator=generator)
    return {"values": slope * torch.arange(steps) + torch.randn(steps, generator=generator)}


EXERCISE = Exercise(
    statement=(
        "From a curve (T,) compute (mean of its last third - mean of its first third) / standard error, "
        "where a third has T // 3 values and the standard error is sqrt((Var first + Var last) / (T // 3))."
    ),
    solution=rise_in_errors,
    library=by_the_library,
    cases=(
        Case(
            "first third 0, 2, last third 4, 6",
            {"values": torch.tensor([0.0, 2, 9, 9, 4, 6])},
            2.828427,
        ),
        Case(
            "a curve that ends as it began",
            {"values": torch.tensor([1.0, 2, 3, 8, 8, 8, 3, 2, 1])},
            0.0,
        ),
    ),
    random=curve,
)
