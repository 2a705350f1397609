"""What the pages show: source, differences, tables, diagrams and the flip-book, in a script and as HTML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch
from course import diagrams, flipbook, plots
from matplotlib.colors import to_hex

from rl.equations.advantages import group_advantages, leave_one_out_advantages

FIGURES = Path(diagrams.FIGURES)


@pytest.fixture
def rich(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The HTML that a notebook would get."""
    shown: list[str] = []
    for module in (plots, flipbook):
        monkeypatch.setattr(module, "show", lambda html, text: shown.append(html))
    return shown


def test_a_difference_has_signs_beside_its_colours(rich: list[str]) -> None:
    text = plots.difference_text(group_advantages, leave_one_out_advantages)
    assert "- def group_advantages(" in text
    assert any(line.startswith("+ def leave_one_out") for line in text.splitlines())
    plots.difference(group_advantages, leave_one_out_advantages)
    assert plots.REMOVED in rich[0] and plots.ADDED in rich[0]
    assert plots.difference_text(
        "a = 1\nb = 2\nc = 3\nd = 4", "a = 1\nb = 2\nc = 3\nd = 5", context=1
    ) == ("# - before\n# + after\n  ...\n  c = 3\n- d = 4\n+ d = 5")


def test_neighbours_differ_in_the_algorithm_alone() -> None:
    """RLOO has one loop less than GRPO, and comes first in it: that alone moves no line."""
    rows = plots.difference_text(**plots.nano_pair("grpo", "rloo")).splitlines()
    assert rows[:2] == ["# - nano/grpo.py", "# + nano/rloo.py"]
    assert "- for _ in range(epochs):" in rows and "+ loss = (loss * m).sum(1).mean()" in rows
    assert not [
        row for row in rows if "optimizer" in row or "rewards = " in row or row[:3] == "+  "
    ]


def test_plots_draw_what_they_are_given() -> None:
    plots.use()
    axis = plots.curves({"policy": [1, 2, 3], "other": ([0, 2], [5, 5])}, [0, 1, 2], xlabel="step")
    lines = {line.get_label(): line for line in axis.get_lines()}
    assert lines["policy"].get_color() == plots.COLOURS["policy"]
    assert list(lines["other"].get_xdata()) == [0, 2] and axis.get_xlabel() == "step"
    smooth = plots.curves({"gold": torch.tensor([0.0, 2.0, 4.0])}, smooth=2).get_lines()[-1]
    assert list(smooth.get_ydata()) == [0.0, 1.0, 3.0]
    bars = plots.bars({"k1": [1, 2], "k3": [3, 4]}, ["a", "b"], ylabel="nats")
    assert [bar.get_height() for bar in bars.patches] == [1, 2, 3, 4]
    turns = plots.bars({"one": 1, "two": 2}, styles={"two": 0}).patches
    assert [to_hex(bar.get_facecolor()).upper() for bar in turns] == [plots.SERIES[0]] * 2
    heat = plots.heat([[1.0, -2.0], [0.5, None]], signed=True)
    assert [text.get_text() for text in heat.texts] == ["1.00", "-2.00", "0.50", ""]
    counts = plots.histograms({"policy": [0.0, 1.0, 1.0], "reference": [0.0]}, bins=2)
    assert "policy, mean 0.667" in counts.get_legend_handles_labels()[1]
    plt.close("all")


# The diagrams ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", diagrams.PICTURES)
def test_a_committed_diagram_is_what_the_code_draws(name: str) -> None:
    stored = (FIGURES / f"{name}.svg").read_text(encoding="utf-8")
    advice = "run python notebooks/course/diagrams.py"
    assert stored == diagrams.PICTURES[name]().svg(), advice


# The flip-book --------------------------------------------------------------------------------------


def a_step(**changes: Any) -> dict[str, Any]:
    return {
        "prompt": "Review the lamp.",
        "tokens": [["Good", " lamp", "<eos>"], ["Bad", "<eos>"]],
        "rewards": torch.tensor([1.0, 0.0]),
        "advantages": torch.tensor([[0.7], [-0.7]]),
        "push": torch.tensor([[0.1, 0.2, 0.1], [-0.3, -0.1, 9.0]]),
        "before": torch.tensor([[0.5, 0.2, 0.9], [0.4, 0.8, 9.0]]),
        "after": torch.tensor([[0.6, 0.3, 0.9], [0.1, 0.7, 9.0]]),
    } | changes


def test_the_flip_book_tells_the_step_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    flipbook.step(**a_step())
    printed = capsys.readouterr().out
    order = ["prompt", "answers", "rewards", "advantages", "push on each token", "probabilities"]
    places = [printed.index(f"{i + 1}. The {word}") for i, word in enumerate(order)]
    assert places == sorted(places)
    assert "The group's mean is 0.50" in printed
    assert "Bad(-0.30)" in printed and "Good(+0.10)" in printed, "push, then change"
    assert "9.0" not in printed, "padding is cut off"
    assert flipbook.frames_of(**a_step())[flipbook.THE_PUSH].title == "The push on each token"
