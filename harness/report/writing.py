"""When a run's page is written: at validations, and at the end, which also says what there is to see."""

from __future__ import annotations

import time
from pathlib import Path

from harness.files import display_path, write_text
from harness.ranks.collectives import on_main
from harness.report.page import REPORT, page_html, read_run
from harness.report.rules import as_text


def refresh(folder: Path, *, every: float = 0.0) -> None:
    """Write report.html of a run; if that fails, say so and let the run go on.

    Not where the last one, or the run, is younger than `every` seconds, nor without a config.json: then
    the folder is no run's.
    """
    on_main(lambda: _refresh(folder, every))


def _refresh(folder: Path, every: float) -> None:
    last = folder / (REPORT if (folder / REPORT).is_file() else "config.json")
    if not last.is_file() or (every and time.time() - last.stat().st_mtime < every):
        return
    try:
        write_text(folder / REPORT, page_html([read_run(folder)]))
    except Exception as error:
        print(f"{folder / REPORT} was not written ({type(error).__name__}: {error})", flush=True)


def conclude(folder: Path) -> None:
    """The last page of a run; in print what the doctor finds, and what in the folder is to be looked at."""
    refresh(folder)
    if findings := on_main(lambda: read_run(folder).findings):
        print(f"python -m rl.doctor {display_path(folder)} says:\n{as_text(findings)}")
    names = (REPORT, "report.png", "report.json", "samples.jsonl")
    there = [name for name in names if (folder / name).exists()]
    print(f"wrote {display_path(folder)} ({', '.join(there)})")
