"""What is written of every engine is what scripts/write_tables.py would write now."""

from __future__ import annotations

import pytest

from harness.paths import REPOSITORY
from scripts import write_tables


@pytest.mark.parametrize("name", write_tables.TABLES)
def test_a_table_is_the_one_of_these_engines(name: str) -> None:
    """defaults.json too: README and docs/archive.md were measured with those defaults.

    Who changes one measures again.
    """
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    assert text == write_tables.TABLES[name](), "run scripts/write_tables.py and read the diff"
