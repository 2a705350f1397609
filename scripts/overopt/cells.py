"""Cells that the page's tables share, and which differences are significant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from studies.bootstrap import SIGNIFICANT
from studies.pages import between

Numbers = Mapping[str, Any]
COMMAND = "python scripts/overoptimisation.py"


def value_of(row: Numbers) -> str:
    """Mean and interval, or that no run got there."""
    if "mean" not in row:
        return "not reached"
    return f"{row['mean']:.3f} {between((row['low'], row['high']))}"


def difference(row: Numbers) -> tuple[str, str]:
    if "difference" not in row:
        return "-", "-"
    d = row["difference"]
    p = f"{d['holm']:.3f}" if "holm" in d else "-"
    return f"{d['mean']:+.3f} ({d['low']:+.3f} to {d['high']:+.3f})", p


def significant(row: Numbers) -> bool:
    """Whether a row's difference is, by the t-test over starts and Holm's correction."""
    return bool(row.get("difference", {}).get("holm", 1) < SIGNIFICANT)


def above_and_below(rows: Iterable[Numbers]) -> tuple[list[Numbers], list[Numbers]]:
    """The rows whose difference is above 0, and those where it is below."""
    rows = list(rows)
    above = [row for row in rows if row["difference"]["mean"] > 0]
    return above, [row for row in rows if row["difference"]["mean"] < 0]
