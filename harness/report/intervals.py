"""Means over seeds and prompts with intervals, values at equal KL, and many comparisons at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
DRAWS = 2000
LEVEL = 0.95
FEWEST_STARTS = 3  # of a test
SIGNIFICANT = 0.05  # a corrected p below this is called significant


def at_distance(kl: Array, values: Array, target: float) -> Array | None:
    """`values` (points, P) where the run's mean KL (points,) first reaches `target`, (P,); None if never.

    Linear in the KL between the last point below and the first at or above it, prompt by prompt.
    """
    reached = np.flatnonzero(kl >= target)
    if not len(reached):
        return None
    after = int(reached[0])
    if after == 0 or kl[after] == target:
        return values[after]
    share = (target - kl[after - 1]) / (kl[after] - kl[after - 1])
    return (1 - share) * values[after - 1] + share * values[after]


def at_cost(cost: Array, values: Array, limit: float) -> Array:
    """`values` (points, P) where `cost` (points,), which rises, is `limit`; the end where it is less."""
    if cost[-1] <= limit:
        return values[-1]
    reached = at_distance(cost, values, limit)
    assert reached is not None
    return reached


def resampled(values: Array, rng: np.random.Generator, draws: int = DRAWS) -> Array:
    """Means of a hierarchical bootstrap, (draws,), of (starts, seeds, prompts).

    Starts are drawn with replacement, within each its seeds, and once for all of them the prompts. NaN
    rows, runs without a value, are left out of a mean.
    """
    starts, seeds, prompts = values.shape
    means = np.empty(draws)
    for draw in range(draws):
        chosen = rng.integers(starts, size=starts)
        within = rng.integers(seeds, size=(starts, seeds))
        asked = rng.integers(prompts, size=prompts)
        picked = values[np.expand_dims(chosen, 1), within][:, :, asked]
        means[draw] = np.nanmean(picked) if np.isfinite(picked).any() else np.nan
    return means[np.isfinite(means)]


def interval(means: Array) -> tuple[float, float]:
    """The central 95% of bootstrapped numbers."""
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def mean_with_interval(values: Array) -> dict[str, float]:
    """Mean of (starts, seeds, prompts) with its 95% interval; NaN runs are left out and counted."""
    low, high = interval(resampled(values, np.random.default_rng(0)))
    reached = int(np.isfinite(values).all(axis=2).sum())
    return {"mean": float(np.nanmean(values)), "low": low, "high": high, "runs": reached}


def paired_difference(values: Array, others: Array) -> dict[str, Any]:
    """values - others, run by run and prompt by prompt, (starts, seeds, prompts) each.

    The mean with its bootstrapped interval, each start's mean and, from three starts on, the p of a
    t-test over those: seeds and prompts within a start are no independent starts.
    """
    apart = values - others
    low, high = interval(resampled(apart, np.random.default_rng(0)))
    by_start = [float(np.nanmean(start)) for start in apart if np.isfinite(start).any()]
    found = {"mean": float(np.nanmean(apart)), "low": low, "high": high, "by_start": by_start}
    return found | ({"p": t_test(by_start)} if len(by_start) >= FEWEST_STARTS else {})


def t_test(values: Sequence[float]) -> float:
    """The two-sided p of Student's t-test that the mean of n >= 2 values is 0."""
    return t_interval(values)["p"]


def t_tails(t: float, freedom: float) -> float:
    """P(|T| > |t|) of Student's distribution: with t = sqrt(f) tan(a) its density is cos(a)^(f-1)."""
    middles = (np.arange(4000) + 0.5) / 4000
    lengths = math.pi / 2 - np.array([math.atan(abs(t) / math.sqrt(freedom)), 0.0])
    areas = lengths * np.mean(np.sin(np.outer(middles, lengths)) ** (freedom - 1), axis=0)
    return float(areas[0] / areas[1])


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down correction (Holm 1979): p-values that hold for all comparisons together.

    The i-th smallest of m, from 1, is multiplied by m - i + 1, and none is below a smaller one's.
    """
    order = sorted(p_values, key=lambda name: p_values[name])
    adjusted: dict[str, float] = {}
    largest = 0.0
    for place, name in enumerate(order):
        largest = max(largest, min((len(order) - place) * p_values[name], 1.0))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}


@cache
def t_quantile(freedom: float) -> float:
    """The t beyond which, on both sides together, 5% lie."""
    low, high = 0.0, 1e4
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tails(middle, freedom) > 1 - LEVEL else (low, middle)
    return high


def around(mean: float, error: float, freedom: float) -> dict[str, float]:
    """A mean with standard error `error`: its t-interval, and the p of its being 0."""
    half = t_quantile(freedom) * error if error else 0.0
    p = t_tails(mean / error, freedom) if error else float(mean == 0)
    return {"mean": mean, "low": mean - half, "high": mean + half, "p": p}


def t_interval(values: Sequence[float]) -> dict[str, float]:
    """Mean of n >= 2 runs with the interval that knows how few they are."""
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return around(float(np.mean(values)), error, len(values) - 1)


def welch(values: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """mean(values) - mean(others) of independent runs with different spreads (Welch 1947)."""
    parts = [float(np.var(each, ddof=1)) / len(each) for each in (values, others)]
    sizes = [len(values) - 1, len(others) - 1]
    below = sum(part**2 / size for part, size in zip(parts, sizes, strict=True))
    freedom = sum(parts) ** 2 / below if below else float(sum(sizes))
    return around(float(np.mean(values) - np.mean(others)), math.sqrt(sum(parts)), freedom)


def prediction_interval(values: Sequence[float]) -> tuple[float, float]:
    """Where a new run's mean is expected with 95%: mean +- t s sqrt(1 + 1 / n), of n >= 2 runs."""
    n = len(values)
    half = t_quantile(n - 1) * float(np.std(values, ddof=1)) * math.sqrt(1 + 1 / n)
    mean = float(np.mean(values))
    return mean - half, mean + half


def bootstrap(
    runs: Sequence[Sequence[Array]],
    statistic: Callable[[list[list[Array]]], Array],
    *,
    draws: int = 300,
) -> Array:
    """`statistic` of resampled runs, (draws, K): runs are drawn, and the prompts of all arrays.

    A run is a list of arrays whose last axis is the prompts; equally many are resampled together.
    """
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(draws):
        asked: dict[int, NDArray[np.int64]] = {}
        picked = []
        for index in rng.integers(len(runs), size=len(runs)):
            for array in runs[index]:
                prompts = array.shape[-1]
                asked.setdefault(prompts, rng.integers(prompts, size=prompts))
            picked.append([array[..., asked[array.shape[-1]]] for array in runs[index]])
        rows.append(statistic(picked))
    return np.stack(rows)
