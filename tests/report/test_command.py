"""python -m report: one run anew, several over each other, and what is no run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.errors import UserError
from harness.files import append_jsonl, write_json
from report.__main__ import ReportConfig, main


def run_folder(folder: Path, seed: Any = 0, gold: float | None = None, **flags: float) -> Path:
    write_json(folder / "config.json", {"seed": seed, **flags})
    append_jsonl(folder / "metrics.jsonl", [{"step": 1, "reward": 9.0}])
    write_json(folder / "report.json", {"after": {"gold": gold}})
    return folder


def test_one_run_gets_its_page(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "one")
    assert main(ReportConfig((folder,))) == folder / "report.html"
    assert "reward: 9" in (folder / "report.html").read_text(encoding="utf-8")


# Groups of seeds


def table_of(runs, capsys) -> str:
    main(ReportConfig(tuple(runs), group=True))
    return capsys.readouterr().out


def test_groups_are_compared_seed_by_seed(tmp_path: Path, capsys) -> None:
    """The differences are 0.1, 0.2, 0.3: 0.2 +- 4.303 * 0.1 / sqrt 3, and so is the baseline's spread."""
    base, mine = (
        [run_folder(tmp_path / name / f"s{i}", i, gold) for i, gold in enumerate(golds)]
        for name, golds in (("base", [0.5, 0.6, 0.7]), ("mine", [0.6, 0.8, 1.0]))
    )
    table = table_of([*base, *reversed(mine)], capsys)
    assert "0.6 [0.3516, 0.8484]" in table and "0.2 [-0.04841, 0.4484]" in table
    assert "reward" not in table and "differ" not in table
    other = run_folder(tmp_path / "other" / "s9", 9, 0.25, lr=2)
    assert table_of([*base, other], capsys).split()[-5:] == "0.25 no seed in common".split()
    assert table_of([*base, mine[1]], capsys).split()[-2:] == ["0.8", "0.2"]  # no interval of one
    other = run_folder(tmp_path / "base" / "s9", 9, 0.25, lr=2)
    assert "base: flags differ: lr" in table_of([*base, other], capsys)


@pytest.mark.parametrize("seeds, gold", [([0, 1, 0], 1.0), ([[0], [1]], 1.0), ([0, 1], None)])
def test_no_table_of_one_seed_twice_odd_seeds_or_unfinished_runs(seeds, gold, tmp_path, capsys):
    runs = [run_folder(tmp_path / "a" / f"{i}", seed, gold) for i, seed in enumerate(seeds)]
    with pytest.raises(UserError):
        table_of(runs, capsys)
