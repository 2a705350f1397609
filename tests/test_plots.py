"""What the pages show: diagrams."""

from __future__ import annotations

from pathlib import Path

import pytest
from course import diagrams

FIGURES = Path(diagrams.FIGURES)


# The diagrams ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", diagrams.PICTURES)
def test_a_committed_diagram_is_what_the_code_draws(name: str) -> None:
    stored = (FIGURES / f"{name}.svg").read_text(encoding="utf-8")
    advice = "run python notebooks/course/diagrams.py"
    assert stored == diagrams.PICTURES[name]().svg(), advice
