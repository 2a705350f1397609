"""The figures of a run: what is drawn, from which numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from rl.training.figures import plot_learning_curves

ROOT = Path(__file__).parents[3]


def test_an_engine_loads_no_figures():
    """Drawing is loaded by the end of a run, not by its beginning."""
    loaded = "[m for m in sys.modules if 'matplotlib' in m or 'figures' in m]"
    code = f"import sys, rl.grpo_engine; print({loaded})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.fixture
def figures(monkeypatch) -> list[Figure]:
    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *args, **kw: (drawn.append(self), save(self, *args, **kw))
    )
    return drawn


def test_learning_curves_have_labelled_axes(tmp_path, figures):
    rows = [
        {"step": i + 1, "reward": float(i), "kl": 0.1 * i, "response_length": 9.0, "entropy": 1.0}
        for i in range(6)
    ]
    rows[2]["validation/gold"], rows[5]["validation/gold"] = 0.25, 0.75
    path = tmp_path / "deep" / "curves.png"
    plot_learning_curves(rows, path, "GRPO on reviews", "exact match")
    assert path.read_bytes()[:4] == b"\x89PNG"
    axes = figures[0].axes
    assert [axis.get_xlabel() for axis in axes] == ["step"] * 5
    labels = [axis.get_ylabel() for axis in axes]
    assert all(labels) and len(set(labels)) == 5
    assert "nats per response" in labels[1] and "exact match" in labels[4]
    raw, mean = axes[0].get_lines()
    assert raw.get_xydata().tolist() == [[i + 1.0, float(i)] for i in range(6)]
    assert mean.get_ydata()[-1] == 3  # of 1 to 5
    assert axes[4].get_lines()[0].get_xydata().tolist() == [[3, 0.25], [6, 0.75]]
    assert figures[0].get_suptitle() == "GRPO on reviews"
