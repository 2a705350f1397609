"""What an engine asks of the run around it: to finish a step, and to be run from start to end."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from gpt.model import GPT
from harness.metric_log import MetricLog
from harness.optimizer import check_losses
from harness.ranks.collectives import check_alike
from harness.training_state import TrainingState, keep_state
from rl.training.config import RunFlags
from rl.training.engine import Engine
from rl.training.metrics import StepBatch, kl_exceeded


class Validate(Protocol):
    """What measures a policy every `eval_every` steps, such as rl/training/evaluation.py's Validation."""

    def __call__(self, policy: GPT, reference: GPT | None, step: int, /) -> dict[str, float]: ...


@runtime_checkable
class Records(Protocol):
    """A validation that also keeps some of what a step was trained on, as a plain function does not."""

    def record(self, policy: GPT, reference: GPT | None, step: int, batch: StepBatch) -> None: ...


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

    A run ends after config.steps, or early once the KL per response exceeds its limit. With a
    validation the token log keeps some of `batch`, what the step was trained on.
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
    """Load policy, prompts and reward; train; write weights, metrics, samples, figure and report.

    Test prompts are sampled once, after training. Returns the run folder.
    """
    from rl.training.whole_run import whole_run  # files, forecasts, pages: no loop needs them

    return whole_run(engine, config)


def run_as_command(engine: Engine) -> None:
    """What stands under `__name__ == "__main__"`: parse the flags, then `run_training`."""
    from harness.command_line import run_command

    run_command(partial(run_training, engine), engine.config, engine.presets)
