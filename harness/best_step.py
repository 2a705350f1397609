"""The model of a run's best step, kept beside the one of its last step."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.paths import MODEL_FILE
from harness.ranks.collectives import on_main

LOWER = re.compile(r"loss|kl|perplexity|grad_norm")  # metrics that are better when they are lower


class BestStep:
    """Keeps what `save` writes whenever a step's `metric` is better than at any step before.

    A metric that the first measured row (every `every` steps) lacks is refused.
    """

    def __init__(self, metric: str, folder: Path, save: Callable[[Path], None], every: int) -> None:
        self.metric, self.folder, self.save, self.every = metric, folder, save, every
        self.sign = -1.0 if LOWER.search(metric) else 1.0
        self.step, self.value, self.worse = 0, 0.0, 0  # worse: measurements since the best one

    def recall(self, row: Mapping[str, Any]) -> bool:
        """Whether this row, the next one, is the best so far."""
        if self.metric not in row:
            return False
        value = row[self.metric]
        if self.step and not self.sign * value > self.sign * self.value:
            self.worse += 1
            return False
        self.step, self.value, self.worse = row["step"], value, 0
        return True

    def see(self, row: Mapping[str, Any]) -> None:
        """The row of the step that has just been done, with the model as it is now."""
        if self.recall(row):
            self.save(self.folder / MODEL_FILE)
            on_main(self._name_run)
        elif not self.step and row["step"] % self.every == 0:
            named = [name for name in row if name != "step" and "second" not in name]
            raise UserError(
                f"--keep-best {self.metric}: step {row['step']} has no such number; it has "
                f"{', '.join(named)}"
            )

    def _name_run(self) -> None:
        """The flags beside the weights, so that the folder is opened like the run's."""
        config = self.folder.parent / "config.json"
        if config.exists():
            shutil.copyfile(config, self.folder / "config.json")

    def text(self) -> str:
        return f"best {self.metric} {self.value:.4g} at step {self.step}"
