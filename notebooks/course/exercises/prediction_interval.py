"""Where the effect of one more seed is expected."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from harness.report import intervals


def prediction_interval(values, t):
    half = t * values.std() * (1 + 1 / len(values)) ** 0.5
    return torch.stack([values.mean() - half, values.mean() + half])


@mistake
def of_the_mean(values, t):
    """this is the interval of the mean. A new run scatters around that mean too: the factor is
    sqrt(1 + 1 / n), not sqrt(1 / n)."""
    half = t * values.std() / len(values) ** 0.5
    return torch.stack([values.mean() - half, values.mean() + half])


@mistake
def mean_taken_as_known(values, t):
    """your interval takes the mean as known, but it was estimated from n runs: the factor is
    sqrt(1 + 1 / n)."""
    half = t * values.std()
    return torch.stack([values.mean() - half, values.mean() + half])


@mistake
def variance_for_spread(values, t):
    """you use the variance where the standard deviation belongs."""
    half = t * values.var() * (1 + 1 / len(values)) ** 0.5
    return torch.stack([values.mean() - half, values.mean() + half])


@mistake
def spread_around_their_own_mean(values, t):
    """your spread divides by n; it is n - 1."""
    half = t * values.std(unbiased=False) * (1 + 1 / len(values)) ** 0.5
    return torch.stack([values.mean() - half, values.mean() + half])


def some_runs(generator: torch.Generator) -> Arguments:
    n = int(torch.randint(4, 10, (1,), generator=generator))
    return {"values": torch.randn(n, generator=generator), "t": intervals.t_quantile(n - 1)}


EXERCISE = Exercise(
    statement=(
        "From the effects of n seeds, values (n,), and the 97.5% point t of Student's distribution "
        "compute where one more seed is expected: mean -+ t s sqrt(1 + 1 / n). Return (low, high) as (2,)."
    ),
    solution=prediction_interval,
    library=lambda values, t: torch.tensor(intervals.prediction_interval(values.tolist())),
    cases=(
        Case(
            "three runs",
            {"values": torch.tensor([1.0, 2.0, 3.0]), "t": 4.302653},
            [-2.968276, 6.968276],
        ),
        Case(
            "two runs",
            {"values": torch.tensor([0.0, 2.0]), "t": 12.706205},
            [-21.007791, 23.007791],
        ),
        Case("runs that agree", {"values": torch.full((4,), 0.5), "t": 3.182446}, [0.5, 0.5]),
    ),
    random=some_runs,
    tolerance=1e-3,
)
