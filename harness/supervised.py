"""The steps of supervised training: AdamW with a warm-up and a cosine, logged, resumable.

steps = SupervisedSteps(config, model, log, folder)
for step in steps:                       # the learning rate is set, gradients are zero
    loss = ...; loss.backward()
    row = steps.update({"loss": loss}, tokens_per_second=tokens)
    steps.close(row)                     # checked, written, kept
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harness.flags import OptimizerFlags, TrainingFlags
from harness.metric_log import MetricLog, per_second
from harness.optimizer import adamw, check_losses, clip_and_step, follow_cosine
from harness.ranks.collectives import all_reduce_sum, rank
from harness.seeds import derive_seed
from harness.training_state import Stateful, TrainingState, keep_state


@dataclass(frozen=True)
class SupervisedFlags(OptimizerFlags, TrainingFlags):
    """Flags of a command that trains by supervision."""


def never() -> bool:
    """A run that does not end early."""
    return False


class SupervisedSteps:
    """The 0-based steps of `log.total` that are left, and what every one of them does around its loss.

    With a `folder` a resumable state is kept there: the model, the optimizer (a given one keeps its
    state) and `parts`. A model that is trained with `dropout` drops the same in a run that is resumed.
    """

    def __init__(
        self, config: SupervisedFlags, model: nn.Module, log: MetricLog, folder: Path | None = None, *,
        optimizer: torch.optim.Optimizer | None = None, dropout: float = 0.0, **parts: Stateful,
    ) -> None:  # fmt: skip
        self.config, self.model, self.log, self.folder = config, model, log, folder
        self.optimizer = optimizer or adamw(model, config.lr, weight_decay=config.weight_decay)
        self.dropout, self.lr, self.begin = dropout, config.lr, 0.0
        self.state = TrainingState({"model": model, "optimizer": self.optimizer, **parts}, {})
        if config.resume and folder is not None:
            self.state.load(folder)

    def __iter__(self) -> Iterator[int]:
        for step in self.state.steps_left(self.log.total):
            self.begin = self.log.start_step()
            self.lr = follow_cosine(self.optimizer, step, self.log.total, self.config)
            if self.dropout > 0:  # a function of the step
                torch.manual_seed(derive_seed(self.config.seed, f"dropout {step}") + rank())
            self.optimizer.zero_grad(set_to_none=True)
            yield step
            if self.state.stopped:
                return

    def update(self, losses: Mapping[str, float | Tensor], **done: float) -> dict[str, Any]:
        """Clip, AdamW; the step's row: `losses` over all ranks, norm, rate, and a second what is `done`."""
        norm = clip_and_step(self.optimizer, self.model.parameters(), self.config.max_grad_norm)
        self.state.step += 1
        row = all_reduce_sum({name: float(loss) for name, loss in losses.items()})  # float waits
        speeds = {name: per_second(count, self.begin) for name, count in done.items()}
        return row | {"grad_norm": norm, "lr": self.lr} | speeds

    @property
    def last(self) -> bool:
        """Whether the step that has been updated is the last one."""
        return self.state.step == self.log.total

    def due(self, every: int) -> bool:
        """Whether what is done every so many steps, and at the end, is done now."""
        return self.state.step % every == 0 or self.last

    def close(self, row: Mapping[str, float], stops: Callable[[], bool] = never) -> None:
        """Check the row, write it, and keep the state. The run ends early where it then `stops`."""
        check_losses(row)
        self.log.write(step=self.state.step, **row)
        self.state.stopped = stops()
        done = self.last or self.state.stopped
        keep_state(self.state, self.folder, self.config.save_every, last=done)
