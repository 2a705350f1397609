"""A command that trains: what it opens, how it trains, what it keeps, and the one way in which all run.

pre-training, fine-tuning, the reward model and the teacher are each a `Stage`; an RL engine is one, too
(rl/run/engine.py). It is a record and no framework: nothing inherits, and a loop stays in its file.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from data.sources import default_folder, is_world, name_columns
from gpt.memory import warn_of_memory
from gpt.recipes import ModelFlags, RecipeFlags, run_with_recipe
from harness.device import open_device
from harness.files import reading
from harness.metric_log import MetricLog
from harness.optimizer import warm_up
from harness.ranks.collectives import gather, on_main
from harness.run_folder import (
    as_begun,
    finish_run,
    open_run,
    record_choice,
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
    extra_steps: float = 0.0  # validations between the steps, in steps
    last_steps: float = 0.0  # what is measured after them, likewise
    title: str = ""  # of these lines, where it is not the stage's name
    more: str = ""  # said behind the device


@dataclass(frozen=True)
class Stage:
    """A command's four parts, each a function; `work` is whatever its `open` has opened."""

    name: str  # of run folders and messages
    config: type[RecipeFlags]
    # config, device -> config as it is run, work
    open: Callable[[Any, torch.device], tuple[Any, Any]]
    plan: Callable[[Any, Any, Path, int], Plan]  # config, work, folder, steps that are done
    train: Callable[[Any, Any, MetricLog, Path], Rows]  # config, work, log, folder
    # likewise: the model, and what is measured of it
    keep: Callable[[Any, Any, MetricLog, Path], None]

    def run(self, config: RecipeFlags) -> Path:
        """The whole command; returns its run folder."""
        return run_stage(self, config)

    def run_as_command(self) -> None:
        """Parse the flags over the recipe, then `run`."""
        run_with_recipe(self.run, self.config)


@reading()
def run_stage(stage: Stage, config: RecipeFlags) -> Path:
    """Open, plan, train and keep, in a run folder that can be resumed."""
    device = open_device(config.device, config.precision)
    if isinstance(config, ModelFlags):
        warn_of_memory(config, device)
    folder = config.out or default_folder(stage.name, config.data, config.model_name)
    if config.resume and not is_world(config.data):
        split_as_before(folder)
    begin = time.perf_counter()
    if config.resume:
        config = as_begun(folder, config)
    name_columns(config.data, config.columns)
    config, work = stage.open(config, device)
    folder = open_run(folder, config, resume=config.resume)
    done = saved_step(folder) if config.resume else 0
    plan = stage.plan(config, work, folder, done)
    if config.minutes and not config.resume:
        config, plan = in_time(stage, config, work, folder, plan, begin)
    if getattr(config, "steps", None) is None:
        record_steps(folder, plan.steps)
    log = MetricLog(
        plan.steps, path=folder / "metrics.jsonl", every=plan.every, show=plan.show, start=done,
        title=plan.title or stage.name, extra_steps=plan.extra_steps, last_steps=plan.last_steps,
    )  # fmt: skip
    said = f"{plan.said} for {plan.steps:,} steps ({device}, {config.precision})"
    print(said, *filter(None, [plan.more]), sep="\n")
    with training_steps(log, folder):
        stage.train(config, work, log, folder)
    stage.keep(config, work, log, folder)
    write_report(folder)
    stopped = any("kept_step" in row for row in log.rows[-1:])
    finish_run(folder, can_go_on=not config.fixed_length and not stopped)
    return folder


# --minutes ------------------------------------------------------------------------------------------


class Measured(Exception):
    """A trial has seen enough steps."""


class Trial(MetricLog):
    """Ends a training by `Measured` after three steps, or fewer that take a twentieth of the time."""

    def __init__(self, plan: Plan, seconds: float) -> None:
        super().__init__(plan.steps, extra_steps=plan.extra_steps, last_steps=plan.last_steps)
        self.enough, self.opened = seconds / 20, 0.0  # opened: until the first step

    def start_step(self) -> float:
        now = super().start_step()
        self.opened = self.opened or now - self.begin
        return now

    def write(self, *, step: int, **metrics: object) -> None:
        super().write(step=step, **metrics)
        if gather(len(self.rows) >= 3 or self.timed >= self.enough)[0]:
            raise Measured


def in_time(
    stage: Stage, config: Any, work: Any, folder: Path, plan: Plan, begin: float
) -> tuple[Any, Plan]:
    """The config and plan of as many steps as end in --minutes after `begin`, by a trial.

    The trial is undone, so that every schedule knows the number from its first step on: the run is that
    of --steps with this number, bit for bit.
    """
    log, place = Trial(plan, 60 * config.minutes), folder / f".trial.{os.getpid()}.tmp"
    models = list(trained(work))
    before = [{name: t.clone() for name, t in model.state_dict().items()} for model in models]
    on_main(place.mkdir)
    with suppress(Measured):
        stage.train(config, work, log, place)
    on_main(lambda: shutil.rmtree(place))
    for model, state in zip(models, before, strict=True):
        model.load_state_dict(state)
        model.zero_grad(set_to_none=True)
    left = begin + 60 * config.minutes - time.perf_counter() - log.opened
    steps = gather(min(log.steps_in(left), plan.steps))[0]
    print(
        f"--minutes {config.minutes:g}: {steps:,} of {plan.steps:,} steps fit, of {log.usual():.2g} s"
    )
    chosen = dict(steps=steps, warmup_steps=warm_up(config.warmup_steps, steps))
    record_choice(folder, **chosen)
    return replace(config, **chosen), replace(
        plan, steps=steps, extra_steps=plan.extra_steps * steps / plan.steps
    )


def trained(work: object) -> Iterator[nn.Module]:
    """The models among what a stage has opened that have weights to train."""
    if isinstance(work, nn.Module):
        if any(weight.requires_grad for weight in work.parameters()):
            yield work
        return
    parts: Any = vars(work) if is_dataclass(work) else work
    for part in parts.values() if isinstance(parts, dict) else parts:
        if isinstance(part, nn.Module | dict | tuple) or is_dataclass(part):
            yield from trained(part)
