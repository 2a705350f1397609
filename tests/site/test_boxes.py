"""Code beside the paper: every line of a box has its code, and every marker its line."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "site"))

import boxes
import ledger
import pytest
from conftest import require_package
from overopt.settings import ENGINES as BUDGET

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
    assert [n for n in rows if not ledger.rows_of([n]) and n not in BUDGET] == []
    assert {"idea", "paper", "arxiv", "box", "notebook"} <= box.fields.keys()
    assert any(title.startswith("Where it differs") for title in box.sections)
    for name in (name for line in box.lines for name in line.see):
        module, function = name.rsplit(".", 1)
        source = (boxes.ROOT / f"{module.replace('.', '/')}.py").read_text("utf-8")
        assert f"def {function}(" in source or f"class {function}" in source, name


def test_a_page_shows_the_tables_that_its_engine_is_in() -> None:
    """Not those of GRPO alone; recorded pairs have a start of their own, and its rows."""
    require_package("latex2mathml", "make docs")
    import box_pages

    text = box_pages.study_table(boxes.read_box("pg_grpo"))
    assert "**Pairs**" in text and "**Reviews**" not in text and "**Sums**" not in text
    names = [row.split(" | ")[0] for row in text.split("|---|\n")[1].split("\n\n")[0].split("\n")]
    assert names[0] == "| pg_grpo_best_worst_1"
    assert names[2:] == ["| base model", "| grpo", "| pg_grpo_offline_1", "| pg_grpo_both_1"]
    assert "**Reviews**" in box_pages.study_table(boxes.read_box("grpo"))


# --- the checker itself --------------------------------------------------------------------------

ENGINE = '''"""An engine.

    line 1     start                                 policy
    line 2     for each batch                        steps
    lines 3-4  rewards, then advantages              reward_fn
"""


def loss(  # line 4
    a,
    b,
):
    """Doc."""
    return a


def train(
    config,
    policy,  # line 1
):
    for step in range(  # line 2
        config
    ):
        with config:  # lines 3-4
            x = 1
            y = 2
        # line 3
        z = [
            1,
        ]
    return x, y, z
'''
BOX = """# An engine
order: 1

## Box

- [1] start
- [2] **for** each batch
- [3] .. reward
- [4] .. advantage
- [5] .. more
  left out: not needed
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "rl").mkdir()
    (tmp_path / "boxes").mkdir()
    (tmp_path / "rl" / "small_engine.py").write_text(ENGINE, encoding="utf-8")
    (tmp_path / "boxes" / "small.md").write_text(BOX, encoding="utf-8")
    monkeypatch.setattr(boxes, "ROOT", tmp_path)
    monkeypatch.setattr(boxes, "FOLDER", tmp_path / "boxes")
    boxes.read_box.cache_clear()
    return tmp_path


def changed(folder: Path, file: str, old: str, new: str) -> list[str]:
    path = folder / file
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    boxes.read_box.cache_clear()
    return boxes.problems("small")


def test_a_marker_stands_for_the_smallest_thing_around_it(small: Path) -> None:
    """A whole function or block, a parameter, the head of a loop, the statement below."""
    assert boxes.markers("small") == {
        4: [(9, 14), (24, 26)],
        1: [(19, 19)],
        2: [(21, 23)],
        3: [(24, 26), (28, 30)],
    }
    assert boxes.line_map("small").keys() == {1, 2, 3, 4}
    assert boxes.problems("small") == []


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("boxes/small.md", "- [4] .. advantage\n", "", "marks line 4, which docs/boxes"),
        ("rl/small_engine.py", "policy,  # line 1", "policy,", "line 1 has no code"),
        ("rl/small_engine.py", "x = 1", "x = 1  # line 5", "is said to be left out"),
        ("rl/small_engine.py", "x = 1", "x = 1  # line 9", "marks line 9"),
        (
            "rl/small_engine.py",
            "    line 2     for",
            "    second     for",
            "missing in the line map",
        ),
        ("rl/small_engine.py", "    line 2     for", "    line 7     for", "maps line 7"),
    ],
)
def test_what_does_not_fit_is_said(small: Path, file: str, old: str, new: str, said: str) -> None:
    assert any(said in problem for problem in changed(small, file, old, new))


def test_a_box_that_cannot_be_read_is_named(small: Path) -> None:
    with pytest.raises(boxes.BoxError, match="not in order"):
        changed(small, "boxes/small.md", "- [4]", "- [1]")
    with pytest.raises(boxes.BoxError, match="is no line of a box"):
        changed(small, "boxes/small.md", "- [1] .. advantage", "advantage")
    (small / "boxes" / "small.md").unlink()
    boxes.read_box.cache_clear()
    with pytest.raises(boxes.BoxError, match="small.md is missing"):
        boxes.problems("small")
