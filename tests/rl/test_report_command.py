"""python -m rl.report: one run anew, several over each other, and what is no run."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.files import append_jsonl, write_json
from rl import report
from rl.report import ReportConfig, main


def run_folder(folder: Path, lr: float) -> Path:
    write_json(folder / "config.json", {"lr": lr})
    append_jsonl(folder / "metrics.jsonl", [{"step": 1, "reward": lr}])
    return folder


def test_one_run_gets_its_page(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "one", 0.1)
    assert main(ReportConfig((folder,))) == folder / "report.html"
    assert "reward: 0.1" in (folder / "report.html").read_text(encoding="utf-8")


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    folders = run_folder(tmp_path / "a" / "grpo", 0.1), run_folder(tmp_path / "b" / "grpo", 0.2)
    path = main(ReportConfig(folders, out=tmp_path / "new" / "both.html"))
    page = path.read_text(encoding="utf-8")
    assert "a/grpo: reward" in page and "b/grpo: reward" in page
    assert "What differs between the runs." in page


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_what_is_no_run_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no run in .*name a run folder"):
        main(ReportConfig((tmp_path / name,)))
    with pytest.raises(UserError, match="no run is named"):
        main(ReportConfig(()))


# Groups of seeds


def seed_folder(folder: Path, seed: int, gold: float, kl: float, answers="", **flags) -> Path:
    """A run whose validations rise evenly to `gold` at `kl` nats; answers as "win", "tie" and "loss"."""
    write_json(folder / "config.json", {"seed": seed, "script": "s", **flags})
    for i in range(1, 5):
        row = {"step": i, "validation/gold": gold * i / 4, "validation/kl": kl * i / 4}
        append_jsonl(folder / "metrics.jsonl", [row])
    after = {"gold": gold, "kl": kl}
    write_json(folder / "report.json", {"before": {"gold": 0.0}, "after": after})
    worth = {"win": 2.0, "tie": 1.0, "loss": 0.0}
    written = [
        {"prompt": f"p{i}", "response": f"<b>{word}", "gold": worth[word]}
        for i, word in enumerate(answers.split())
    ]
    append_jsonl(folder / "test_answers.jsonl", written)
    return folder


def test_groups_are_compared_over_seeds(tmp_path: Path) -> None:
    base = [
        seed_folder(tmp_path / "base" / f"s{i}", i, g, 4.0, "tie tie tie tie", cap=1)
        for i, g in enumerate([0.5, 0.6, 0.7])
    ]
    mine = [
        seed_folder(tmp_path / "mine" / f"s{i}", i, g, 8.0, "win win tie loss", cap=2)
        for i, g in enumerate([0.6, 0.8, 1.0])
    ]
    out = tmp_path / "page.html"
    main(ReportConfig((*base, *reversed(mine)), group=True, out=out))
    page = out.read_text(encoding="utf-8")
    # differences by seed 0.1, 0.2, 0.3: 0.2 +- 4.303 * 0.1 / sqrt 3, t = 3.46 with 2 degrees of freedom
    assert "0.2 [-0.04841, 0.4484]" in page and "0.07418" in page and "paired t, 3 seeds" in page
    assert "0.6 [0.3516, 0.8484]" in page  # 4.303 * 0.1 / sqrt 3
    assert "KL is unequal: mine 8, base 4" in page and "Flags that differ: cap" in page
    assert "At 4 nats" in page and "mine 0.4 [" in page  # half-way to 0.6, 0.8 and 1.0
    assert re.search(r"higher gold .* in a share of\s+0\.625 \[0\.\d+, \d", page)
    assert "&lt;b&gt;win" in page and "<b>win" not in page
    with out.with_suffix(".csv").open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert len(table) == 24 and [row["test/gold"] for row in table[:4]] == ["", "", "", "0.5"]
    pairs = {(row["group"], row["seed"]) for row in table}
    assert pairs == {(group, seed) for group in ("base", "mine") for seed in "012"}
    with pytest.raises(UserError, match="page.html is there already"):
        main(ReportConfig((*base, *mine), group=True, out=out))


def test_unlike_seeds_are_compared_by_welch_and_few_are_remarked(tmp_path: Path) -> None:
    runs = [seed_folder(tmp_path / f"a-{i}", i, g, 4.0) for i, g in enumerate([1.0, 2.0, 3.0, 4.0])]
    runs += [seed_folder(tmp_path / f"b-{i}", i, g, 4.0) for i, g in [(7, 2.0), (8, 4.0), (9, 6.0)]]
    page = main(ReportConfig(tuple(runs), group=True, out=tmp_path / "x.html")).read_text("utf-8")
    assert "1.5 [-2.542, 5.542]" in page and "0.3338" in page  # 3.235 degrees of freedom, by hand
    assert "keep no answers" in page
    runs = [runs[0], seed_folder(tmp_path / "c-1", 1, 3.0, 4.0, lr=2)]
    page = main(ReportConfig(tuple(runs), group=True, out=tmp_path / "y.html")).read_text("utf-8")
    assert "one seed: no test" in page and "fewer than three seeds: 1" in page
    runs = [seed_folder(tmp_path / f"d-{i}", i, 1, 4.0) for i in (0, 1)]
    runs += [seed_folder(tmp_path / f"e-{i}", i, 2, 4.0) for i in (0, 1)]
    page = main(ReportConfig(tuple(runs), group=True, out=tmp_path / "w.html")).read_text("utf-8")
    assert "no spread over seeds" in page  # a t of infinity, which two seeds do not earn
    with pytest.raises(UserError, match="of one group"):
        main(ReportConfig((runs[0],), group=True, out=tmp_path / "z.html"))


def test_a_comparison_overwrites_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(report, "RUNS", tmp_path)
    runs = tuple(run_folder(tmp_path / name, lr) for name, lr in (("a", 0.1), ("b", 0.2)))
    names = [main(ReportConfig(runs)).name for _ in range(3)]
    assert names == ["comparison.html", "comparison.1.html", "comparison.2.html"]
