"""A command that trains: what it opens, how it trains, what it keeps, and the one way in which all run.

pre-training, fine-tuning, the reward model and the teacher are each a `Stage`; an RL engine is one, too
(rl/run/engine.py). It is a record and no framework: nothing inherits, and a loop stays in its file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from data.sources import default_folder, is_world, name_columns
from gpt.memory import warn_of_memory
from gpt.recipes import ModelFlags, run_with_recipe
from harness.device import open_device
from harness.files import reading
from harness.metric_log import MetricLog
from harness.run_folder import (
    finish_run,
    open_run,
    record_steps,
    split_as_before,
    training_steps,
    write_report,
)
from harness.training_state import saved_step

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Plan:
    """How long a stage trains, and what it says of it."""

    steps: int
    said: str  # before the first step
    show: tuple[str, ...]  # metrics on the screen
    every: int  # steps between two lines
    extra_steps: float = 0.0  # validations and the like, in steps
    title: str = ""  # of these lines, where it is not the stage's name
    more: str = ""  # said behind the device


@dataclass(frozen=True)
class Stage:
    """A command's four parts, each a function; `work` is whatever its `open` has opened."""

    name: str  # of run folders and messages
    config: Callable[..., Any]
    # config, device -> config as it is run, work
    open: Callable[[Any, torch.device], tuple[Any, Any]]
    plan: Callable[[Any, Any, Path, int], Plan]  # config, work, folder, steps that are done
    train: Callable[[Any, Any, MetricLog, Path], Rows]  # config, work, log, folder
    # likewise: the model, and what is measured of it
    keep: Callable[[Any, Any, MetricLog, Path], None]

    def run(self, config: Any) -> Path:
        """The whole command; returns its run folder."""
        return run_stage(self, config)

    def run_as_command(self) -> None:
        """Parse the flags over the recipe, then `run`."""
        run_with_recipe(self.run, self.config)


@reading()
def run_stage(stage: Stage, config: Any) -> Path:
    """Open, plan, train and keep, in a run folder that can be resumed."""
    device = open_device(config.device, config.precision)
    if isinstance(config, ModelFlags):
        warn_of_memory(config, device)
    folder = config.out or default_folder(stage.name, config.data, config.model_name)
    if config.resume and not is_world(config.data):
        split_as_before(folder)
    name_columns(config.data, config.columns)
    config, work = stage.open(config, device)
    folder = open_run(folder, config, resume=config.resume)
    done = saved_step(folder) if config.resume else 0
    plan = stage.plan(config, work, folder, done)
    if getattr(config, "steps", None) is None:
        record_steps(folder, plan.steps)
    log = MetricLog(
        plan.steps, path=folder / "metrics.jsonl", every=plan.every, show=plan.show, start=done,
        title=plan.title or stage.name, extra_steps=plan.extra_steps,
    )  # fmt: skip
    print(f"{plan.said} ({device}, {config.precision})", *filter(None, [plan.more]), sep="\n")
    with training_steps(log, folder):
        stage.train(config, work, log, folder)
    stage.keep(config, work, log, folder)
    write_report(folder)
    finish_run(folder, can_go_on=not config.fixed_length)
    return folder
