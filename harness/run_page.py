"""The page of a run, drawn by a process of its own: training loads nothing that only reads a run.

It is drawn when the steps have ended. At validations it would take a core for two seconds each time, from
the ranks that train; `python -m report RUN` draws a run that goes on whenever somebody wants to look.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.files import display_path
from harness.paths import REPORT, REPOSITORY
from harness.ranks.collectives import is_main


def conclude(folder: Path) -> None:
    """Draw the page of a complete run; print what the doctor finds and what is to be looked at.

    Where that fails, the run has lost nothing but its page.
    """
    if is_main():
        try:
            said = page_of(folder)
        except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
            run = display_path(folder)
            said = f"{REPORT} was not drawn ({error}): python -m report {run}\nwrote {run}\n"
        print(said, end="", flush=True)


def page_of(folder: Path) -> str:
    """Draw the page; return what the command says. RuntimeError with its last line if it fails."""
    done = subprocess.run(**drawing(folder), timeout=300)  # seconds; two are usual
    if done.returncode:
        raise RuntimeError((done.stderr.splitlines() or [f"status {done.returncode}"])[-1])
    return str(done.stdout)


def page_of_the_unfinished(folder: Path) -> None:
    """Begin to draw a run that ends before its time, without waiting: a signal wants it gone."""
    if is_main():
        with suppress(OSError):
            subprocess.Popen(**drawing(folder))


def drawing(folder: Path) -> dict[str, Any]:
    """Arguments of subprocess for `python -m report`; a terminal's Ctrl-C does not reach it."""
    places = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    setting = {"PYTHONPATH": os.pathsep.join(places), "PYTHONSAFEPATH": "1", "PYTHONUTF8": "1"}
    return dict(
        args=[sys.executable, "-m", "report", str(folder)], env=os.environ | setting,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        encoding="utf-8", start_new_session=True,
    )  # fmt: skip
