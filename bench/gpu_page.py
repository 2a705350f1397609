"""docs/gpu.md and docs/gpu.json: what bench/gpu.py has measured, and the targets beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from peer_tables import markdown_table, page_with

from harness.files import write_atomically, write_json
from harness.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "gpu.md"
RESULTS = PAGE.with_suffix(".json")
MARKS = ("<!-- written by bench/gpu.py: begin -->", "<!-- written by bench/gpu.py: end -->")

TITLES = {
    "correct": "Is it right?",
    "ceilings": "What the card can do",
    "decode": "Sampling",
    "update": "A policy update",
    "shapes": "New lengths and ragged ones",
    "kernels": "Where the time goes",
    "engines": "Whole steps",
}
# Section, number, at least, what it means.
TARGETS = (
    ("decode", "lengths, bfloat16", 0.5, "sampling: half of the bandwidth bound (bfloat16)"),
    ("update", "bfloat16", 0.4, "update: 40% of the matrix product (bfloat16)"),
    (
        "engines",
        "grpo beside TRL",
        3.0,
        "a GRPO step: 3 times as fast as TRL's with its `generate`",
    ),
)


def verdicts(results: Mapping[str, Any]) -> list[list[str]]:
    """A row per target: what was measured, and whether it was reached."""
    rows = []
    for section, number, least, words in TARGETS:
        measured = results.get(section, {}).get("numbers", {}).get(number)
        if measured is None:
            rows.append([words, "", "not measured"])
            continue
        said = f"{measured:.2f} times" if section == "engines" else f"{measured:.0%}"
        rows.append([words, said, "reached" if measured >= least else "missed"])
    return rows


def generated(found: Mapping[str, Any]) -> str:
    """The part between the marks: the template gpu.md.jinja."""
    template = jinja2.Template(
        Path(__file__).with_name("gpu.md.jinja").read_text(encoding="utf-8"), trim_blocks=True
    )
    targets = markdown_table(["target", "measured", ""], verdicts(found["sections"]))
    return template.render(**found, titles=TITLES, targets=targets, markdown_table=markdown_table)


def write_page(folder: Path, machine: Mapping[str, Any], sections: Mapping[str, Any]) -> Path:
    """Write gpu.json and gpu.md into `folder`; returns the page.

    Earlier sections stay if they are of the same card and size. What stands around the generated part
    is docs/gpu.md's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    results, page = folder / RESULTS.name, folder / PAGE.name
    earlier = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
    before = earlier.get("machine", {})
    same = all(before.get(key) == machine[key] for key in ("card", "toy"))
    merged = (earlier.get("sections", {}) if same else {}) | dict(sections)
    found = {"machine": dict(machine), "sections": merged}
    text = page_with(PAGE.read_text(encoding="utf-8"), generated(found), MARKS)
    write_json(results, found)
    write_atomically(page, lambda path: path.write_text(text, encoding="utf-8"))
    return page
