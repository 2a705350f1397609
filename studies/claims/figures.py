"""What the figures of claims share: a mean with its runs behind it, and seeds side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness.files import save_figure
from studies.claims.rules import FAILED, HELD, UNTOLD, Results, Run, points

COLORS = "#0072B2", "#D55E00", "#009E73", "#7F7F7F"  # distinct without colour vision
MARKS = "os^D"
STEPS = "step (32 answers each)"


Draw = Callable[[Any, Results], None]  # on matplotlib's axes


def curves(
    shown: Mapping[str, str], *,
    xlabel: str = STEPS, ylabel: str = "accuracy", key: str = "accuracy", against: str = "step",
    scale: float = 1.0,
) -> Draw:  # fmt: skip
    """One number of the measured points against another, times `scale`: {arm: what to call it}."""

    def draw(axis: Any, results: Results) -> None:
        for (arm, name), color, mark in zip(shown.items(), COLORS, MARKS, strict=False):
            runs = list(results[arm].values())
            length = min(len(points(run, key)) for run in runs)
            x, y = (np.array([points(run, k)[:length] for run in runs]) for k in (against, key))
            x = scale * x
            axis.plot(x.T, y.T, "-", color=color, linewidth=0.6, alpha=0.3)
            axis.plot(x.mean(0), y.mean(0), mark + "-", color=color, markersize=4, label=name)
        axis.legend(fontsize=8, frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set(xlabel=xlabel, ylabel=ylabel)

    return draw


def seeds(shown: Mapping[str, tuple[str, Callable[[Run], float]]], *, ylabel: str) -> Draw:
    """A number of every run, one column each: {what to call it: (arm, number)}. A line joins a seed's."""

    def draw(axis: Any, results: Results) -> None:
        table = []
        for place, (arm, number) in enumerate(shown.values()):
            table.append({seed: number(run) for seed, run in results[arm].items()})
            mean = float(np.mean(list(table[-1].values())))
            axis.plot([place - 0.2, place + 0.2], [mean, mean], "-", color="black", linewidth=2)
        for seed in set.intersection(*map(set, table)):
            values = [column[seed] for column in table]
            axis.plot(values, "o-", color=COLORS[0], linewidth=0.6, markersize=4, alpha=0.6)
        axis.set_xticks(range(len(shown)), list(shown), fontsize=8)
        axis.set(xlim=(-0.4, len(shown) - 0.6), ylabel=ylabel)
        axis.spines[["top", "right"]].set_visible(False)

    return draw


# --- all verdicts in one picture ------------------------------------------------------------------

REACH = 6.0  # half widths on either side of the line; what lies further is drawn at the end, as an arrow
LOOKS = {HELD: ("#009E73", "o"), FAILED: ("#D55E00", "X"), UNTOLD: ("#7F7F7F", "s")}


def at_a_glance(records: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """One row a claim: its effect beyond the least that counts, in half widths of its 95% interval."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1.2 + 0.5 * len(records)), layout="tight")
    axis = figure.subplots()
    for place, record in enumerate(records.values()):
        color, mark = LOOKS[record["verdict"]]
        beyond = max(-REACH, min(REACH, record["beyond"]))
        near = beyond == record["beyond"]
        if record["mean"] is None:
            axis.text(0, place, "too few seeds", ha="center", va="center", color=color)
        else:
            shape = mark if near else "<" if beyond < 0 else ">"
            error: dict[str, Any] = dict(xerr=1, capsize=3) if near else {}
            axis.errorbar(beyond, place, fmt=shape, color=color, markersize=9, **error)
        axis.text(REACH + 0.6, place, record["verdict"], va="center", color=color, weight="bold")
    axis.axvline(0, color="black", linewidth=1)
    axis.grid(axis="y", color="#EEEEEE")
    axis.set_yticks(range(len(records)), [record["title"] for record in records.values()])
    axis.set(xlim=(-REACH - 0.4, REACH + 0.4), ylim=(len(records) - 0.5, -0.5))
    axis.set_xlabel("effect less the least that counts (1: half of its 95% interval)")
    axis.set_title("speaks against it", loc="left", fontsize=10, color=LOOKS[FAILED][0])
    axis.set_title("speaks for it", loc="right", fontsize=10, color=LOOKS[HELD][0])
    axis.spines[["top", "right", "left"]].set_visible(False)
    save_figure(figure, path)
