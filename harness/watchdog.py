"""Ends a run from beside it where it cannot end by itself: a process that harness/signals.py starts.

Python answers a signal between two of its own instructions, and code in C may have none for hours; the
system still writes the signal's number to a pipe, which is this process's stdin. Imports nothing of ours.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def children(process: int) -> list[int]:
    """The processes that this one has started, except the one that asks."""
    found: list[str] = []
    with suppress(OSError):  # it may end meanwhile
        if Path("/proc/self/task").exists():
            for file in Path(f"/proc/{process}/task").glob("*/children"):
                found += file.read_text().split()
        else:  # macOS
            command = ["ps", "-A", "-o", "ppid=,pid="]
            rows = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
            found += [row.split()[1] for row in rows if row.split()[0] == str(process)]
    return [int(child) for child in found if int(child) != os.getpid()]


def family(processes: Iterable[int]) -> list[int]:
    """These processes and all that they have started, parents first."""
    every = list(processes)
    for process in every:
        every += [child for child in children(process) if child not in every]
    return every


def kill(processes: Iterable[int]) -> None:
    """Kill these processes and all that they have started."""
    for process in family(processes):
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)


def watch(run: int, numbers: set[int], step: float, last: float, then: str) -> None:
    """Return once the process `run` says that it is done; before, see that signals end it in time.

    A signal is sent again after `step` seconds; `last` seconds after the second one the run is killed,
    with all that it has started, and `then` continues the sentence that says so.
    """
    started: list[int] = []
    number, ask, end = 0, float("inf"), float("inf")
    while True:
        ready = select.select([0], [], [], 0.2 if number else 1)[0]
        came = os.read(0, 512) if ready else None
        if came is not None and 0 in came:
            return
        if came == b"":  # as it ends, its files are closed first
            time.sleep(0.1)
        if os.getppid() != run:
            return kill(started)
        if came == b"":
            return
        started = family([run])[1:]
        now = time.monotonic()
        for each in numbers.intersection(came or b""):
            ask, end = (float("inf"), min(end, now + last)) if number else (now + step, end)
            number = each
        if now > end:
            name = signal.Signals(number).name
            with suppress(OSError):  # the terminal may have gone
                os.write(2, f"ended by {name}, which it did not answer itself{then}\n".encode())
            return kill([run, *started])
        if now > ask:
            os.kill(run, number)
            ask, end = float("inf"), now + last
