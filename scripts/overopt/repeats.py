"""A few runs made once more: equal with the same seed, and with a new one where the rows expect it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from overopt.jobs import is_done
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
