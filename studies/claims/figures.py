"""What the figures of claims share: a mean with its runs behind it, and seeds side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from report.style import COLOURS, SERIES
from studies.claims.rules import FAILED, HELD, UNTOLD, Results, Run, points
from studies.pages import drawing

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
        for (arm, name), color, mark in zip(shown.items(), SERIES, MARKS, strict=False):
            runs = list(results[arm].values())
            length = min(len(points(run, key)) for run in runs)
            x, y = (np.array([points(run, k)[:length] for run in runs]) for k in (against, key))
            x = scale * x
            axis.plot(x.T, y.T, "-", color=color, linewidth=0.6, alpha=0.25)
            axis.plot(x.mean(0), y.mean(0), mark + "-", color=color, markersize=5, label=name)
        axis.legend(fontsize=9)
        axis.set(xlabel=xlabel, ylabel=ylabel)

    return draw


def seeds(shown: Mapping[str, tuple[str, Callable[[Run], float]]], *, ylabel: str) -> Draw:
    """A number of every run, one column each: {what to call it: (arm, number)}. A line joins a seed's."""

    def draw(axis: Any, results: Results) -> None:
        table = []
        for place, (arm, number) in enumerate(shown.values()):
            table.append({seed: number(run) for seed, run in results[arm].items()})
            mean = float(np.mean(list(table[-1].values())))
            axis.plot(
                [place - 0.2, place + 0.2], [mean, mean], "-", color=COLOURS["exact"], linewidth=2
            )
        for seed in set.intersection(*map(set, table)):
            values = [column[seed] for column in table]
            axis.plot(values, "o-", color=SERIES[1], linewidth=0.6, markersize=4, alpha=0.6)
        axis.set_xticks(range(len(shown)), list(shown), fontsize=9)
        axis.set(xlim=(-0.4, len(shown) - 0.6), ylabel=ylabel)

    return draw


def write_verdict(axis: Any, verdict: str) -> None:
    """At the right of a figure's title: an undecided claim is not read as one of no difference."""
    colour = LOOKS[verdict][0]
    axis.set_title(f"claim: {verdict}", loc="right", color=colour, weight="bold", fontsize=9)


# --- all verdicts in one picture ------------------------------------------------------------------

REACH = 6.0  # half widths on either side of the line; what lies further is drawn at the end, as an arrow
LOOKS = {
    HELD: (COLOURS["gold"], "o"), FAILED: (COLOURS["bad"], "X"),
    UNTOLD: (COLOURS["reference"], "s"),
}  # fmt: skip


def at_a_glance(records: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """One row a claim: its effect and 95% interval beside the least effect that would count.

    Those furthest above it come first. Effects have many units: each is divided by half of its
    interval, so all intervals are as wide.
    """
    rows = sorted(records.values(), key=lambda record: -(record["beyond"] or 0.0))
    with drawing(path, 8.5, 1.5 + 0.42 * len(records)) as figure:
        axis = figure.subplots()
        for place, record in enumerate(rows):
            color, mark = LOOKS[record["verdict"]]
            beyond = max(-REACH, min(REACH, record["beyond"]))
            near = beyond == record["beyond"]
            if record["mean"] is None:
                axis.text(0, place, "too few seeds", ha="center", va="center", color=color)
            else:
                shape = mark if near else "<" if beyond < 0 else ">"
                error: dict[str, Any] = dict(xerr=1, capsize=3) if near else {}
                axis.errorbar(beyond, place, fmt=shape, color=color, markersize=8, **error)
            word = record["verdict"].removesuffix(" here")
            axis.text(
                REACH + 0.3, place, word, va="center", color=color, weight="bold", fontsize=9.5
            )
        axis.axvline(0, color=COLOURS["exact"], linewidth=1)
        axis.grid(axis="x", visible=False)
        titles = [record["title"] for record in rows]
        axis.set_yticks(range(len(rows)), titles, fontsize=9.5)
        axis.tick_params(axis="y", length=0)
        axis.set_xticks([])
        axis.set(xlim=(-REACH - 0.4, REACH + 0.2), ylim=(len(rows) - 0.5, -0.7))
        for text, side, x in (("less than would count", "right", -0.2), ("more", "left", 0.2)):
            axis.text(x, -0.75, text, ha=side, va="bottom", fontsize=9.5)
        axis.spines[["left", "bottom"]].set_visible(False)
        verdicts = [record["verdict"] for record in rows]
        held, failed, untold = (verdicts.count(word) for word in (HELD, FAILED, UNTOLD))
        figure.suptitle(
            f"Of {len(records)} claims {held} held here, {failed} were not seen and {untold} are undecided",
            x=0.01, ha="left", fontsize=11,
        )  # fmt: skip
