"""Copies of the repository, and tests run in them: for the mutation check.

Loading PyTorch takes seconds and most of the tests that notice a bug take less. So the processes of
`pytest_processes` have loaded it already and run pytest in forks of themselves: each fork imports the
copy that it is told to test, and what one run leaves behind ends with its fork.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from harness.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = 600.0  # seconds for one run of tests: a loop that no longer ends is no result
TIMED_OUT = -100  # an exit status that no process has
PYTEST = ("-x", "-q", "-p", "no:cacheprovider")
# torch.testing.assert_close loads torch.distributed.tensor at its first call.
PRELOADED = (
    *("torch", "torch.distributed.tensor", "numpy", "safetensors.torch", "tiktoken", "matplotlib"),
    *("requests", "tqdm", "hypothesis", "pytest"),
)
OUTPUT = 20_000  # characters of a run's output that are kept: its end


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


def pytest_processes(count: int) -> ProcessPoolExecutor:
    """Where `run_tests` runs them, so many at a time."""
    os.environ |= {
        "OMP_NUM_THREADS": "1",  # one process per job is all the parallelism there is
        "OMP_WAIT_POLICY": "passive",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLBACKEND": "Agg",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # loading them takes longer than most tests
    }
    return ProcessPoolExecutor(count, get_context("spawn"), preload)


def run_tests(
    pool: ProcessPoolExecutor, root: Path, tests: Sequence[str], timeout: float = TIMEOUT
) -> tuple[int, str]:
    """Exit status and output of pytest in the copy at `root`; TIMED_OUT where it did not end."""
    return pool.submit(run_in_fork, str(root), [*PYTEST, *tests], timeout).result()


def preload() -> None:
    for name in PRELOADED:
        with suppress(ImportError):
            importlib.import_module(name)


def run_in_fork(folder: str, arguments: list[str], seconds: float) -> tuple[int, str]:
    """Exit status of pytest and the end of what it printed; TIMED_OUT after so many seconds."""
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
        # A run of the tests is no job in the background.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()  # one group with the processes that tests start, to end all of them together
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        os.chdir(folder)
        # Nothing of this repository is left in the fork, and the copy comes before an installation.
        for name, module in list(sys.modules.items()):
            if is_ours(getattr(module, "__file__", None)):
                del sys.modules[name]
        sys.path[:] = [folder, *(path for path in sys.path if not is_ours(path))]
        path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        os.environ["PYTHONPATH"] = path
        sys.argv = ["pytest", *arguments]
        status = int(importlib.import_module("pytest").main(arguments))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def is_ours(path: str | None) -> bool:
    """Whether a path lies in this repository, and not in an environment inside of it."""
    parts = Path(path or os.devnull).resolve()
    return parts.is_relative_to(ROOT) and "site-packages" not in parts.parts


def wait(child: int, seconds: float) -> int:
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
    return TIMED_OUT
