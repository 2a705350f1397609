"""report.html of one run and of several: text stays text, and a bad run still has a page."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from harness import run_folder as run_folders
from harness.errors import UserError
from harness.files import append_jsonl, write_json
from harness.paths import REPORT, REPOSITORY
from report.__main__ import ReportConfig, main
from report.doctor import Run, read_run
from report.intervals import measured
from report.page import page_html, panels_of, phases_of, results_of, running_mean, summary_of

HOSTILE = "<script>stolen()</script><img src=x onerror=stolen()></script><!--<script> & \"'\u2028"


class Tags(HTMLParser):
    """The tags of a page, and the text of its JSON."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data: list[str] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = ("type", "application/json") in attrs

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.data.append(data)
            self.inside = False


def token_row(step: int = 1, kind: str = "training", **changes: Any) -> dict[str, Any]:
    row = {
        "step": step, "kind": kind, "prompt": "p", "tokens": ["a", "b"],
        "values": {"advantage": [0.5, -1.0]}, "clipped": [0, 1], "notes": {"reward": 1.0},
    }  # fmt: skip
    return row | changes


def write_run(folder: Path, **files: Any) -> Path:
    """A run folder; a list becomes JSON lines."""
    for name, content in files.items():
        rows = isinstance(content, list)
        (append_jsonl if rows else write_json)(folder / f"{name}.json{'l' * rows}", content)
    return folder


def hostile_run(folder: Path, text: str = HOSTILE) -> Path:
    return write_run(
        folder,
        config={"script": text, "data": text, text: 1},
        metrics=[{"step": 1, text: 2.0, f"{text}!": math.nan, f"seconds/{text}": 1.0}],
        samples=[{"step": text, "prompt": text, "response": text, "data": text, text: 1.0}],
        tokens=[token_row(prompt=text, tokens=[text, text], kind=text,
                          values={text: [0.5, 1.0]}, notes={text: 1.0})],
        report={"before": {text: 1.0}, "after": {text: 2.0}, text: 3.0},
    )  # fmt: skip


# Text stays text ----------------------------------------------------------------------------------


def test_text_never_becomes_markup(tmp_path: Path) -> None:
    """The tags of a page do not depend on what is written in it, wherever that stands."""
    bad = Tags(page_html([read_run(hostile_run(tmp_path / "a"))]))
    good = Tags(page_html([read_run(hostile_run(tmp_path / "b", "harmless"))]))

    def shape(page: Tags) -> list[tuple[str, list[str]]]:
        return [(tag, sorted(attrs)) for tag, attrs in page.tags]

    assert shape(bad) == shape(good)
    assert {tag for tag, _ in bad.tags}.isdisjoint({"img", "iframe", "object", "form"})
    assert not [name for _, attrs in bad.tags for name in attrs if name.startswith("on")]


def test_json_in_a_page_says_what_was_put_in(tmp_path: Path) -> None:
    (view,) = Tags(page_html([read_run(hostile_run(tmp_path))])).data
    row = json.loads(view)["frames"][0]["rows"][0]
    assert row["tokens"] == [HOSTILE, HOSTILE] and row["prompt"] == HOSTILE
    assert "<" not in view and "\u2028" not in view


# What is on it ------------------------------------------------------------------------------------


def test_a_damaged_folder_still_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2}\nnonsense\n{"st')
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "report.json").write_text("[1]")
    assert "<figcaption>2</figcaption>" in page_html([read_run(tmp_path)])


def test_a_metric_that_is_zero_throughout_is_folded_and_a_name_leads_to_its_meaning(
    tmp_path: Path,
) -> None:
    rows = [{"step": step, "kl": 1e-4, "clip_high_fraction": step / 1000} for step in (1, 2, 3)]
    write_run(tmp_path, metrics=rows)
    page = page_html([read_run(tmp_path)])
    shown, folded = page.split("<details", 1)
    assert 'title="kl"' in shown and 'title="clip_high_fraction"' in folded
    tags = Tags(page).tags
    names = {attrs["id"] for _, attrs in tags if "id" in attrs}
    links = {str(attrs["href"])[1:] for tag, attrs in tags if tag == "a"}
    assert {"of-kl", "of-clip_high_fraction"} <= links and links <= names


def test_curves_and_results_are_named_in_words() -> None:
    """Every key of docs/metrics.md: as such it stands in a tooltip, and where the page explains it."""
    text = (REPOSITORY / "docs" / "metrics.md").read_text(encoding="utf-8")
    numbers = dict.fromkeys(re.findall(r"^\| `([^`]+)`", text, re.MULTILINE), 0.5)
    assert len(numbers) > 100
    run = Run([{**numbers, "step": step} for step in (1, 2)], {}, {"before": numbers, **numbers})
    panels, results = panels_of([run]), results_of(run)
    words = [panel["title"] for panel in panels] + [panel["ends"] for panel in panels]
    words += [row[0] for row in results["rows"] + results["rest"]]
    assert len(words) > 200 and [each for each in words if re.search(r"\w[_/]\w", each)] == []


