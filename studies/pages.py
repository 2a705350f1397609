"""Tables of pages, from recorded numbers alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.files import save_figure
from harness.paths import REPOSITORY
from report.style import styled

Numbers = Mapping[str, Any]
DOCS = REPOSITORY / "docs"
TEST, UNSEEN = "test", "held_out_items"  # where the demo measures


def spread(values: Sequence[float], digits: int) -> str:
    """ "mean (lowest to highest)", the one number, or a dash where there is none."""
    if not values:
        return "-"
    mean = average(values, digits)
    if len(values) == 1:
        return mean
    return f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def average(values: Sequence[float], digits: int) -> str:
    """The mean, or a dash where there is none."""
    return f"{statistics.fmean(values):.{digits}f}" if values else "-"


def rounded(value: Any, digits: int = 4) -> Any:
    """Numbers as they are written down: four decimals, wherever they stand in it."""
    return each_number(value, lambda number: round(number, digits))


def significant(value: Any, digits: int = 4) -> Any:
    """Numbers with so many digits, wherever they stand in it."""
    return each_number(value, lambda number: float(f"{number:.{digits}g}"))


def each_number(value: Any, change: Callable[[float], float]) -> Any:
    """What JSON holds of a value, with each of its floating-point numbers changed."""
    if isinstance(value, Mapping):
        return {str(key): each_number(each, change) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [each_number(each, change) for each in value]
    return change(value) if isinstance(value, float) else value


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    every = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(line) + " |" for line in every]


@contextmanager
def drawing(path: Path, width: float, height: float) -> Iterator[Any]:
    """A figure of so many inches in the style that all share; it is saved at the end."""
    from matplotlib.figure import Figure

    with styled():
        figure = Figure(figsize=(width, height))
        yield figure
        save_figure(figure, path)


# --- the demo's seeds -----------------------------------------------------------------------------


def column(rows: Sequence[Mapping[str, Any]], who: str, key: str, where: str = TEST) -> list[float]:
    """A number of every seed; none where it was not measured."""
    values = [row[where][who][key] for row in rows]
    return [] if None in values else values


def summary(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The four contestants: mean (lowest to highest) over the seeds."""
    shown = (("gold", TEST, 3), ("win_rate", TEST, 3), ("kl", TEST, 1), ("gold", UNSEEN, 3))
    lines = []
    for name in rows[0][TEST]:
        cells = [spread(column(rows, name, key, where), digits) for key, where, digits in shown]
        lines.append([name, *(f"**{cell}**" if name == "GRPO" else cell for cell in cells)])
    head = ["gold reward", "win rate over base", "KL (nats)", "gold, new items"]
    return markdown([f"{len(rows)} seeds", *head], lines)
