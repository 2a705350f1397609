"""What the figures of claims share: a mean with its runs behind it, and seeds side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from claim.rules import Results, Run

COLORS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#7F7F7F",
)  # as in the course: distinct without colour vision
MARKS = "os^D"


def curves(
    axis: Any,
    results: Results,
    shown: Mapping[str, str],
    *,
    key: str = "accuracy",
    per_step: float = 1.0,
) -> None:
    """One number of the measured points over steps (times `per_step`): {arm: what to call it}."""
    for (arm, name), color, mark in zip(shown.items(), COLORS, MARKS, strict=False):
        runs = list(results[arm].values())
        length = min(len(run["points"]) for run in runs)
        steps = [per_step * point["step"] for point in runs[0]["points"][:length]]
        table = np.array([[point[key] for point in run["points"][:length]] for run in runs])
        axis.plot(steps, table.T, color=color, linewidth=0.6, alpha=0.3)
        axis.plot(steps, table.mean(0), mark + "-", color=color, markersize=4, label=name)
    axis.legend(fontsize=8, frameon=False)
    axis.spines[["top", "right"]].set_visible(False)


def seeds(
    axis: Any, results: Results, shown: Mapping[str, tuple[str, Callable[[Run], float]]]
) -> None:
    """A number of every run, one column each: {what to call it: (arm, number)}. A line joins a seed's."""
    table = []
    for place, (arm, number) in enumerate(shown.values()):
        column = {seed: number(run) for seed, run in sorted(results[arm].items())}
        table.append(column)
        mean = float(np.mean(list(column.values())))
        axis.plot([place - 0.2, place + 0.2], [mean, mean], color="black", linewidth=2)
    for seed in set.intersection(*(set(column) for column in table)):
        values = [column[seed] for column in table]
        axis.plot(values, "o-", color=COLORS[0], linewidth=0.6, markersize=4, alpha=0.6)
    axis.set_xticks(range(len(shown)), list(shown), fontsize=8)
    axis.set_xlim(-0.4, len(shown) - 0.6)
    axis.spines[["top", "right"]].set_visible(False)
