"""The page of a run, which a process of its own draws: training loads nothing that only reads a run.

It is drawn once, when the steps have ended. At each validation it would take a core for two seconds, of
those that train; `python -m report RUN` draws a run that goes on whenever somebody wants to look.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from harness.files import display_path
from harness.paths import REPORT, REPOSITORY
from harness.ranks.collectives import is_main

PATIENCE = 300  # seconds for a page; the longest took ten


def conclude(folder: Path) -> None:
    """The page of a run that is complete; in print what the doctor finds, and what is to be looked at.

    A page that fails costs the run nothing but a sentence.
    """
    if not is_main():
        return
    try:
        said = page_of(folder)
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        here = display_path(folder)
        said = f"{here}/{REPORT} was not drawn ({error}): python -m report {here}\nwrote {here}\n"
    print(said, end="", flush=True)


def page_of(folder: Path) -> str:
    """What `python -m report` says of a run. RuntimeError with its last line if it fails."""
    process = started(folder)
    try:
        said, complaint = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    if process.returncode:
        raise RuntimeError((complaint.splitlines() or [f"status {process.returncode}"])[-1])
    return said


def page_of_the_unfinished(folder: Path) -> None:
    """Begin to draw a run that ends before its time, which does not wait for it."""
    if is_main():
        with suppress(OSError):
            started(folder)


def started(folder: Path) -> subprocess.Popen[str]:
    """`python -m report`, also where the project is not installed; a terminal's Ctrl-C is not for it."""
    places = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    mode = {"PYTHONPATH": os.pathsep.join(places), "PYTHONSAFEPATH": "1", "PYTHONUTF8": "1"}
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(
        [sys.executable, "-m", "report", str(folder)], env=os.environ | mode, encoding="utf-8",
        stdin=nothing, stdout=pipe, stderr=pipe, start_new_session=True,
    )  # fmt: skip
