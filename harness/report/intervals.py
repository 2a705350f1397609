"""Means over seeds with intervals: of groups of runs, and of what sets two groups apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import UserError
from harness.files import display_path
from harness.report.page import PLACES, Run, final_numbers, flat

LEVEL = 0.95
MEASURED = ("test/", "validation/", "held_out_")
OWN = ("seed", "inputs", "made_with", *PLACES)  # what the runs of a group may differ in


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


# --- groups of runs -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Runs that differ by their seed, and lie in one folder."""

    name: str
    runs: Mapping[Any, Run]  # by seed

    def values(self, key: str) -> dict[Any, float]:
        """A final number of each run, by seed."""
        return {seed: flat(final_numbers(run))[key] for seed, run in self.runs.items()}

    @property
    def differing(self) -> list[str]:
        """Flags that its runs do not share."""
        every = [run.flags for run in self.runs.values()]
        names = {name for flags in every for name in flags}.difference(OWN)
        return sorted(n for n in names if any(flags.get(n) != every[0].get(n) for flags in every))


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs by the folder that they lie in. UserError if a group has the same seed twice."""
    groups: dict[Path, dict[Any, Run]] = {}
    for run in runs:
        group, seed = groups.setdefault(run.folder.resolve().parent, {}), run.flags.get("seed")
        if seed in group:
            same = f"{display_path(group[seed].folder)} and {display_path(run.folder)}"
            raise UserError(f"{same} have the same seed, {seed}: leave one of them out")
        group[seed] = run
    return [Group(place.name, members) for place, members in groups.items()]


def difference(group: Group, baseline: Group, key: str) -> dict[str, float]:
    """group - baseline: paired where both have the same seeds, else Welch's. Each has two or more."""
    values, others = group.values(key), baseline.values(key)
    if values.keys() == others.keys():
        return t_interval([values[seed] - others[seed] for seed in values])
    return welch(list(values.values()), list(others.values()))


def shown(found: Mapping[str, float]) -> str:
    """A mean with its interval."""
    return f"{found['mean']:.4g} [{found['low']:.4g}, {found['high']:.4g}]"


def group_table(runs: Sequence[Run]) -> str:
    """A line for each number that all runs were tested or validated on, and what to know beside it."""
    groups, numbers = grouped(runs), [flat(final_numbers(run)) for run in runs]
    first, *others = groups
    head = [f"{group.name} ({len(group.runs)} seeds)" for group in groups]
    rows = [["", *head, *(f"{group.name} - {first.name}" for group in others)]]
    for key in numbers[0]:
        if not key.startswith(MEASURED) or any(key not in other for other in numbers):
            continue
        means = [list(group.values(key).values()) for group in groups]
        cells = [shown(t_interval(v)) if len(v) > 1 else f"{v[0]:.4g}" for v in means]
        several = all(len(v) > 1 for v in means)
        cells += [shown(difference(g, first, key)) if several else "one seed" for g in others]
        rows.append([key, *cells])
    if len(rows) == 1:
        raise UserError("the runs share no final number: name finished ones, of one kind")
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    lines += [f"{g.name}: flags differ: {', '.join(g.differing)}" for g in groups if g.differing]
    return "\n".join(lines)
