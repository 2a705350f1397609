"""python -m rl.report: one run anew, several over each other, and what is no run."""

from __future__ import annotations

import json
from pathlib import Path

from rl.report import ReportConfig, main


def run_folder(folder: Path, lr: float) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"lr": lr}))
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "reward": lr}) + "\n")
    return folder


def test_one_run_gets_its_page(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "one", 0.1)
    assert main(ReportConfig((folder,))) == folder / "report.html"
    assert "reward: 0.1 → 0.1" in (folder / "report.html").read_text(encoding="utf-8")


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    folders = run_folder(tmp_path / "a" / "grpo", 0.1), run_folder(tmp_path / "b" / "grpo", 0.2)
    path = main(ReportConfig(folders, out=tmp_path / "new" / "both.html"))
    page = path.read_text(encoding="utf-8")
    assert "a/grpo: reward" in page and "b/grpo: reward" in page
    assert "What differs between the runs." in page
