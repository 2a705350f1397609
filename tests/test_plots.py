"""What the pages show: differences and diagrams."""

from __future__ import annotations

from pathlib import Path

import pytest
from course import diagrams, plots

FIGURES = Path(diagrams.FIGURES)


def test_neighbours_differ_in_the_algorithm_alone() -> None:
    """RLOO has one loop less than GRPO, and comes first in it: that alone moves no line."""
    rows = plots.difference_text(**plots.nano_pair("grpo", "rloo")).splitlines()
    assert rows[:2] == ["# - nano/grpo.py", "# + nano/rloo.py"]
    assert "- for _ in range(epochs):" in rows and "+ loss = (loss * m).sum(1).mean()" in rows
    assert not [
        row for row in rows if "optimizer" in row or "rewards = " in row or row[:3] == "+  "
    ]


# The diagrams ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", diagrams.PICTURES)
def test_a_committed_diagram_is_what_the_code_draws(name: str) -> None:
    stored = (FIGURES / f"{name}.svg").read_text(encoding="utf-8")
    advice = "run python notebooks/course/diagrams.py"
    assert stored == diagrams.PICTURES[name]().svg(), advice
