"""Markdown tables and the cells that several of them share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Numbers = Mapping[str, Any]
COMMAND = "python scripts/overoptimisation.py"
NOT_RUN = f"Not run yet: `{COMMAND} --parts {{part}}`, then `{COMMAND} --draw {{part}}`.\n\n"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n\n"


def between(pair: Sequence[float]) -> str:
    """(low to high)."""
    return f"({pair[0]:.3f} to {pair[1]:.3f})"


def value_of(row: Numbers) -> str:
    """Mean and interval, or that no run got there."""
    if "mean" not in row:
        return "not reached"
    return f"{row['mean']:.3f} {between((row['low'], row['high']))}"


def difference(row: Numbers) -> tuple[str, str]:
    """The two last cells of a table's row."""
    if "difference" not in row:
        return "-", "-"
    d = row["difference"]
    return f"{d['mean']:+.3f} ({d['low']:+.3f} to {d['high']:+.3f})", f"{d['holm']:.3f}"
