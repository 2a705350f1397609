"""The numbers of a run: one row a step, in a file and on the screen."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from torch import Tensor
from tqdm import tqdm

from harness.device import peak_memory, return_memory
from harness.errors import UserError
from harness.files import append_jsonl, display_path, gone, keep_until, with_nan
from harness.ranks.collectives import is_main
from harness.signals import expect_step

BETWEEN_TRIMS = 20  # seconds: the next step asks for the memory again, which costs it some time


def per_second(count: float, begin: float) -> float:
    """How many a second since `begin` of time.perf_counter, also by a clock that stands still."""
    return count / max(time.perf_counter() - begin, 1e-9)


def in_words(seconds: float) -> str:
    """40 s, 12 min, 1 h 2 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h " * (hours > 0) + f"{minutes} min"


class MetricLog:
    """Collects one row of numbers a step, appends it to a file and shows progress with an ETA.

    One line every `every` steps, in a terminal above a tqdm bar, with the metrics that `show` names.
    Line and bar have one forecast: the median of the last steps for each that is left, without the first,
    which has the costs of a start. After three steps of ten seconds together, or a minute, a run of over a
    minute says how long it takes in all. In steps, `extra_steps`: validations between, `last_steps`: what
    is measured after them.
    """

    def __init__(
        self, total: int, *, path: Path | None = None, show: Sequence[str] = (), every: int = 10,
        title: str = "", start: int = 0, extra_steps: float = 0.0, last_steps: float = 0.0,
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
        self.start, self.extra_steps, self.last_steps = start, extra_steps, last_steps
        self.reached = self.printed = start  # steps
        self.seconds: deque[float] = deque(maxlen=5)  # a step, of the last rows
        self.timed, self.timed_rows, self.has_forecast = 0.0, 0, False
        self.begin = self.step_began = self.trimmed = time.perf_counter()
        self.has_bar = bool(show) and sys.stderr.isatty() and is_main()
        self.bar: tqdm | None = None

    def start_step(self) -> float:
        """A step begins; returns time.perf_counter()."""
        if self.has_bar and self.bar is None:  # made here: what is printed before has its own lines
            self.bar = tqdm(
                total=self.total, initial=self.start, desc=self.title, unit="step",
                bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]",
            )  # fmt: skip
        if self.seconds:
            expect_step(self.usual())
        self.step_began = time.perf_counter()
        return self.step_began

    def write(self, *, step: int, **metrics: object) -> None:
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
        self.reached = step
        self.timed, self.timed_rows = self.timed + taken, self.timed_rows + 1
        if self.timed_rows == 2:
            self.seconds.clear()
        self.seconds.append(taken / max(done, 1))
        if self.path is not None:
            if len(self.rows) > 1 and is_main() and not self.path.exists():
                raise gone(self.path.parent)
            append_jsonl(self.path, [row])
        self._forecast()
        if now - self.trimmed >= BETWEEN_TRIMS:
            return_memory()
            self.trimmed = now
        self.start_step()
        if self.bar is not None:
            self.bar.set_postfix_str(f"{in_words(self.left())} left", refresh=False)
            self.bar.update(step - self.bar.n)
        if self.show and (step % self.every < done or step == self.total):
            self._print(row)
        if step == self.total:
            self.close()

    def usual(self) -> float:
        """Seconds of a step: the median of the last ones."""
        return median(self.seconds or [0.0])

    def left(self) -> float:
        """Seconds until all is measured."""
        between = self.extra_steps / max(self.total - self.start, 1)
        return self.usual() * ((self.total - self.reached) * (1 + between) + self.last_steps)

    def steps_in(self, seconds: float) -> int:
        """How many steps, of 1 at least, are measured after so many seconds."""
        between = self.extra_steps / max(self.total - self.start, 1)
        fit = seconds / max(self.usual(), 1e-9) - self.last_steps
        return max(int(fit / (1 + between)), 1)

    def _forecast(self) -> None:
        """Say once how long all will take, and at the end how long the rest does."""
        known = self.timed >= 60 or (self.timed >= 10 and self.timed_rows >= 3)
        if self.has_forecast or not (known and self.show and is_main()):
            return
        self.has_forecast, steps = True, self.total - self.start
        whole = self.usual() * (steps + self.extra_steps + self.last_steps)
        if whole >= 60:
            of_step, memory = float(f"{self.usual():.2g}"), f"{peak_memory() / 1e9:.1f} GB"
            shorter = "; --minutes 45 or fewer --steps end sooner" * (whole > 3600)
            self._say(
                f"{of_step:g} s a step: {steps:,} steps in about {in_words(whole)}, {memory}{shorter}"
            )

    def _say(self, line: str) -> None:
        """Print a line, above the bar."""
        if self.bar is not None:
            self.bar.write(line)
        else:
            print(line, flush=True)

    def _print(self, row: Mapping[str, Any]) -> None:
        self.printed = step = row["step"]
        shown = "  ".join(f"{key} {row[key]:.4g}" for key in self.show if key in row)
        line = f"{self.title} {step}/{self.total}  {shown}"
        self._say(line + f"  ETA {in_words(self.left())}" * (self.bar is None))

    def close(self) -> None:
        """The end of the run, before `total` steps too: print the last row if it was not due."""
        if self.show and self.rows and self.rows[-1]["step"] != self.printed:
            self._print(self.rows[-1])
        if self.bar is not None:
            self.bar.close()
        rest, self.last_steps = self.usual() * self.last_steps, 0.0
        if rest >= 10 and self.show and is_main():
            print(f"{self.title}: what follows the steps takes about {in_words(rest)}", flush=True)
