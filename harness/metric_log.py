"""The numbers of a run: one row a step, in a file and on the screen."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import Tensor
from tqdm import tqdm

from harness.device import peak_memory
from harness.errors import UserError
from harness.files import append_jsonl, display_path, gone, keep_until, with_nan
from harness.ranks.collectives import is_main


def per_second(count: float, begin: float) -> float:
    """How many a second since `begin` of time.perf_counter, also by a clock that stands still."""
    return count / max(time.perf_counter() - begin, 1e-9)


class MetricLog:
    """Collects one row of numbers a step, appends it to a file and shows progress with an ETA.

    One line every `every` steps, in a terminal above a tqdm bar, with the metrics that `show` names.
    After one step, or ten seconds of steps, a run of over a minute says how long all will take, by the
    steps after the first, which has the costs of a start. `extra_steps`: validations and the test, in
    steps.
    """

    def __init__(
        self, total: int, *, path: Path | None = None, show: Sequence[str] = (), every: int = 10,
        title: str = "", start: int = 0, extra_steps: float = 0.0,
    ) -> None:  # fmt: skip
        self.rows: list[dict[str, Any]] = []
        self.path, self.show, self.every, self.total, self.title = path, show, every, total, title
        if path is not None:  # a file is there if the run is resumed
            self.rows = list(map(with_nan, keep_until(path, start)))
            steps = [row["step"] for row in self.rows]
            if steps != sorted(set(steps)):
                raise UserError(
                    f"{display_path(path)} holds a step twice, or a later one first: mend its rows"
                )
            if len(steps) < start:
                print(f"note: {display_path(path)} has only {len(steps)} of {start} steps so far")
        self.start, self.extra_steps = start, extra_steps
        self.reached = self.printed = start  # steps
        self.seconds: list[float] = []  # a step, of the first rows
        self.timed = 0.0  # seconds of those rows
        self.is_long = False  # over a minute
        self.begin = self.step_began = time.perf_counter()
        self.has_bar = bool(show) and sys.stderr.isatty() and is_main()
        self.bar: tqdm | None = None

    def start_step(self) -> float:
        """A step begins; returns time.perf_counter()."""
        self.step_began = time.perf_counter()
        return self.step_began

    def write(self, *, step: int, **metrics: Any) -> None:
        """Record step number `step`, counted from 1. Tensors of one element become numbers.

        A row may stand for several steps. Where nobody calls `start_step`, it began at the last row.
        """
        row = {"step": step} | {
            key: value.item() if isinstance(value, Tensor) else value
            for key, value in metrics.items()
        }
        self.rows.append(row)
        now = time.perf_counter()
        done, taken = step - self.reached, now - self.step_began
        self.reached, self.step_began = step, now
        if self.timed < 10:
            self.timed += taken
            self.seconds.append(taken / max(done, 1))
            if self.timed >= 10:
                self._forecast(fmean(self.seconds[1:] or self.seconds))
        if self.path is not None:
            if len(self.rows) > 1 and is_main() and not self.path.exists():
                raise gone(self.path.parent)
            append_jsonl(self.path, [row])
        if self.has_bar:  # made here: what is printed before has its own lines
            options: dict[str, Any] = {"initial": self.start, "desc": self.title, "unit": "step"}
            self.bar = self.bar or tqdm(total=self.total, **options)
            self.bar.update(step - self.bar.n)
        if self.show and (step % self.every < done or step == self.total):
            self._print(row)
        if step == self.total:
            self.close()

    def _forecast(self, seconds: float) -> None:
        steps = self.total - self.start
        whole = seconds * (steps + self.extra_steps)
        self.is_long = whole >= 60
        if self.is_long and self.show and is_main():
            hours, minutes = divmod(round(whole / 60), 60)
            time_of_all = f"{hours} h " * (hours > 0) + f"{minutes} min"
            of_step, memory = float(f"{seconds:.2g}"), f"{peak_memory() / 1e9:.1f} GB"
            print(
                f"{of_step:g} s a step: {steps:,} steps in about {time_of_all}, {memory}",
                flush=True,
            )

    def _print(self, row: Mapping[str, Any]) -> None:
        self.printed = step = row["step"]
        elapsed = time.perf_counter() - self.begin
        shown = "  ".join(f"{key} {row[key]:.4g}" for key in self.show if key in row)
        left = elapsed / max(step - self.start, 1) * (self.total - step)
        line = f"{self.title} {step}/{self.total}  {shown}"
        if self.bar is not None:
            self.bar.write(line)  # above the bar, which has its own ETA
        else:
            print(f"{line}  ETA {left:.0f} s", flush=True)

    def close(self) -> None:
        """The end of the run, before `total` steps too: print the last row if it was not due."""
        if self.show and self.rows and self.rows[-1]["step"] != self.printed:
            self._print(self.rows[-1])
        if self.bar is not None:
            self.bar.close()
