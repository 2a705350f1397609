"""The files of nano/ are short, import nothing else of ours and run alone."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import pytest

from nano import gpt, rlhf

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for path in (ROOT / "nano").glob("*.py") if path.stem != "__init__")
PAPERS = [path.stem for path in FILES if path.stem not in ("gpt", "rlhf")]
MOST_LINES = {"rlhf": 430, "gpt": 180}  # and 120 for a paper


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_short(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MOST_LINES.get(path.stem, 120)
    assert max(map(len, lines)) <= 108  # 100 for code, which ruff holds


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_imports_torch_the_standard_library_and_nano_gpt(path: Path) -> None:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    ours = {"nano.gpt"} if path.stem in PAPERS else set()
    foreign = {name for name in found if name.split(".")[0] not in sys.stdlib_module_names}
    assert {name for name in foreign if name.split(".")[0] != "torch"} == ours


@pytest.fixture
def quick_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of pre-training in place of all."""
    real = gpt.pretrained
    monkeypatch.setattr(gpt, "pretrained", lambda **options: real(**options | {"steps": 2}))


@pytest.mark.parametrize("name", PAPERS)
def test_a_file_runs(name: str, quick_start: None, capsys: pytest.CaptureFixture[str]) -> None:
    importlib.import_module(f"nano.{name}").main(steps=1)
    assert "step   1" in capsys.readouterr().out


def test_all_of_rlhf_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every part, at a size at which nothing is learned."""
    monkeypatch.setattr(rlhf, "NEW_TOKENS", 6)
    measured = rlhf.main(seed=1, pretraining_steps=20, pairs=64, grpo_steps=2)
    assert list(measured) == ["start", "beta 0.4", "beta 0"]
    assert measured["start"]["kl"] == 0 and measured["beta 0"]["kl"] > 0
    assert "the fish was late :" in capsys.readouterr().out


@pytest.mark.slow
def test_rlhf_shows_its_lesson() -> None:
    """The whole program, for one seed."""
    measured = rlhf.main(seed=1)
    assert rlhf.verdict(*measured.values()) == (True, True)
