"""A script that runs in a process of its own, for the scripts that run many of them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.paths import REPOSITORY

from harness.errors import UserError
from harness.files import display_path


def run_into_log(
    name: str,
    command: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    append: bool = False,
) -> tuple[float, float | None]:
    """Run a command whose output goes to `log`; its seconds by the clock and of CPU time.

    Other work on the machine does not change the latter, which is None where the system does not count
    it. Raises UserError with the command's last words where it fails; `name` says what failed.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    with log.open("a" if append else "w", encoding="utf-8") as file:
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env=environment, stdout=file, stderr=subprocess.STDOUT
        )
        status, cpu = wait(process)
    wall = time.perf_counter() - begin
    if status != 0:
        lines = [line.strip("╭╮╰╯│─ ") for line in log.read_text(encoding="utf-8").splitlines()]
        last = [line for line in lines if line][-1:]
        raise UserError(f"{name} failed, see {display_path(log)}: {' '.join(last)}")
    return wall, cpu


def wait(process: subprocess.Popen[bytes]) -> tuple[int, float | None]:
    """The exit status of a process and its CPU seconds, where the system counts them."""
    if not hasattr(os, "wait4"):
        return process.wait(), None
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime
