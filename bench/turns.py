"""A process per side of a comparison, told in turns through a pipe to do one repetition.

The sides of a comparison are then interleaved, A B A B ..., so that a machine whose speed drifts
slows all of them; each side has its own threads, its own allocator and its own peak of memory; and
between its turns a side waits in a read, which costs nothing.

    the command (`Worker`)            the side (`Turns`, bench/sides.py)
    starts the process                sets up its models
                                      one line: {"ready": true}
    "run"                             one repetition
                                      one line: {"seconds": ..., "mib": ...}
    closes the pipe                   ends
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

from harness.errors import UserError
from harness.paths import REPOSITORY
from harness.ranks.collectives import all_reduce_sum, on_main

Task = Literal["sample", "grpo"]


@dataclass(frozen=True)
class Case:
    """The work of one repetition. Rows = prompts x group."""

    task: Task
    preset: str = "tiny"
    prompts: int = 8
    group: int = 1
    prompt_tokens: int = 16
    new_tokens: int = 32

    @property
    def rows(self) -> int:
        return self.prompts * self.group

    @property
    def described(self) -> str:
        rows = f"{self.prompts} x {self.group} rows" if self.group > 1 else f"{self.prompts} rows"
        return f"{rows}, prompts of {self.prompt_tokens}, responses of {self.new_tokens} tokens"


@dataclass(frozen=True)
class Side:
    """Who does it, on how many threads and, of ours, ranks."""

    label: str
    library: Literal["ours", "peer"]
    case: Case
    threads: int
    ranks: int = 1


def side_from_json(text: str) -> Side:
    fields = json.loads(text)
    return Side(**fields | {"case": Case(**fields["case"])})


# The side's end -----------------------------------------------------------------------------------


class Turns:
    """What a side does its repetitions with: `while turns.next(): one repetition`."""

    def __init__(self, orders: TextIO, reports: TextIO) -> None:
        self.orders, self.reports = orders, reports
        self.begin: float | None = None
        self.base = 0.0  # MiB before the first repetition: weights and libraries

    def next(self) -> bool:
        """Report the repetition that ends here, if one does, and wait for the next; False: no more.

        Of several ranks the first reports and waits, for all; the memory is that of all together.
        """
        now = time.perf_counter()
        if self.begin is None:
            reset_peak()
            self.base = all_reduce_sum({"mib": peak_mib()})["mib"]
            report: dict[str, Any] = {"ready": True}
        else:
            mib = all_reduce_sum({"mib": peak_mib()})["mib"] - self.base
            report = {"seconds": now - self.begin, "mib": mib}
        goes_on = on_main(lambda: self._say_and_wait(report))
        self.begin = time.perf_counter()
        return goes_on

    def _say_and_wait(self, report: dict[str, Any]) -> bool:
        print(json.dumps(report), file=self.reports, flush=True)
        return bool(self.orders.readline())


def own_turns() -> Turns:
    """The turns of this process. Whatever a library prints goes to the error stream from now on."""
    reports = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return Turns(sys.stdin, reports)


def reset_peak() -> None:
    """Let the process's peak of memory start anew; only Linux can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass


def peak_mib() -> float:
    """The largest resident memory of this process so far, in MiB."""
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


# The command's end --------------------------------------------------------------------------------


class Worker:
    """One side in its own process, set up and waiting."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.errors = tempfile.TemporaryFile("w+")
        command = [sys.executable, str(Path(__file__).with_name("sides.py"))]
        self.process = subprocess.Popen(
            [*command, json.dumps(dataclasses.asdict(side))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=environment(side),
        )
        self._read()

    def run(self) -> dict[str, float]:
        """One repetition: its seconds, and the MiB above the start at the peak so far."""
        assert self.process.stdin is not None
        try:
            print("run", file=self.process.stdin, flush=True)
        except BrokenPipeError:
            pass  # `_read` says why
        return self._read()

    def _read(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.errors.seek(0)
            last = (self.errors.read().strip().splitlines() or ["it said nothing"])[-1]
            raise UserError(f"the side {self.side.label!r} ended before its work was done: {last}")
        return json.loads(line)

    def close(self) -> None:
        """End the process: its own end if it listens, killed if it does not."""
        try:
            self.process.communicate(timeout=20)  # closes the pipe
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
        self.errors.close()


def environment(side: Side) -> dict[str, str]:
    """The environment of a side: its threads, no network, and this checkout before an installed one.

    Waiting threads sleep on both sides (harness/process.py), unless OMP_WAIT_POLICY says otherwise.
    """
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(side.threads * side.ranks),  # the ranks share them out
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
        ),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
    }


def interleaved(workers: Sequence[Worker], rounds: int) -> list[list[dict[str, float]]]:
    """Every side in turn, `rounds` times after one round that is not counted; a list per side."""
    for worker in workers:
        worker.run()
    reports: list[list[dict[str, float]]] = [[] for _ in workers]
    for _ in range(rounds):
        for worker, own in zip(workers, reports, strict=True):
            own.append(worker.run())
    return reports


def measure(sides: Sequence[Side], rounds: int) -> list[list[dict[str, float]]]:
    """Start a process per side, interleave them, end them."""
    workers: list[Worker] = []
    try:
        for side in sides:
            workers.append(Worker(side))
        return interleaved(workers, rounds)
    finally:
        for worker in workers:
            worker.close()
