"""Means over seeds with intervals: of groups of runs, and of the difference of two groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import UserError
from report.doctor import Run
from report.page import PLACES, flat
from report.words import MEASURED

LEVEL = 0.95
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
    names = sorted(p_values, key=lambda name: p_values[name])
    steps = [(len(names) - place) * p_values[name] for place, name in enumerate(names)]
    adjusted = np.minimum(np.maximum.accumulate(steps), 1.0).tolist() if names else []
    found = dict(zip(names, adjusted, strict=True))
    return {name: found[name] for name in p_values}


@cache
def t_quantile(freedom: float) -> float:
    """The t beyond which, on both sides together, 5% lie."""
    low, high = 0.0, 1e4
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tails(middle, freedom) > 1 - LEVEL else (low, middle)
    return high


def t_interval(values: Sequence[float]) -> dict[str, float]:
    """Mean of n >= 2 runs, its 95% interval by Student's t, and the p-value of a mean of 0."""
    mean, freedom = float(np.mean(values)), len(values) - 1
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = t_quantile(freedom) * error if error else 0.0
    p = t_tails(mean / error, freedom) if error else float(mean == 0)
    return {"mean": mean, "low": mean - half, "high": mean + half, "p": p}


# --- groups of runs -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Runs that differ by their seed, and lie in one folder."""

    name: str
    runs: Mapping[Any, Run]  # by seed

    def values(self, key: str) -> dict[Any, float]:
        """A final number of each run, by seed."""
        return {seed: measured(run)[key] for seed, run in self.runs.items()}

    @property
    def differing(self) -> list[str]:
        """Flags that its runs do not share."""
        every = [run.flags for run in self.runs.values()]
        names = {name for flags in every for name in flags}.difference(OWN)
        return sorted(n for n in names if any(flags.get(n) != every[0].get(n) for flags in every))


def measured(run: Run) -> dict[str, float]:
    """A run's last numbers on validation prompts and held-out text, and report.json's on test prompts."""
    last = {
        k: value for row in run.rows for k, value in row.items() if k.startswith(tuple(MEASURED))
    }
    after = run.results.get("after", run.results)
    return flat(last | {"test": after if isinstance(after, Mapping) else {}})


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs by the folder that they lie in. UserError if a group has the same seed twice."""
    groups: dict[Path, dict[Any, Run]] = {}
    for run in runs:
        group, seed = groups.setdefault(run.folder.resolve().parent, {}), run.flags.get("seed")
        if seed in group:
            same = f"{group[seed].label} and {run.label}"
            raise UserError(f"{same} have the same seed, {seed}: leave one of them out")
        group[seed] = run
    return [Group(place.name, members) for place, members in groups.items()]


def shown(values: Sequence[float]) -> str:
    """Their mean, of several with its interval."""
    if len(values) < 2:
        return f"{values[0]:.4g}" if values else "no seed in common"
    found = t_interval(values)
    return f"{found['mean']:.4g} [{found['low']:.4g}, {found['high']:.4g}]"


def group_table(runs: Sequence[Run]) -> str:
    """A line for each number that all runs were tested or validated on, and notes on it.

    Differences to the first group are between runs of the same seed.
    """
    groups, numbers = grouped(runs), [measured(run) for run in runs]
    first, *others = groups
    head = [f"{group.name} ({len(group.runs)} seeds)" for group in groups]
    rows = [["", *head, *(f"{group.name} - {first.name}" for group in others)]]
    for key in numbers[0]:
        if all(key in each for each in numbers):
            base, *rest = [group.values(key) for group in groups]
            means = [list(values.values()) for values in (base, *rest)]
            apart = [[of[seed] - base[seed] for seed in of if seed in base] for of in rest]
            rows.append([key, *map(shown, means + apart)])
    if len(rows) == 1:
        raise UserError("the runs share no final number: name finished ones, of one kind")
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    lines += [f"{g.name}: flags differ: {', '.join(g.differing)}" for g in groups if g.differing]
    return "\n".join(lines)
