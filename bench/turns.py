"""A process per side of a comparison, told in turns through a pipe to do one repetition.

The sides of a comparison are then interleaved, A B A B ..., so that a machine whose speed drifts
slows all of them; each side has its own threads, its own allocator and its own peak of memory; and
between its turns a side waits in a read, which costs nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

from harness.errors import UserError
from harness.ranks.collectives import all_reduce_sum, on_main


@dataclass(frozen=True)
class Case:
    """The work of one repetition. Rows = prompts x group; two of a prompt are a pair to compare."""

    task: Literal["sample", "update", "grpo", "reward"]
    preset: str = "tiny"
    prompts: int = 8
    group: int = 1
    prompt_tokens: int = 16
    new_tokens: int = 32
    precision: str = "float32"
    lora_rank: int = 0
    folder: str = ""  # with published weights, which the model then has; else random ones

    @property
    def rows(self) -> int:
        return self.prompts * self.group

    @property
    def described(self) -> str:
        rows = f"{self.prompts} x {self.group} rows" if self.group > 1 else f"{self.prompts} rows"
        lora = f", LoRA of rank {self.lora_rank}" if self.lora_rank else ""
        sizes = f"prompts of {self.prompt_tokens}, responses of {self.new_tokens} tokens"
        return f"{rows}, {sizes}{lora}, {self.precision}"


@dataclass(frozen=True)
class Side:
    """Who does it, in how many processes (ranks) of how many threads."""

    label: str
    library: Literal["ours", "peer"]
    case: Case
    threads: int
    ranks: int = 1
    device: str = "cpu"
    weights: str = "float32"  # a peer's


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


class Turns:
    """What a side does its repetitions with: `while turns.next(): one repetition`."""

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe
        self.begin: tuple[float, float] | None = None  # seconds, and seconds of CPU

    def next(self) -> bool:
        """Report the repetition that ends here, if one does, and wait for the next; False: no more.

        Of several ranks the first reports and waits, for all; the memory is that of all together.
        """
        now, cpu = time.perf_counter(), time.process_time()
        report: dict[str, float] = {}
        if self.begin is None:
            reset_peak()
        else:
            begin, cpu_begin = self.begin
            every = all_reduce_sum({"mib": peak_mib(), "cpu": cpu - cpu_begin})
            report = {"seconds": now - begin, **every}
        goes_on = on_main(lambda: self._say_and_wait(report))
        self.begin = time.perf_counter(), time.process_time()
        return goes_on

    def _say_and_wait(self, report: dict[str, float]) -> bool:
        self.pipe.send(report)
        return self.pipe.recv()


class Worker:
    """One side in its own process, set up and waiting; `work(side, pipe)` is what runs there."""

    def __init__(self, side: Side, work: Callable[[Side, Any], None]) -> None:
        self.side = side
        context = multiprocessing.get_context("spawn")
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=work, args=(side, there))
        own = {
            "OMP_NUM_THREADS": str(side.threads * side.ranks),  # the ranks share them out
            "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
            "TRANSFORMERS_VERBOSITY": "error",
        }  # fmt: skip
        with patch.dict(os.environ, own):
            self.process.start()
        there.close()  # so that the end of the other process ends the pipe
        self.read()

    def read(self) -> dict[str, float]:
        """One repetition's seconds, those of all CPUs, and the most MiB that were resident so far."""
        try:
            return self.pipe.recv()
        except EOFError:
            raise UserError(
                f"the side {self.side.label!r} ended before its work was done"
            ) from None

    def close(self) -> None:
        """End the process: its own end if it listens, killed if it does not."""
        if self.process.is_alive():
            self.pipe.send(False)
            self.process.join(timeout=20)
        self.process.kill()


def measure(
    sides: Sequence[Side], rounds: int, work: Callable[[Side, Any], None], *, warm_up: int = 1
) -> list[list[dict[str, float]]]:
    """Every side in turn, `rounds` times after `warm_up` that are not counted; a list per side."""
    workers: list[Worker] = []
    reports: list[list[dict[str, float]]] = [[] for _ in sides]
    try:
        for side in sides:
            workers.append(Worker(side, work))
        for _ in range(rounds + warm_up):
            for worker, own in zip(workers, reports, strict=True):
                worker.pipe.send(True)
                own.append(worker.read())
    finally:
        for worker in workers:
            worker.close()
    return [own[warm_up:] for own in reports]
