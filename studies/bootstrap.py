"""Means over starts and prompts with bootstrapped intervals, and values at an equal KL."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from report.intervals import LEVEL, t_interval

Array = NDArray[np.float64]
DRAWS = 2000
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


def resampled(values: Array, rng: np.random.Generator, draws: int = DRAWS) -> Array:
    """Means of a hierarchical bootstrap, (draws,), of (starts, prompts).

    Starts are drawn with replacement, and once for all of them the prompts. NaN rows, runs without a
    value, are left out of a mean.
    """
    starts, prompts = values.shape
    means = np.empty(draws)
    for draw in range(draws):
        chosen = rng.integers(starts, size=starts)
        asked = rng.integers(prompts, size=prompts)
        picked = values[chosen][:, asked]
        means[draw] = np.nanmean(picked) if np.isfinite(picked).any() else np.nan
    return means[np.isfinite(means)]


def interval(means: Array) -> tuple[float, float]:
    """The central 95% of bootstrapped numbers."""
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def mean_with_interval(values: Array) -> dict[str, float]:
    """Mean of (starts, prompts) with its 95% interval; NaN runs are left out and counted."""
    low, high = interval(resampled(values, np.random.default_rng(0)))
    reached = int(np.isfinite(values).all(axis=1).sum())
    return {"mean": float(np.nanmean(values)), "low": low, "high": high, "runs": reached}


def paired_difference(values: Array, others: Array) -> dict[str, Any]:
    """values - others, run by run and prompt by prompt, (starts, prompts) each.

    The mean with its bootstrapped interval, each start's mean and, from three starts on, the p of a
    t-test over those: prompts within a start are no independent starts.
    """
    apart = values - others
    low, high = interval(resampled(apart, np.random.default_rng(0)))
    by_start = [float(np.nanmean(start)) for start in apart if np.isfinite(start).any()]
    found = {"mean": float(np.nanmean(apart)), "low": low, "high": high, "by_start": by_start}
    return found | ({"p": t_interval(by_start)["p"]} if len(by_start) >= FEWEST_STARTS else {})
