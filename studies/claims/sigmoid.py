"""Reward over compute as a sigmoid, fitted to a third of a run, beside two rivals."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from report.style import COLOURS, SERIES
from studies.claims.rules import Effect, Results, Run, points

Array = NDArray[np.float64]
SHARE = 3  # a fit sees one part of so many
END = 30  # batches at the end whose mean reward is predicted
LAST = 15  # batches whose mean a constant goes on with
EXPONENTS = np.geomspace(0.25, 4, 17)
MIDDLES = np.geomspace(2, 2000, 31)


def best_line(shapes: Sequence[Array], rewards: Array, begin: float) -> tuple[int, float]:
    """Which shape g (steps,), 0 to 1, fits begin + (A - begin) g best, and its A in begin..1."""
    errors, tops = [], []
    for shape in shapes:
        top = begin + float(shape @ (rewards - begin) / (shape @ shape))
        tops.append(min(max(top, begin), 1.0))
        errors.append(float(np.square(begin + (tops[-1] - begin) * shape - rewards).sum()))
    place = int(np.argmin(errors))
    return place, tops[place]


def sigmoid(rewards: Array, steps: Array, begin: float) -> Array:
    """R = R0 + (A - R0) / (1 + (C_mid / C)^B), its A, B, C_mid by least squares; at `steps`."""
    shapes = [lambda C, B=B, M=M: 1 / (1 + (M / C) ** B) for B in EXPONENTS for M in MIDDLES]
    seen = np.arange(1.0, len(rewards) + 1)
    place, top = best_line([shape(seen) for shape in shapes], rewards, begin)
    return begin + (top - begin) * shapes[place](steps)


def power_law(rewards: Array, steps: Array, begin: float) -> Array:
    """R = A - D / C^B, its A <= 1, D >= 0 and B by least squares; at `steps`."""
    best: tuple[float, Array] | None = None
    seen = np.arange(1.0, len(rewards) + 1)
    for B in EXPONENTS:
        shape = seen**-B
        D = max(-float(np.cov(shape, rewards)[0, 1] / np.var(shape, ddof=1)), 0.0)
        A = min(float(rewards.mean() + D * shape.mean()), 1.0)
        error = float(np.square(A - D * shape - rewards).sum())
        if best is None or error < best[0]:
            best = error, A - D * steps**-B
    assert best is not None
    return best[1]


def constant(rewards: Array, steps: Array, begin: float) -> Array:
    """The mean of the last batches that were seen."""
    return np.full_like(steps, rewards[-LAST:].mean())


Forecast = Callable[[Array, Array, float], Array]
FORECASTS: dict[str, Forecast] = {"sigmoid": sigmoid, "power law": power_law, "constant": constant}


def error(run: Run, forecast: Forecast) -> float:
    """|predicted - actual| mean reward of the last batches, from the first third of the run."""
    rewards, begin = np.array(run["curve"]["reward"]), points(run, "accuracy")[0]
    steps = np.arange(len(rewards) - END + 1.0, len(rewards) + 1)
    predicted = forecast(rewards[: len(rewards) // SHARE], steps, begin)
    return abs(float(predicted.mean() - rewards[-END:].mean()))


def error_of(forecast: Forecast) -> Effect:
    return lambda runs: error(runs["grpo-long"], forecast)


def saved(rival: Forecast) -> Effect:
    """How much smaller the sigmoid's error is than a rival's."""
    return lambda runs: error(runs["grpo-long"], rival) - error(runs["grpo-long"], sigmoid)


def without_time(results: Results) -> Results:
    """The batches in random order, where a run is a constant and nothing else."""
    shuffled = {}
    for seed, run in results["grpo-long"].items():
        rewards = list(run["curve"]["reward"])
        random.Random(seed).shuffle(rewards)
        begin = {"accuracy": [sum(rewards) / len(rewards)]}
        shuffled[seed] = {"curve": {"reward": rewards}, "points": begin}
    return {"grpo-long": shuffled}


def draw(axis: Any, results: Results) -> None:
    """The run of the lowest seed, and three curves fitted to its first third."""
    seed = min(results["grpo-long"])
    run = results["grpo-long"][seed]
    rewards = np.array(run["curve"]["reward"])
    steps, seen = np.arange(1.0, len(rewards) + 1), len(rewards) // SHARE
    axis.plot(steps, rewards, ".", color=COLOURS["gold"], alpha=0.35, label="reward of a batch")
    axis.axvline(seen, color=COLOURS["reference"], linewidth=1)
    axis.text(seen + 2, 0.03, "not seen by the fits", fontsize=9, color=COLOURS["reference"])
    lines = zip(FORECASTS.items(), SERIES, ("-", "--", ":"), strict=False)
    for (name, forecast), colour, line in lines:
        drawn = forecast(rewards[:seen], steps, points(run, "accuracy")[0])
        axis.plot(steps, drawn, color=colour, linestyle=line, label=name)
    ends = len(steps) - END, len(steps)
    axis.hlines(rewards[-END:].mean(), *ends, COLOURS["exact"], linewidth=3, label="its end")
    axis.set(xlabel=f"batches of seed {seed}", ylabel="reward", ylim=(0, 1.02))
    axis.legend(fontsize=9, ncols=2)
