"""What pages say was measured is what the recordings hold: tables and tests of differences."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from harness.paths import REPOSITORY
from report.intervals import holm, t_interval, t_tails
from studies.overoptimisation import __main__ as study
from studies.pages import filled

DOCS = REPOSITORY / "docs"
NUMBERS = json.loads((DOCS / study.JSON).read_text(encoding="utf-8"))


def test_the_page_of_the_study_is_that_of_its_numbers() -> None:
    text, tables = (DOCS / study.PAGE).read_text(encoding="utf-8"), study.tables(NUMBERS)
    assert len(tables) == 5 and filled(text, tables) == text


def test_the_tables_of_one_budget_hold_their_recorded_means() -> None:
    text = (DOCS / "archive.md").read_text(encoding="utf-8")
    part = text.split("<!-- one budget -->")[1].split("<!-- end of one budget -->")[0]
    tables = [
        [line.split(" | ") for line in t.splitlines()]
        for t in re.findall(r"(?m)(?:^\|.*\n)+", part)
    ]
    recorded = [found for group in ("budget", "later") for found in NUMBERS[group].values()]
    for table, found in zip(tables, recorded, strict=True):
        rows = {cells[0].strip("| "): " ".join(cells[1:]) for cells in table[2:]}
        assert rows.keys() == {row["engine"] for row in found["table"]}
        for row in found["table"]:
            if row["view"] in ("tokens", "kl_at_tokens"):
                assert f"{row['mean']:.3f}" in rows[row["engine"]], row["engine"]


def test_differences_of_mitigations_are_tested_over_starts() -> None:
    """p follows from the start means, and its correction from the mitigations of one distance."""
    by_distance: dict[float, list[Any]] = {}
    for row in NUMBERS["cures"]["table"]:
        if "difference" in row:
            by_distance.setdefault(row["kl"], []).append(row["difference"])
    for rows in by_distance.values():
        told = {str(place): row for place, row in enumerate(rows) if "p" in row}
        p_values = {place: t_interval(row["by_start"])["p"] for place, row in told.items()}
        assert {n: row["p"] for n, row in told.items()} == pytest.approx(p_values, abs=2e-3)
        corrected = holm({n: row["p"] for n, row in told.items()})
        assert {n: row["holm"] for n, row in told.items()} == pytest.approx(corrected, abs=2e-3)


@pytest.mark.parametrize(("freedom", "t"), [(1, 12.706), (2, 4.303), (4, 2.776), (18, 2.101)])
def test_the_tails_of_student(freedom: int, t: float) -> None:
    """Quantiles of the table: 5% lie beyond them, on both sides together."""
    assert t_tails(t, freedom) == pytest.approx(0.05, abs=1e-4)
    assert t_tails(-t, freedom) == t_tails(t, freedom) and t_tails(0, freedom) == 1
