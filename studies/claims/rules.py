"""What a claim is, and how a number per seed becomes held, not seen or undecided here.

A claim's rule is written before its runs. It reduces the runs of one seed to an effect, and names the
least effect that would count. Held here: the mean over seeds is significantly above it. Not seen here:
significantly below it. Anything else is undecided here, and so are fewer than five seeds with an effect.
The p-value is corrected for all claims together. A control puts runs whose answer is known to be no in
the place of the claim's own: for it the same rule must not say "held here".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from report.intervals import t_interval
from studies.bootstrap import SIGNIFICANT, at_distance

HELD, FAILED, UNTOLD = "held here", "not seen here", "undecided here"
FEWEST = 5  # seeds with an effect; fewer tell nothing
LAST = 2  # measured points whose mean is where a run ends: less noise than the last alone
SHARE_OF_GAIN = 0.8  # of the smallest gain in accuracy: where runs are compared
LEAST_GAIN = 0.05  # a smaller one is noise

Run = Mapping[str, Any]  # what an arm's job has kept of one seed
Results = Mapping[str, Mapping[int, Run]]  # arm -> seed -> run


@dataclass(frozen=True)
class Verdict:
    """An effect over seeds, held against the least that counts."""

    unit: str
    least: float
    values: Mapping[int, float]  # seed -> effect
    mean: float | None  # None of too few seeds
    low: float | None  # of the 95% interval of the mean
    high: float | None
    p: float  # of the mean being the least; two-sided
    corrected: float  # the same, for all claims together

    @property
    def beyond(self) -> float:
        """The mean beyond the least that counts, in half widths of its interval."""
        if self.mean is None or self.low is None or self.high is None:
            return 0.0
        return (self.mean - self.least) / max((self.high - self.low) / 2, 1e-12)

    @property
    def word(self) -> str:
        if self.corrected >= SIGNIFICANT:
            return UNTOLD
        return HELD if self.beyond > 0 else FAILED


Effect = Callable[[Mapping[str, Run]], float | None]  # of the runs of one seed, by arm


@dataclass(frozen=True)
class Rule:
    """An effect per seed, None where a seed has none, and the least that counts."""

    unit: str
    least: float
    effect: Effect

    def __call__(self, results: Results) -> Verdict:
        values = of_seeds(results, self.effect)
        if len(values) < FEWEST:
            return Verdict(self.unit, self.least, values, None, None, None, 1.0, 1.0)
        found = t_interval(list(values.values()))
        p = t_interval([value - self.least for value in values.values()])["p"]
        ends = found["mean"], found["low"], found["high"]
        return Verdict(self.unit, self.least, values, *ends, p, p)


@dataclass(frozen=True)
class Weakest:
    """Several rules that must all hold: the verdict is that of the one that is furthest from it.

    All hold if it does. That one of so many failed is told by chance more often: its p is multiplied.
    """

    rules: tuple[Rule, ...]

    def __call__(self, results: Results) -> Verdict:
        verdict = min((rule(results) for rule in self.rules), key=lambda found: found.beyond)
        p = min(verdict.p * len(self.rules), 1.0) if verdict.beyond < 0 else verdict.p
        return replace(verdict, p=p, corrected=p)


@dataclass(frozen=True)
class Control:
    """Runs whose answer is known to be no, in the place of the claim's: `swap(results)`."""

    title: str
    swap: Callable[[Results], Results]


@dataclass(frozen=True)
class Claim:
    """Everything that decides one claim; docs/claims.md has its source and its words."""

    title: str  # the claim as a sentence
    arms: tuple[str, ...]
    rule: Rule | Weakest
    control: Control
    draw: Callable[[Any, Results], None]  # on matplotlib's axes
    found: str  # what the figure shows: its title
    # Other numbers of the page, by their names: they decide nothing.
    also: Mapping[str, Effect] = field(default_factory=dict)


# --- what rules are made of -----------------------------------------------------------------------


def of_seeds(results: Results, effect: Effect) -> dict[int, float]:
    """An effect of each seed that every arm has."""
    seeds = sorted(set.intersection(*(set(runs) for runs in results.values())))
    found = {seed: effect({arm: runs[seed] for arm, runs in results.items()}) for seed in seeds}
    return {seed: value for seed, value in found.items() if value is not None}


def instead(**arms: str) -> Callable[[Results], Results]:
    """A swap: the runs of one arm in the place of another's ("_" stands for "-")."""
    places = {arm.replace("_", "-"): by for arm, by in arms.items()}
    return lambda results: {**results, **{arm: results[by] for arm, by in places.items()}}


def points(run: Run, key: str) -> list[float]:
    """One number of every measured point of a run."""
    return list(run["points"][key])


def where(xs: Sequence[float], ys: Sequence[float], x: float) -> float | None:
    """y where a run first reaches x, linear between its points; None where it never does."""
    found = at_distance(np.array(xs, float), np.array(ys, float), x)
    return None if found is None else float(found)


def at_equal_accuracy(key: str, *runs: Run, share: float = SHARE_OF_GAIN) -> list[float] | None:
    """A number of each run where all first reach one accuracy; None where one of them gains too little.

    They share a start. The accuracy is a share of the way to what the worst of them reaches.
    """
    curves = [points(run, "accuracy") for run in runs]
    begin, gain = curves[0][0], min(max(curve) - curve[0] for curve in curves)
    if gain < LEAST_GAIN:
        return None
    level = begin + share * gain
    found = [where(c, points(run, key), level) for c, run in zip(curves, runs, strict=True)]
    return None if None in found else [value for value in found if value is not None]


def ahead(key: str, arm: str, base: str = "grpo", *, share: float = SHARE_OF_GAIN) -> Effect:
    """A number of one arm less that of another where both have the same accuracy."""

    def effect(runs: Mapping[str, Run]) -> float | None:
        found = at_equal_accuracy(key, runs[arm], runs[base], share=share)
        return None if found is None else found[0] - found[1]

    return effect


def log_ratio(key: str, arm: str, base: str = "grpo") -> Effect:
    """log(a number of one arm / that of another) where both have the same accuracy."""

    def effect(runs: Mapping[str, Run]) -> float | None:
        found = at_equal_accuracy(key, runs[arm], runs[base])
        return None if found is None else math.log(found[0] / found[1])

    return effect


def last(arm: str, key: str = "accuracy") -> Effect:
    return lambda runs: points(runs[arm], key)[-1]


def end(run: Run, key: str = "accuracy") -> float:
    kept = points(run, key)[-LAST:]
    return float(sum(kept) / len(kept))


def gap(arm: str, other: str, key: str = "accuracy") -> Effect:
    """How much further one arm ends than another."""
    return lambda runs: end(runs[arm], key) - end(runs[other], key)


def gain(arm: str, key: str = "accuracy") -> Effect:
    """How much further a run ends than it began."""
    return lambda runs: end(runs[arm], key) - points(runs[arm], key)[0]


def stopped_early(arm: str, by: str, measured: int = 2) -> Callable[[Results], Results]:
    """A swap: another arm's runs, as if they had ended at a measured point, known to have learned less."""

    def swap(results: Results) -> Results:
        runs = {}
        for seed, run in results[by].items():
            kept = {key: values[:measured] for key, values in run["points"].items()}
            runs[seed] = {**run, "points": kept}
        return {**results, arm: runs}

    return swap