# Drawn by another process ---------------------------------------------------------------------------


def test_a_page_is_drawn_by_a_process_and_a_failure_costs_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the tests' own way to draw pages
    monkeypatch.chdir(tmp_path)
    run = Path("-x")  # which is no flag
    write_run(run, metrics=[{"step": 1, "loss": 2.0}], config={})
    run_folders.write_report(run)
    assert "<figcaption>2</figcaption>" in (run / REPORT).read_text(encoding="utf-8")
    (run / REPORT).unlink()
    (run / REPORT).mkdir()
    run_folders.write_report(run)
    *_, advised, _ = capsys.readouterr().out.splitlines()
    assert "error: " in advised and advised.endswith("python -m report ./-x")
    monkeypatch.setattr(run_folders.sys, "executable", str(tmp_path / "no python"))
    run_folders.write_report(run)
    assert REPORT in capsys.readouterr().out.splitlines()[-2]


def run_folder(folder: Path, seed: Any = 0, gold: float | None = None, **flags: float) -> Path:
    write_json(folder / "config.json", {"seed": seed, **flags})
    append_jsonl(folder / "metrics.jsonl", [{"step": 1, "reward": 9.0}])
    write_json(folder / "report.json", {"after": {"gold": gold}})
    return folder


def test_one_run_gets_its_page(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "one")
    assert main(ReportConfig((folder,))) == folder / "report.html"
    assert "<figcaption>9</figcaption>" in (folder / "report.html").read_text(encoding="utf-8")


# Groups of seeds


def table_of(runs, capsys) -> str:
    main(ReportConfig(tuple(runs), group=True))
    return capsys.readouterr().out


def test_a_curve_is_smoothed_around_each_point() -> None:
    """Over five values, and fewer at both ends, as many on each side: no lag. What is NaN is left out."""
    nan = math.nan
    assert running_mean([1.0, 2.0, 3.0, 4.0, 100.0]) == [1, 2, 22, pytest.approx(107 / 3), 100]
    assert running_mean([1.0, nan, 3.0]) == [1, 2, 3] and math.isnan(running_mean([nan])[0])


def test_phases_and_results_by_hand() -> None:
    """Of two steps; each model of report.json is a column, and what is left stands below them."""
    rows = [{"seconds/update": 3.0, "seconds/rollout": 1.0}, {"seconds/update": 4.0, "reward": 9.0}]
    results = {
        "before": {"gold": 0.1, "gold_error": 0.01}, "after": {"gold": 0.4, "kl": 2.0}, "win_rate": 0.8,
        "best of 8": {"gold": 0.3, "gold_95": 0.05}, "pairs": 1200, "accuracy": 0.7,
        "accuracy_interval": [0.6, 0.8], "gold_change": 0.3, "gold_change_low": 0.2,
        "gold_change_high": 0.4, "odd_low": 1, "bad_interval": [1], "bad": 2, "rule": "words",
    }  # fmt: skip
    run = Run(rows, {}, results)
    assert phases_of(run) == [("update", 7.0, 3.5, 0.875), ("rollout", 1.0, 0.5, 0.125)]
    found = results_of(run)
    assert found["models"] == ["before", "after", "best of 8"]
    assert [cells for _, cells in found["rows"]] == [
        ["0.1 ± 0.02", "0.4", "0.3 ± 0.05"], ["", "2", ""], ["", "0.8", ""],
    ]  # fmt: skip
    assert [said for _, said in found["rest"]] == [
        "1,200", "0.7 (0.6 to 0.8)", "0.3 (0.2 to 0.4)", "1", "2",
    ]  # fmt: skip
    said = summary_of(run)
    assert "0.10 → 0.40" in said and "2.0 nats" in said and summary_of(Run(rows)) == ""


def test_a_runs_numbers_are_its_last_validation_and_its_test() -> None:
    """A number that a later row lacks is the one of the row before; those of training are none."""
    rows = [{"step": step, "reward": 9.0, "validation/kl": float(step)} for step in (1, 2)]
    rows += [{"step": 3, "reward": 9.0, "held_out_loss": 0.5}]
    run = Run(rows, {}, {"before": {"gold": 0.1}, "after": {"gold": 0.9}})
    found = measured(run)
    assert found == {"validation/kl": 2.0, "held_out_loss": 0.5, "test/gold": 0.9}


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


def test_metrics_as_a_table(tmp_path):
    """A row a step and a column a metric; a cell is empty where a step has no such number."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        rows = [{"step": 1, "reward": 0.5}, {"step": 2, "reward": None, "validation/kl": 1.25}]
        append_jsonl(tmp_path / name / "metrics.jsonl", rows)
    assert main(ReportConfig((tmp_path / "a", tmp_path / "b"), csv=True)) is None
    for name in ("a", "b"):
        table = (tmp_path / name / "metrics.csv").read_text("utf-8")
        assert table == "step,reward,validation/kl\n1,0.5,\n2,nan,1.25\n"
        assert {path.name for path in (tmp_path / name).iterdir()} == {
            "metrics.jsonl",
            "metrics.csv",
        }
