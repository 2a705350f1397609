"""python -m rl.report: one run anew, several over each other, and what is no run."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UserError
from harness.files import append_jsonl, write_json
from rl.report import ReportConfig, main


def run_folder(folder: Path, lr: float) -> Path:
    write_json(folder / "config.json", {"lr": lr})
    append_jsonl(folder / "metrics.jsonl", [{"step": 1, "reward": lr}])
    return folder


def test_one_run_gets_its_page(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "one", 0.1)
    assert main(ReportConfig((folder,))) == folder / "report.html"
    assert "reward: 0.1" in (folder / "report.html").read_text(encoding="utf-8")


# Groups of seeds


def seed_folder(folder: Path, seed: int, gold: float, **flags) -> Path:
    write_json(folder / "config.json", {"seed": seed, **flags})
    append_jsonl(folder / "metrics.jsonl", [{"step": 1, "reward": 9.0}])
    write_json(folder / "report.json", {"after": {"gold": gold}})
    return folder


def table_of(runs, capsys) -> str:
    main(ReportConfig(tuple(runs), group=True))
    return capsys.readouterr().out


def test_groups_are_compared_seed_by_seed(tmp_path: Path, capsys) -> None:
    """The differences are 0.1, 0.2, 0.3: 0.2 +- 4.303 * 0.1 / sqrt 3, and so is the baseline's spread."""
    base, mine = (
        [seed_folder(tmp_path / name / f"s{i}", i, gold) for i, gold in enumerate(golds)]
        for name, golds in (("base", [0.5, 0.6, 0.7]), ("mine", [0.6, 0.8, 1.0]))
    )
    table = table_of([*base, *reversed(mine)], capsys)
    assert "0.6 [0.3516, 0.8484]" in table and "0.2 [-0.04841, 0.4484]" in table
    assert "reward" not in table and "differ" not in table


def test_groups_of_other_seeds_are_compared_by_welch(tmp_path: Path, capsys) -> None:
    """With 3.235 degrees of freedom, by hand; a run with another flag is named."""
    runs = [seed_folder(tmp_path / "a" / f"{i}", i, g) for i, g in enumerate([1.0, 2.0, 3.0, 4.0])]
    runs += [seed_folder(tmp_path / "b" / f"{i}", i, g) for i, g in [(7, 2.0), (8, 4.0), (9, 6.0)]]
    assert "1.5 [-2.542, 5.542]" in table_of(runs, capsys)
    table = table_of([*runs[:4], seed_folder(tmp_path / "c" / "1", 1, 3.0)], capsys)
    assert "one seed" in table
    assert "lr" in table_of([runs[0], seed_folder(tmp_path / "a" / "9", 9, 3.0, lr=2)], capsys)


@pytest.mark.parametrize("seeds, gold", [([0, 1, 0], 1.0), ([[0], [1]], 1.0), ([0, 1], None)])
def test_no_table_of_one_seed_twice_odd_seeds_or_unfinished_runs(seeds, gold, tmp_path, capsys):
    runs = [seed_folder(tmp_path / "a" / f"{i}", seed, gold) for i, seed in enumerate(seeds)]
    with pytest.raises(UserError):
        table_of(runs, capsys)
