"""What an engine asks of the run around it: to finish a step, and to be run from start to end."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from gpt.generate import SamplingParams
from gpt.model import GPT
from harness.metric_log import MetricLog
from harness.optimizer import adamw, check_losses
from harness.ranks.collectives import check_alike
from harness.seeds import make_generator
from harness.training_state import (
    HasState,
    TrainingState,
    changing_state,
    keep_state,
    load_changing_state,
)
from rl.equations.kl import AdaptiveKL, FixedKL
from rl.training.config import EngineConfig, RunFlags, kl_controller
from rl.training.engine import Engine
from rl.training.metrics import StepBatch, exceeds


class Validate(Protocol):
    """What measures a policy every `eval_every` steps, such as rl/training/evaluation.py's Validation."""

    def __call__(self, policy: GPT, reference: GPT | None, step: int, /) -> dict[str, float]: ...


@runtime_checkable
class Records(Protocol):
    """A validation that also keeps some of what a step was trained on, as a plain function does not."""

    def record(self, policy: GPT, reference: GPT | None, step: int, batch: StepBatch) -> None: ...


class InsideLimit:
    """The policy as it last was inside the KL limit, so that the update that leaves it is undone.

    A step measures the KL of the policy that sampled, before its update. So two sets of weights are
    kept: those measured last and found inside, and those that the next step will measure.
    """

    def __init__(self, policy: GPT, limit: float) -> None:
        self.policy, self.limit = policy, limit
        self.inside = self.newest = self._weights()  # the start of the run, 0 nats from itself
        self.steps = self.newest_steps = 0  # after how many steps they were the policy's

    def _weights(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in changing_state(self.policy).items()}

    def leaves(self, kl: float, steps: int) -> bool:
        """Whether the policy that sampled step number `steps` was outside; a KL of NaN is."""
        if exceeds(kl, self.limit):
            return True
        self.inside, self.steps = self.newest, self.newest_steps
        self.newest, self.newest_steps = self._weights(), steps
        return False

    def undo(self) -> None:
        """Make the policy again what it last was inside the limit."""
        load_changing_state(self.policy, self.inside)

    def state_dict(self) -> dict[str, Any]:
        return {"inside": self.inside, "steps": self.steps, "newest_steps": self.newest_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """After the policy, which is restored first."""
        device = self.policy.device
        self.inside = {name: tensor.to(device) for name, tensor in state["inside"].items()}
        self.steps, self.newest_steps = state["steps"], state["newest_steps"]
        self.newest = self._weights()


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
    if config.kl_limit is not None:
        parts["inside"] = InsideLimit(policy, config.kl_limit)
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

    A run ends after config.steps, or early once the KL per response exceeds its limit: then the
    policy becomes again what it last was inside, and that is what is validated and kept. `batch` is
    what the step was trained on, for the token log.
    """
    inside = cast(InsideLimit | None, state.parts.get("inside"))
    outside = inside is not None and "kl" in row and inside.leaves(float(row["kl"]), state.step)
    last = state.step == config.steps or outside
    if inside is not None and outside:
        inside.undo()
        row = row | {"kept_step": inside.steps}
    if validate is not None and (state.step % config.eval_every == 0 or last):
        measured = validate(*models, state.step)
        far = inside is not None and exceeds(measured.get("validation/kl", 0.0), inside.limit)
        if inside is not None and last and not outside and far:  # the last update has left it
            inside.undo()
            measured = validate(*models, state.step) | {"kept_step": inside.steps}
        row = row | measured
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
