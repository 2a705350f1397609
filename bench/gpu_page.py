"""docs/gpu.md and docs/gpu.json: what bench/gpu.py has measured, and the targets beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.paths import REPOSITORY
from peer_tables import markdown_table

from harness.errors import UserError
from harness.files import write_atomically, write_json

PAGE = REPOSITORY / "docs" / "gpu.md"
RESULTS = PAGE.with_suffix(".json")
BEGIN = "<!-- written by bench/gpu.py: begin -->"
END = "<!-- written by bench/gpu.py: end -->"
TOY = "**Toy size**: this shows that the command works. Its numbers mean nothing."

TITLES = {
    "ceilings": "What the card can do",
    "decode": "Sampling",
    "update": "A policy update",
    "memory": "Memory against the forecast",
    "engines": "Whole steps",
    "demo": "The demo",
}
# Section, number, at least, what it means.
TARGETS = (
    ("decode", "captured, bfloat16", 0.5, "sampling: half of the bandwidth bound (bfloat16)"),
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


def section_text(name: str, result: Mapping[str, Any]) -> str:
    """A heading with a table, or with the reason why there is none."""
    title = f"### {TITLES[name]}"
    if "skipped" in result:
        return f"{title}\n\nSkipped: {result['skipped']}."
    table = markdown_table(result["columns"], result["rows"])
    notes = " ".join(result["notes"])
    return "\n\n".join(filter(None, [title, notes, table]))


def generated(found: Mapping[str, Any]) -> str:
    """The part between the markers."""
    machine, sections = found["machine"], found["sections"]
    of = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    cuda = f", CUDA {machine['cuda']}" if "cuda" in machine else ""
    size = f" ({machine['memory_gb']} GB)" if "memory_gb" in machine else ""
    head = f"Measured on **{machine['card']}**{size}, {of}{cuda}, {machine['date']}."
    targets = markdown_table(["target", "measured", ""], verdicts(sections))
    if machine["toy"]:
        targets = TOY
    parts = [section_text(name, sections[name]) for name in TITLES if name in sections]
    return "\n\n".join([head, targets, *parts])


def page_with(page: str, text: str) -> str:
    """The page with its generated part replaced. UserError if the markers are gone."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise UserError(f"docs/gpu.md lacks the lines {BEGIN} and {END}: put them back")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


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
    text = page_with(PAGE.read_text(encoding="utf-8"), generated(found))
    write_json(results, found)
    write_atomically(page, lambda path: path.write_text(text, encoding="utf-8"))
    return page
