"""Comparing engines: each seed once an engine, finished runs kept, a table and a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import compare
import pytest

from harness.errors import UserError
from harness.files import write_json


def made(folder: Path, engine: str, flags: list[Any], resume: bool) -> None:
    """What a run leaves behind, without training: the mine engine is better by 0.2."""
    folder.mkdir(parents=True)
    seed = flags[-1]
    better = 0.2 if compare.name_of(engine) == "mine" else 0.0
    (folder / "metrics.jsonl").write_text(
        "".join(f'{{"step": {s}, "reward": {s * 0.1 + better + seed}}}\n' for s in (1, 2, 3))
    )
    write_json(folder / "config.json", {"script": engine, "seed": seed})
    write_json(folder / "report.json", {"prompts": 4, "after": {"reward": seed + better}})


def test_the_difference_is_paired_seed_by_seed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seeds differ by 1 and engines by exactly 0.2: only a pairing has an interval of no width."""
    monkeypatch.setattr(compare, "run_stage", made)
    compare.main(compare.CompareConfig(("my/mine_engine.py", "rl.grpo_engine"), out=tmp_path))
    (line,) = [s for s in (tmp_path / "table.txt").read_text().splitlines() if "reward" in s]
    assert line.endswith("0.2 [0.2, 0.2]")
    assert (tmp_path / "compare.png").stat().st_size > 1000
    with pytest.raises(UserError):
        compare.main(compare.CompareConfig(("rl.grpo_engine",), out=tmp_path))
