"""report.html and show_tokens: text stays text, files stay small, and a bad run still has a page."""

from __future__ import annotations

import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from harness.report import writing
from harness.report.page import page_html, read_run

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
    assert "loss: 2" in page_html([read_run(tmp_path)])


# Writing ------------------------------------------------------------------------------------------


def test_a_page_that_fails_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, config={})

    def fail(runs: object) -> str:
        raise RuntimeError("no room")

    monkeypatch.setattr(writing, "page_html", fail)
    writing.refresh(tmp_path)
    assert "was not written (RuntimeError: no room)" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json"]
