"""The entry of an engine: one `ENGINE = Engine(...)` at the end of its file says what others must know.

The soak, the study, the contract tests and the table of engines
read it, and `run_training` runs it. It is a record and no framework: the loop stays in the engine's
`train`, and nothing inherits.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rl.training.config import EngineConfig, RunFlags


def batch_description(config: EngineConfig) -> str:
    """The derived sizes of a batch in words, printed before a run."""
    rows = config.prompts_per_step * config.group_size
    minibatches = min(config.minibatches, config.prompts_per_step)
    return (
        f"{config.prompts_per_step} prompts x {config.group_size} responses = {rows} rows a step; "
        f"{config.updates_per_batch * minibatches} optimizer steps on about {rows // minibatches} "
        f"rows each, {config.micro_batch_size} rows per forward"
    )


@dataclass(frozen=True)
class Engine:
    """What runs an engine, what it needs, and what its box is called.

    `train(config, run)` is its loop (rl/loop.py has `Run`). It gets by keyword what `prepare(config,
    task)` returns (a critic, a corpus), and where `reference` says so `run.reference` is the start of
    the run; else a copy is made. `own_reward` opens the reward in the place of --reward's, where it is
    not None.
    """

    name: str  # of run folders and messages: grpo
    box: str  # what the paper calls it: GRPO
    config: Callable[..., Any]
    train: Callable[..., list[dict[str, Any]]]
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"tiny": {}})
    prepare: Callable[..., dict[str, Any]] | None = None
    describe: Callable[[Any], str] = batch_description
    own_reward: Callable[[Any], Callable[..., Any] | None] = lambda config: None
    reference: Callable[[Any], bool] = lambda config: True
    learns_from: Literal["reward", "teacher", "pairs"] = "reward"
    groups: bool = True  # whether the responses to a prompt are compared
    toy: str = ""  # flags of a run of seconds that shows all of it
    run_name: Callable[[Any], str] | None = None  # where a flag decides what the run is called

    @property
    def module(self) -> str:
        """Where its file is imported from: rl.grpo_engine."""
        return self.train.__module__

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process it goes by its module: functions without a name cannot be sent."""
        return entry_of, (self.module,)

    def run(self, config: RunFlags) -> Path:
        """Load policy, prompts and reward; train; write all files of the run. Returns its folder."""
        from rl.training.whole_run import whole_run  # files, reports, pages: no loop needs them

        return whole_run(self, config)

    def run_as_command(self) -> None:
        """What stands under `__name__ == "__main__"`: parse the flags, then `run`."""
        from harness.command_line import run_command

        run_command(self.run, self.config, self.presets)

    def name_of(self, config: RunFlags) -> str:
        """What a run with these flags is called."""
        return self.name if self.run_name is None else self.run_name(config)


def entry_of(module: str) -> Engine:
    """The `ENGINE` of a module, such as rl.grpo_engine."""
    entry: Engine = importlib.import_module(module).ENGINE
    return entry
