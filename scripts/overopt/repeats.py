"""A few runs made once more: equal with the same seed, and with a new one where the rows expect it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from studies.pages import between
from studies.runner import is_done

from overopt.cells import Numbers
from overopt.plan import repeat_name

Expected = Mapping[str, Sequence[float]]  # the interval of a new run, by what is measured


def repeated(
    root: Path,
    run: str,
    expected: Expected,
    values_of: Callable[[Path], Mapping[str, float | None]],
) -> dict[str, Any] | None:
    """Whether a run is equal once more, and what a new seed gives; None before both are made."""
    same, new = (repeat_name(run, kind) for kind in ("same_seed", "new_seed"))
    if not all(is_done(root, name) for name in (run, same, new)):
        return None
    values = values_of(root / new)
    return {
        "run": run,
        "equal": equal_but_for_seconds(root / run, root / same),
        "measures": [
            {"of": name, "value": values[name], "expected": list(interval)}
            for name, interval in expected.items()
        ],
    }


def equal_but_for_seconds(one: Path, other: Path) -> bool:
    """Whether every measurement of two runs, per prompt, is the same to the last bit."""
    first, second = (torch.load(folder / "points.pt") for folder in (one, other))
    names = set(first) - {"seconds"}
    return names == set(second) - {"seconds"} and all(
        torch.equal(first[name], second[name]) for name in names
    )


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
