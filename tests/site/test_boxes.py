"""Code beside the paper: every line of a box has its code, and every marker its line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "site"))

import boxes
import ledger
import pytest

ENGINES = boxes.engines()
each_engine = pytest.mark.parametrize("engine", ENGINES)


@each_engine
def test_box_markers_and_line_map_fit_each_other(engine: str) -> None:
    assert boxes.problems(engine) == []


def test_every_box_has_an_engine_and_a_place_of_its_own() -> None:
    assert sorted(path.stem for path in boxes.FOLDER.glob("*.md")) == ENGINES
    places = sorted(int(boxes.read_box(engine).fields["order"]) for engine in ENGINES)
    assert places == list(range(1, len(ENGINES) + 1))


@each_engine
def test_what_a_box_names_exists(engine: str) -> None:
    """Equations of the ledger, rows of the study, functions elsewhere, papers."""
    box = boxes.read_box(engine)
    named = [n for n in box.fields.get("equations", "").split(", ") if n]
    assert [n for n in named if n not in ledger.equations()] == []
    rows = [n for n in box.fields["study"].split(", ") if n]
    study = json.loads((boxes.ROOT / "docs" / "overoptimisation.json").read_text("utf-8"))
    recorded = [*study["budget"].values(), *study["later"].values()]
    on_a_budget = {run["engine"] for found in recorded for run in found["runs"]}
    assert [n for n in rows if not ledger.rows_of([n]) and n not in on_a_budget] == []
    assert {"idea", "paper", "arxiv", "box", "notebook"} <= box.fields.keys()
    assert any(title.startswith("Where it differs") for title in box.sections)
    for name in (name for line in box.lines for name in line.see):
        module, function = name.rsplit(".", 1)
        source = (boxes.ROOT / f"{module.replace('.', '/')}.py").read_text("utf-8")
        assert f"def {function}(" in source or f"class {function}" in source, name


# --- the checker itself --------------------------------------------------------------------------
