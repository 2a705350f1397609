"""Code beside the paper: every line of a box has its code, and every marker its line."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "site"))

import boxes
import pytest
from boxes import ROOT

ENGINES = boxes.engines()


@pytest.mark.parametrize("engine", ENGINES)
def test_box_markers_and_line_map_fit_each_other(engine: str) -> None:
    assert boxes.problems(engine) == []


def test_every_box_has_an_engine_and_a_place_of_its_own() -> None:
    assert sorted(path.stem for path in boxes.FOLDER.glob("*.md")) == ENGINES
    places = sorted(int(boxes.read_box(engine).fields["order"]) for engine in ENGINES)
    assert places == list(range(1, len(ENGINES) + 1))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_box_names_exists(engine: str) -> None:
    """Its page of the course, and the functions elsewhere that carry out a line."""
    box = boxes.read_box(engine)
    assert {"idea", "paper", "arxiv", "box", "notebook", "watch"} <= box.fields.keys()
    assert len([*ROOT.glob(f"notebooks/[0-9][0-9]_{box.fields['notebook']}.ipynb")]) == 1
    for name in (name for line in box.lines for name in line.see):
        module, function = name.rsplit(".", 1)
        source = (ROOT / f"{module.replace('.', '/')}.py").read_text("utf-8")
        assert f"def {function}(" in source or f"class {function}" in source, name
