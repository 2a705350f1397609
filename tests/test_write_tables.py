"""What is written of every engine is what scripts/write_tables.py would write now."""

from __future__ import annotations

import pickle

import pytest

from harness.paths import REPOSITORY
from rl.task import every_engine
from scripts import write_tables


@pytest.mark.parametrize("name", write_tables.TABLES)
def test_a_table_is_the_one_of_these_engines(name: str) -> None:
    """defaults.json too: README and docs/study.md were measured with those defaults.

    Who changes one measures again.
    """
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    assert text == write_tables.TABLES[name](), "run scripts/write_tables.py and read the diff"


@pytest.mark.parametrize("engine", every_engine(), ids=lambda engine: engine.name)
def test_an_engine_has_its_file_box_and_row(engine) -> None:
    assert engine.module == f"rl.{engine.name}_engine"
    assert pickle.loads(pickle.dumps(engine)) is engine  # as ranks that are spawned get it
    (box,) = (box for found, box in write_tables.boxes() if found is engine)
    assert box.title == engine.box
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    (_,) = (line for line in text.splitlines() if f"](rl/{engine.name}_engine.py) |" in line)
