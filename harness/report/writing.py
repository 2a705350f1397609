"""When a run's page is written: opened at the start, refreshed at validations, closed at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.command_flags import Flags
from harness.files import display_path, write_json, write_text
from harness.ranks.collectives import on_main
from harness.report.page import ABOUT, REPORT, page_html, read, read_run


def open_page(folder: Path, script: str, config: Flags, title: str = "") -> None:
    """Note, once a run, what the page has to say of the script; from now on `refresh` writes it."""
    if vars(config).get("resume", False) and (folder / ABOUT).is_file():
        return
    named = title or f"{script} on {vars(config).get('data', '')}"
    write_json(folder / ABOUT, {"script": script, "title": named})


def add_to_page(folder: Path, **more: Any) -> None:
    """Add to what the page has been told, such as `before_after`: rows of prompt, before, after."""
    on_main(lambda: write_json(folder / ABOUT, read(folder / ABOUT, {}) | more))


def refresh(
    folder: Path, rows: Sequence[Mapping[str, Any]] | None = None, *, every: float = 0.0
) -> None:
    """Write report.html of a run whose page was opened; if that fails, say so and let the run go on.

    Not if the last one, or the run, is younger than `every` seconds.
    """
    on_main(lambda: _refresh(folder, rows, every))


def _refresh(folder: Path, rows: Sequence[Mapping[str, Any]] | None, every: float) -> None:
    if not (folder / ABOUT).is_file():
        return
    try:
        last = folder / (REPORT if (folder / REPORT).is_file() else ABOUT)
        if every and time.time() - last.stat().st_mtime < every:
            return
        write_text(folder / REPORT, page_html([read_run(folder, rows)]))
    except Exception as error:
        print(f"{folder / REPORT} was not written ({type(error).__name__}: {error})", flush=True)


def say_written(folder: Path) -> None:
    """Name the run's folder and what is to be looked at in it: what could not be written is not named."""
    names = (REPORT, "report.png", "report.json", "samples.jsonl")
    there = [name for name in names if (folder / name).exists()]
    print(f"wrote {display_path(folder)} ({', '.join(there)})")
