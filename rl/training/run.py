"""What an engine asks of the run around it: to finish a step, and to be run from start to end."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from gpt.generate import SamplingParams
from gpt.model import GPT
from harness.metric_log import MetricLog
from harness.optimizer import adamw, check_losses
from harness.ranks.collectives import check_alike
from harness.seeds import make_generator
from harness.training_state import HasState, TrainingState, keep_state
from rl.equations.kl import AdaptiveKL, FixedKL
from rl.training.config import EngineConfig, RunFlags, kl_controller
from rl.training.engine import Engine
from rl.training.metrics import StepBatch, kl_exceeded


class Validate(Protocol):
    """What measures a policy every `eval_every` steps, such as rl/training/evaluation.py's Validation."""

    def __call__(self, policy: GPT, reference: GPT | None, step: int, /) -> dict[str, float]: ...


@runtime_checkable
class Records(Protocol):
    """A validation that also keeps some of what a step was trained on, as a plain function does not."""

    def record(self, policy: GPT, reference: GPT | None, step: int, batch: StepBatch) -> None: ...


class SetUp(NamedTuple):
    """What a loop works with, as it starts or as an earlier run has left it."""

    params: SamplingParams
    optimizer: torch.optim.Optimizer
    kl: FixedKL | AdaptiveKL
    generators: dict[str, torch.Generator]
    state: TrainingState


def set_up(
    config: EngineConfig,
    policy: GPT,
    folder: Path | None,
    optimizer: torch.optim.Optimizer | None = None,
    /,
    **parts: HasState,
) -> SetUp:
    """What a loop that trains `policy` needs; with --resume the state in the folder is restored.

    `parts` are what else a step may change, or a resumed run needs as it was: the reference.
    """
    policy.eval()  # dropout stays off: old and new log-probs must describe the same function
    optimizer, kl = optimizer or adamw(policy, config.lr, weight_decay=0.0), kl_controller(config)
    generators = {name: make_generator(config.seed, name) for name in ("sampling", "minibatches")}
    state = TrainingState({"policy": policy, **parts, "optimizer": optimizer, "kl": kl}, generators)
    if config.resume and folder is not None:
        state.load(folder)
    params = SamplingParams(config.temperature, max_new_tokens=config.max_new_tokens)
    return SetUp(params, optimizer, kl, generators, state)


def finish_step(
    config: RunFlags,
    state: TrainingState,
    row: dict[str, Any],
    log: MetricLog,
    models: tuple[GPT, GPT | None],  # policy and reference
    validate: Validate | None,
    folder: Path | None,
    batch: StepBatch | None = None,
) -> bool:
    """Validate, log and checkpoint the step that `state.step` counts; True if it was the last.

    A run ends after config.steps, or early once the KL per response exceeds its limit. `batch` is
    what the step was trained on, for the token log.
    """
    last = state.step == config.steps or kl_exceeded(log.rows, row, config.kl_limit)
    if validate is not None and (state.step % config.eval_every == 0 or last):
        row = row | validate(*models, state.step)
        if batch is not None and isinstance(validate, Records):
            validate.record(*models, state.step, batch)
        check_alike(models[0])
    check_losses(row)
    log.write(step=state.step, **row)
    state.stopped = last and state.step < config.steps
    keep_state(state, folder, config.checkpoint_every, last=last)
    return last


def run_training(engine: Engine, config: RunFlags) -> Path:
    """Load policy, prompts and reward; train; write all files of the run. Returns its folder."""
    from rl.training.whole_run import whole_run  # files, forecasts, pages: no loop needs them

    return whole_run(engine, config)


def run_as_command(engine: Engine) -> None:
    """What stands under `__name__ == "__main__"`: parse the flags, then `run_training`."""
    from harness.command_line import run_command

    run_command(partial(run_training, engine), engine.config, engine.presets)
