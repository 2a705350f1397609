"""What a run folder holds for its readers: the doctor, the page and the tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, variance
from typing import Any

from harness.errors import UserError
from harness.files import display_path, parse_json, read_object

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """What rules, pages and tables read of a run folder; empty where nobody kept it."""

    rows: Sequence[Row]  # metrics.jsonl, in order
    flags: Row = field(default_factory=dict)  # config.json
    results: Row = field(default_factory=dict)  # report.json
    folder: Path = Path()

    @property
    def label(self) -> str:
        return display_path(self.folder)

    def values(self, key: str) -> list[float]:
        """The finite numbers that were logged under `key`, in order."""
        found = [row[key] for row in self.rows if isinstance(row.get(key), int | float)]
        return [float(value) for value in found if math.isfinite(value)]

    def start(self, key: str, count: int = 5) -> float:
        """Mean of the first `count` values; NaN without any, which no comparison is true of."""
        return fmean(self.values(key)[:count] or [math.nan])

    def end(self, key: str, count: int = 5) -> float:
        """Mean of the last `count` values; NaN without any."""
        return fmean(self.values(key)[-count:] or [math.nan])

    def thirds(self, key: str, fewest: int = 6) -> tuple[float, float, float]:
        """Means of the first and last third, standard error of their difference; NaN of too few."""
        values = self.values(key) if len(self.values(key)) >= fewest else [math.nan] * 6
        third = len(values) // 3
        first, last = values[:third], values[-third:]
        return fmean(first), fmean(last), math.sqrt((variance(first) + variance(last)) / third)

    @property
    def spread(self) -> float:
        """Standard deviation of the first steps' rewards; 0 where it was not logged."""
        return fmean(self.values("reward_std")[:5] or [0.0])

    @property
    def solved(self) -> bool:
        """Whether a rule checks the answers and nearly all are right: no spread is left then."""
        return "solve_rate" in self.rows[-1] and self.end("reward") > 0.8


def runs_among(paths: Sequence[Path]) -> list[Run]:
    """The runs among paths such as runs/*, and a line about those that are none. UserError for no run."""
    if not paths:
        raise UserError("no run is named: give one run folder or several")
    others = [display_path(path) for path in paths if not (path / "metrics.jsonl").is_file()]
    if len(others) == len(paths):
        raise UserError(f"there is no metrics.jsonl in {', '.join(others)}: name a run folder")
    if others:
        print(f"no run, having no metrics.jsonl: {', '.join(others)}")
    return [read_run(path) for path in paths if (path / "metrics.jsonl").is_file()]


def read_run(folder: Path) -> Run:
    """The run of a folder; what is missing there or cut off is empty."""
    flags, results = read(folder / "config.json"), read(folder / "report.json")
    return Run(lines(folder / "metrics.jsonl"), flags, results, folder)


def read(path: Path) -> dict[str, Any]:
    """A JSON object, empty where there is none that can be read."""
    try:
        return read_object(path)
    except (OSError, UserError):
        return {}


def lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file that can be read; a page is also made of a damaged run."""
    rows = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        with suppress(ValueError):
            rows.append(parse_json(line))
    return [row for row in rows if isinstance(row, dict)]
