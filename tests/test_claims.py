"""What pages say was measured is what the recordings hold: tables and tests of differences."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from studies.bootstrap import at_distance
from studies.pages import filled

from harness.paths import REPOSITORY
from harness.report.intervals import holm, t_interval, t_tails
from scripts import overoptimisation as study

DOCS = REPOSITORY / "docs"
NUMBERS = json.loads((DOCS / study.JSON).read_text(encoding="utf-8"))


def test_the_page_of_the_study_is_that_of_its_numbers() -> None:
    text, tables = (DOCS / study.PAGE).read_text(encoding="utf-8"), study.tables(NUMBERS)
    assert len(tables) == 5 and filled(text, tables) == text


def test_the_tables_of_one_budget_hold_their_recorded_means() -> None:
    text = (DOCS / "study.md").read_text(encoding="utf-8")
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


def curve(row: dict[str, Any], kl: float) -> float | None:
    points = row["points"]
    found = at_distance(np.array(points["kl"]), np.array(points["gold"])[:, None], kl)
    return None if found is None else float(found[0])


def mean_apart(own: list[Any], others: list[Any]) -> float | None:
    apart = [a - b for a, b in zip(own, others, strict=True) if None not in (a, b)]
    return float(np.mean(apart)) if apart else None


def start_means(runs: list[Any], key: str, name: str, base: str, kl: float) -> list[float]:
    """The difference of every start that has one, from the recorded curves."""

    def of(wanted: str, start: int) -> list[float | None]:
        return [curve(r, kl) for r in runs if (r[key], r["start"]) == (wanted, start)]

    starts = sorted({run["start"] for run in runs if run[key] == name})
    means = [mean_apart(of(name, start), of(base, start)) for start in starts]
    return [mean for mean in means if mean is not None]


@pytest.mark.parametrize("world", ["reviews", "sums", "mitigations"])
def test_differences_are_tested_over_starts(world: str) -> None:
    """At equal KL the start means follow from the curves; p and its correction from the start means."""
    mitigations = world == "mitigations"
    found = NUMBERS["cures"] if mitigations else NUMBERS["budget"][world]
    key, base = ("cure", "patient") if mitigations else ("engine", "grpo")
    by_view: dict[Any, list[Any]] = {}
    for row in found["table"]:
        if "difference" in row:
            by_view.setdefault(row["kl"] if mitigations else row["view"], []).append(row)
    distances = {f"kl_{kl}": kl for kl in (1, 2, 4, 6)}
    for view, rows in by_view.items():
        for row in rows:
            told = row["difference"]
            kl = view if mitigations else distances.get(view)
            if kl is not None:
                means = start_means(found["runs"], key, row[key], base, kl)
                assert told["by_start"] == pytest.approx(means, abs=3e-4), (view, row[key])
            assert ("p" in told) == (len(told.get("by_start", [])) >= 3)
        tested = {row[key]: row["difference"] for row in rows if "p" in row["difference"]}
        p_values = {name: t_interval(told["by_start"])["p"] for name, told in tested.items()}
        assert {n: t["p"] for n, t in tested.items()} == pytest.approx(p_values, abs=2e-3)
        corrected = holm({name: told["p"] for name, told in tested.items()})
        assert {n: t["holm"] for n, t in tested.items()} == pytest.approx(corrected, abs=2e-3)


def test_the_trends_are_corrected_for_their_number() -> None:
    rows = NUMBERS["law"]["trends"]
    fits = [fit["kind"] for fit in NUMBERS["law"]["fits"]]
    p = {
        str(i): t_tails(r["slope"] / r["error"], fits.count(r["kind"]) - 2)
        for i, r in enumerate(rows)
    }
    assert [row["p"] for row in rows] == pytest.approx(list(p.values()), abs=3e-3)
    assert [row["holm"] for row in rows] == pytest.approx(list(holm(p).values()), abs=2e-2)


@pytest.mark.parametrize(("freedom", "t"), [(1, 12.706), (2, 4.303), (4, 2.776), (18, 2.101)])
def test_the_tails_of_student(freedom: int, t: float) -> None:
    """Quantiles of the table: 5% lie beyond them, on both sides together."""
    assert t_tails(t, freedom) == pytest.approx(0.05, abs=1e-4)
    assert t_tails(-t, freedom) == t_tails(t, freedom) and t_tails(0, freedom) == 1
