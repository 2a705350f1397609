"""Runs pytest again and again in forks of one process that has loaded PyTorch already.

Loading PyTorch takes seconds and most of the tests that notice a bug take less. scripts/trials.py
starts this module, in a process that imports nothing of the repository: each fork imports the copy
that it is told to test, and what one run leaves behind ends with its fork.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from typing import Any

# torch.testing.assert_close loads torch.distributed.tensor at its first call.
PRELOADED = (
    *("torch", "torch.distributed.tensor", "numpy", "safetensors.torch", "tiktoken", "matplotlib"),
    *("requests", "tqdm", "hypothesis", "pytest"),
)
OUTPUT = 20_000  # characters of a run's output that are kept: its end


def serve() -> None:
    """One request per line of stdin, one answer per line of stdout, both JSON, until stdin ends.

    A request is [folder, arguments of pytest, seconds]; the answer is [exit status, output], the
    status null where the run did not end in time.
    """
    for name in PRELOADED:
        with suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        folder, arguments, seconds = json.loads(line)
        print(json.dumps(run_in_fork(folder, arguments, seconds)), flush=True)


def run_in_fork(folder: str, arguments: list[str], seconds: float) -> tuple[int | None, str]:
    """Exit status of pytest (None after `seconds`) and the end of what it printed."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            become_pytest(folder, arguments, output)
        status = wait(child, seconds)
        output.seek(0)
        return status, output.read().decode(errors="replace")[-OUTPUT:]


def become_pytest(folder: str, arguments: list[str], output: Any) -> None:
    """In the fork: run pytest in `folder` and end the process."""
    status = 3  # what pytest calls an internal error
    try:
        os.setsid()  # one group with the processes that tests start, to end all of them together
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        os.chdir(folder)
        # The copy comes before an installation of this repository, in processes of tests too.
        sys.path.insert(0, folder)
        path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        os.environ["PYTHONPATH"] = path
        sys.argv = ["pytest", *arguments]
        status = int(importlib.import_module("pytest").main(arguments))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def wait(child: int, seconds: float) -> int | None:
    """Exit status of the process, negative for a signal; after `seconds` its group is killed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None
