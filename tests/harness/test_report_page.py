"""report.html and show_tokens: text stays text, files stay small, and a bad run still has a page."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt.pretraining import PretrainingConfig
from harness.report import writing
from harness.report.page import curve_svg, page_html, panels_of, read_run, running_mean
from harness.report.tokens import show_tokens

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
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if isinstance(content, list):
            text = "".join(json.dumps(row) + "\n" for row in content)
            (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
        else:
            (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def hostile_run(folder: Path, text: str = HOSTILE) -> Path:
    finding = dict.fromkeys(("rule", "severity", "evidence", "cause", "remedy"), text)
    return write_run(
        folder,
        config={"data": text, text: 1},
        page={"title": text, "findings": [finding],
              "before_after": [{"prompt": text, "before": text, "after": text}]},
        metrics=[{"step": 1, "reward": 1.0, text: 2.0, f"seconds/{text}": 1.0}],
        samples=[{"step": 1, "prompt": text, "response": text}],
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


def test_numbers_that_are_not_finite_are_named(tmp_path: Path) -> None:
    """NaN is no JSON, and 10**400 no float: the curve has holes, and the caption says where."""
    values = [1.0, float("nan"), 2.0, 10**400]
    rows = [{"step": step, "loss": value} for step, value in enumerate(values, start=1)]
    run = dataclasses.replace(read_run(write_run(tmp_path)), rows=rows)
    (panel,) = panels_of([run])
    assert panel["series"][0]["y"] == [1.0, None, 2.0, None] and panel["broken"] == "loss at step 2"
    assert "Not finite: loss at step 2" in page_html([run])


def test_a_damaged_folder_still_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2}\nnonsense\n{"st')
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "report.json").write_text("[1]")
    assert "panel-0" in page_html([read_run(tmp_path)])


def test_a_share_has_an_axis_from_0_to_1_and_a_mean_does_not_lag() -> None:
    """Two ticks are 0 and 1 whatever was measured; of a ramp the running mean is the ramp."""
    series = {"x": [10, 20, 30, 40], "y": [0.4, 0.5, 0.5, 0.6], "dots": False}
    ticks = [
        re.findall(r">(\d\.\d+)</text>", curve_svg([series | {"colour": "k"}], None, share=share))
        for share in (True, False)
    ]
    assert {"0.0", "1.0"} <= set(ticks[0]) and not {"0.0", "1.0"} & set(ticks[1])
    assert running_mean([1.0, 2.0, 3.0, 4.0, 5.0]) == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_the_summary_says_what_a_run_gained(tmp_path: Path) -> None:
    results = {"before": {"gold": 0.47}, "after": {"gold": 0.9, "kl": 5.43}}
    page = page_html([read_run(write_run(tmp_path, report=results))])
    assert "gold 0.47 → 0.90, KL 5.4 nats, doctor: nothing found" in page


# Writing ------------------------------------------------------------------------------------------


def test_a_page_that_fails_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    writing.open_page(tmp_path, "pretraining", PretrainingConfig())

    def fail(runs: object) -> str:
        raise RuntimeError("no room")

    monkeypatch.setattr(writing, "page_html", fail)
    writing.refresh(tmp_path)
    assert "was not written (RuntimeError: no room)" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.json"]


# show_tokens --------------------------------------------------------------------------------------


def test_padded_tensors_and_lists_of_responses() -> None:
    values = {
        "kl": torch.tensor([[1.0, 2.0, 0.0], [3.0, 4.0, 5.0]]),
        "entropy": [[1, 2], [3, 4, 5]],
    }
    view = show_tokens([["a", "b"], ["c", "d", "e"]], values, prompts=["p", "q"])
    assert [row["values"]["kl"] for row in view.rows] == [[1.0, 2.0], [3.0, 4.0, 5.0]]
    assert [row["prompt"] for row in view.rows] == ["p", "q"]
    assert [q["name"] for q in view.data()["quantities"]] == ["kl", "entropy"]


@pytest.mark.parametrize("values", [[0.5], {"kl": [[0.5]]}, {"kl": []}])
def test_missing_numbers_are_refused(values: Any) -> None:
    with pytest.raises(ValueError, match="response 0, which has 2 tokens"):
        show_tokens(["a", "b"], values)
