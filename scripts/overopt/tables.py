"""Rows of the numbers: Markdown tables, the cells that they share, and which differences are sure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from overopt.intervals import SURE

Numbers = Mapping[str, Any]
BUDGET_DISTANCES = (1.0, 2.0, 4.0, 6.0)  # nats
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


def surely(rows: Iterable[Numbers]) -> tuple[list[Numbers], list[Numbers]]:
    """The rows whose difference is above 0 after the correction, and those where it is below."""
    sure = [row for row in rows if row["difference"]["holm"] < SURE]
    above = [row for row in sure if row["difference"]["mean"] > 0]
    return above, [row for row in sure if row["difference"]["mean"] < 0]


def distance_view(distance: float) -> str:
    """The name of gold at one KL, in nats, among the views."""
    return f"kl_{distance:g}"


def farthest_for_all(rows: Iterable[Numbers]) -> float | None:
    """The largest distance that every run of GRPO reaches."""
    whole = {r["view"] for r in rows if r["engine"] == "grpo" and r["reached"] == r["of"]}
    return max((d for d in BUDGET_DISTANCES if distance_view(d) in whole), default=None)


def repeats_text(rows: Sequence[Numbers], titles: Mapping[str, str]) -> str:
    """What came of each run that was made once more; nothing before one was."""
    return "".join(f"{repeat_sentences(row, titles)}\n\n" for row in rows)


def repeat_sentences(row: Numbers, titles: Mapping[str, str]) -> str:
    """Whether the same seed is equal, and where a new seed is not as expected."""
    outcome = "is equal in every measurement" if row["equal"] else "**is not equal**"
    missed = [missed_text(m, titles) for m in row["measures"] if not inside(m)]
    count = len(row["measures"])
    text = (
        f"Made once more with the same seed, `{row['run']}` {outcome}. With a new seed it lies inside "
        f"{count - len(missed)} of {count} interval{'s' * (count > 1)} for a new run"
    )
    return text + (f". Outside: {'; '.join(missed)}." if missed else ".")


def missed_text(measure: Numbers, titles: Mapping[str, str]) -> str:
    """A measure that is not where it was expected."""
    title = titles[measure["of"]]
    if measure["value"] is None:
        return f"{title}, which it does not reach"
    return f"{title}, {measure['value']:.3f} {between(measure['expected'])}"


def inside(measure: Numbers) -> bool:
    """Whether a new seed ended where a new run is expected."""
    low, high = measure["expected"]
    return measure["value"] is not None and low <= measure["value"] <= high
