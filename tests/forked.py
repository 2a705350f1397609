"""A command of ours in a fork of this process: what it says and how it ends, without a new interpreter.

Importing PyTorch and our packages takes longer than what most of these tests look at.
"""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401 an optimizer loads it: here it is loaded once for all forks

from harness.run_folder import LOCKS


@dataclass(frozen=True)
class Done:
    """As subprocess.run gives it; a signal is a negative status."""

    returncode: int
    stdout: str
    stderr: str


def forked(work: Callable[[], Any], *, given: bytes = b"", timeout: float = 300) -> Done:
    """work() in a child with streams of its own; what is `given` stands on its stdin."""
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder, name) for name in ("stdin", "stdout", "stderr")]
        for path in streams:
            path.write_bytes(given)
            given = b""

        def before() -> None:
            for number, path in enumerate(streams):
                os.dup2(os.open(path, os.O_RDWR | os.O_APPEND), number)
            sys.stdin = open(0, encoding="utf-8", closefd=False)
            sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
            sys.stderr = open(2, "w", encoding="utf-8", closefd=False)
            os.environ["OMP_NUM_THREADS"] = "1"  # so that ranks are forks, too
            LOCKS.clear()  # what a fork has of its parent

        child, deadline = fork(work, streams[1], before), time.monotonic() + timeout
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.killpg(child, 9)
            time.sleep(0.005)
        _, said, complained = (path.read_text(encoding="utf-8") for path in streams)
        return Done(os.waitstatus_to_exitcode(ended[1]), said, complained)


def command(
    *words: object, cwd: Path, before: Callable[[], object] = lambda: None, **options: Any
) -> Done:
    """`python WORDS`: a file, or -m and a module, with its flags, started in the folder `cwd`."""

    def start() -> None:
        first, *rest = map(str, words)
        os.chdir(cwd)
        before()
        if first == "-m":
            sys.path.insert(0, str(cwd))
            execute(rest[0], rest[1:])
        else:
            sys.argv = [first, *rest]
            sys.path.insert(0, str(Path(first).resolve().parent))
            runpy.run_path(first, run_name="__main__")

    return forked(start, **options)


def has_ended(process: int) -> bool:
    """Within 10 seconds; one that nobody has waited for (Z) has ended, too."""
    stat = Path(f"/proc/{process}/stat")
    for _ in range(1000):
        try:
            os.kill(process, 0)
            if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.01)
    os.kill(process, 9)
    return False


def fork(work: Callable[[], object], log: Path, before: Callable[[], object]) -> int:
    """The process number of a child that leads a group of its own and writes to `log`."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        before()
        work()
        status = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def execute(module: str, arguments: Sequence[str]) -> None:
    """What `python -m module arguments` does."""
    for name in (module, f"{module}.__main__"):
        sys.modules.pop(name, None)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
