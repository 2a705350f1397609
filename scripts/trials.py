"""Copies of the repository, and tests run in them: what the two mutation checks share."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from harness.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = 600.0  # seconds for one run of tests: a loop that no longer ends is no result
TIMED_OUT = -100  # an exit status that no process has
PYTEST = ("-x", "-q", "-p", "no:cacheprovider")
SERVER = (
    "import sys; sys.path.insert(0, sys.argv[1]); import pytest_server; "
    "del sys.path[0]; pytest_server.serve()"
)


# --- copies ---------------------------------------------------------------------------------------


def repository_files() -> list[str]:
    """Tracked files and new ones that git does not ignore, as far as they exist."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listing.returncode:
        raise UserError(f"{ROOT} is not a git checkout, so what to copy is unknown: clone it")
    return [name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]


@contextmanager
def repository_copy(files: Sequence[str], source: Path = ROOT) -> Iterator[Path]:
    """A temporary copy of the repository, or of an earlier copy."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        for name in files:
            target = Path(folder) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, target)
        yield Path(folder)


# --- runs -----------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",  # one process per job is all the parallelism there is
        "OMP_WAIT_POLICY": "passive",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLBACKEND": "Agg",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # loading them takes longer than most tests
    }


class TestServer:
    """A process that has loaded PyTorch and runs pytest in forks of itself (pytest_server.py)."""

    __test__ = False  # its name starts with Test, but it is none

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(Path(__file__).parent)],
            cwd=tempfile.gettempdir(),
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, root: Path, arguments: Sequence[str], timeout: float) -> tuple[int, str]:
        """Exit status and output of pytest; TIMED_OUT where it did not end in time."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps([str(root), list(arguments), timeout]) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise UserError("the process that runs the tests has ended: start this script again")
        status, output = json.loads(answer)
        return (TIMED_OUT if status is None else status), output

    def close(self) -> None:
        self.process.communicate()


class TestRunners:
    """Runs tests in copies of the repository, as many at a time as there are threads that ask.

    Servers are started when they are needed and used again.
    """

    __test__ = False

    def __init__(self) -> None:
        self.free: SimpleQueue[TestServer] = SimpleQueue()

    def run(self, root: Path, tests: Sequence[str], timeout: float = TIMEOUT) -> tuple[int, str]:
        """Exit status and output of pytest in the copy at `root`; TIMED_OUT where it did not end."""
        server = TestServer() if self.free.empty() else self.free.get()
        result = server.run(root, [*PYTEST, *tests], timeout)
        self.free.put(server)
        return result

    def close(self) -> None:
        while not self.free.empty():
            self.free.get().close()
