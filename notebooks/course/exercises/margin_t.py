"""Student's t of an effect against the least that counts."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from harness.report.intervals import t_interval, t_quantile


def margin_t(values, least):
    error = values.std() / len(values) ** 0.5
    return (values.mean() - least) / error


@mistake
def against_nothing(values, least):
    """you test against 0. The question is whether the effect exceeds `least`: subtract it from the
    mean."""
    return margin_t(values, 0.0)


@mistake
def least_added(values, least):
    """`least` is subtracted from the mean, not added."""
    return margin_t(values, -least)


@mistake
def spread_of_one_run(values, least):
    """you divide by the spread of one run. The mean of n runs is steadier: its error is s / sqrt(n)."""
    return (values.mean() - least) / values.std()


@mistake
def divided_by_n(values, least):
    """you divide the spread by n; the error of a mean is s / sqrt(n)."""
    return (values.mean() - least) / (values.std() / len(values))


@mistake
def spread_around_their_own_mean(values, least):
    """your spread divides by n. The runs lie nearer to their own mean than to the true one, so it is
    n - 1."""
    return (values.mean() - least) / (values.std(unbiased=False) / len(values) ** 0.5)


def from_interval(values, least):
    """The same number from the half width of an interval."""
    found = t_interval(values.tolist())
    error = (found["high"] - found["mean"]) / t_quantile(len(values) - 1)
    return torch.tensor((found["mean"] - least) / error)


def some_runs(generator: torch.Generator) -> Arguments:
    n = int(torch.randint(4, 10, (1,), generator=generator))
    values = 0.1 + 0.2 * torch.randn(n, generator=generator)
    return {"values": values, "least": float(torch.rand(1, generator=generator)) / 5}


EXERCISE = Exercise(
    statement=(
        "From the effects of n seeds, values (n,), compute Student's t against `least`: the mean's "
        "distance from it in standard errors of the mean, s / sqrt(n). Return a number."
    ),
    solution=margin_t,
    library=from_interval,
    cases=(
        Case("against nothing", {"values": torch.tensor([0.1, 0.2, 0.3]), "least": 0.0}, 3.4641),
        Case("half as far", {"values": torch.tensor([0.1, 0.2, 0.3]), "least": 0.1}, 1.7321),
        Case("below the least", {"values": torch.tensor([0.1, 0.2, 0.3]), "least": 0.25}, -0.8660),
    ),
    random=some_runs,
    tolerance=1e-3,
)
