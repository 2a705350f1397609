"""One run of an engine: its models, what they learn from, and the verbs of a step.

An engine's `train(run)` shows its paper's lines, `loss.backward()` and the step. What every engine
does alike around them stands here once: the clock, the precision, the metrics row, the KL
controller and limit, validation, checkpoints. Nothing inherits; an engine calls the verbs it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from data.collate import ResponseBatch
from data.records import PromptRecord
from gpt.generate import Mixture, SamplingParams
from gpt.log_probs import TokenScores, token_scores
from gpt.lora import frozen_copy
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from harness.device import precision
from harness.flags import SMALL
from harness.metric_log import MetricLog
from harness.optimizer import adamw, check_losses, clip_and_step, set_learning_rate
from harness.process import give_back_freed_memory
from harness.ranks.collectives import check_alike
from harness.seeds import make_generator
from harness.training_state import TrainingState, keep_state
from rl.batches.rollout import (
    Rollout,
    Update,
    epoch_minibatches,
    micro_batches,
    old_policy_log_probs,
    prompt_batch,
    rollout_log_probs,
    sample_rollout,
)
from rl.equations.advantages import gdpo_advantages, group_advantages, score_missing_eos
from rl.equations.kl import FixedKL
from rl.rewards.reward import RewardFn, checked_rewards
from rl.run.config import EngineConfig, RunFlags, kl_controller, warmed_up
from rl.run.kl_limit import KLLimit
from rl.run.metrics import (
    ClipMask,
    StepBatch,
    Stopwatch,
    UpdateMeter,
    no_clip,
    rollout_metrics,
    sequence_kl,
)

# (policy, the model that the KL is measured from, step) -> numbers
Validate = Callable[[GPT, GPT | None, int], dict[str, float]]


@runtime_checkable
class KeepsBatches(Protocol):
    """A `Validate` that keeps what a step was trained on, such as rl/run/evaluation.py's."""

    def record(self, policy: GPT, start: GPT | None, step: int, batch: StepBatch) -> None: ...


class Run:
    """A policy in training and all that its engine's loop needs; it can be made without any file.

    `start` is the policy as it starts, frozen; a copy is made where one is needed and none is given.
    With `validate` its numbers are added every `eval_every` steps; with a `folder` a resumable state is
    kept there, with which `--resume` goes on. A run is one training: after its end no step is left.
    """

    def __init__(
        self,
        config: RunFlags,
        policy: GPT,
        tokenizer: Tokenizer,
        reward_fn: RewardFn | None = None,
        prompts: Sequence[PromptRecord] = (),
        log: MetricLog | None = None,
        *,
        start: GPT | None = None,
        validate: Validate | None = None,
        folder: Path | None = None,
    ) -> None:
        self.config: Any = config  # the engine's own
        self.clip_mask: ClipMask = no_clip  # an engine with a clip says where it acts, for the log
        # Dropout stays off: old and new log-probs must describe the same function.
        self.policy, self.tokenizer = policy.eval(), tokenizer
        self.reward_fn, self.records, self.log = reward_fn, prompts, log or MetricLog(config.steps)
        self.validate, self.folder = validate, folder
        self.start = start
        self.reference: GPT | None = None
        self.params = SamplingParams(config.temperature, max_new_tokens=config.max_new_tokens)
        self.generators = {n: make_generator(config.seed, n) for n in ("sampling", "minibatches")}
        optimizer = adamw(policy, config.lr, weight_decay=0.0)
        # Each with its peak learning rate: the policy, and where there is one the critic.
        self.trained: list[tuple[nn.Module, torch.optim.Optimizer, float]]
        self.trained = [(policy, optimizer, config.lr)]
        self.parts: dict[str, Any] = {"policy": policy, "optimizer": optimizer}
        self.kl = kl_controller(config) if isinstance(config, EngineConfig) else FixedKL(0.0)
        # Nats from the start at which the run stops early; None: it does not.
        self.kl_limits = config.kl_limits if isinstance(config, EngineConfig) else None
        self.parts["kl"] = self.kl
        self.inside: KLLimit | None = None
        self.measures_start = False  # where the reference moves, and a limit is from the start
        self.state: TrainingState | None = None  # from the first step on
        self.ended = False
        # Of the step that is under way, and of its optimizer step.
        self.lr, self.clock, self.meter = config.lr, Stopwatch(), UpdateMeter()
        self.loss = policy.wte.weight.new_zeros(())
        self.old: Tensor | None = None  # log pi_old of the step's tokens, (N, T)

    # --- before the first step --------------------------------------------------------------------

    def freeze_reference(self, *, moves: bool = False) -> GPT:
        """Freeze a copy of the policy as the reference. Call it before the first step.

        Resuming restores it. `moves`: the engine overwrites it later; it is then no start, of which a KL
        limit keeps a copy as well. RuntimeError once a run has begun.
        """
        if self.state is not None:  # it would be a copy of a policy that has moved
            raise RuntimeError("freeze the reference before the first step: a run is one training")
        if moves:
            self.reference = self.parts["reference"] = frozen_copy(self.policy)
            self.measures_start = self.kl_limits is not None
            if self.measures_start and self.start is None:
                self.start = self.parts["start"] = frozen_copy(self.policy)
            return self.reference
        if self.start is None:  # one that is given is there again when the run is resumed
            self.start = self.parts["reference"] = frozen_copy(self.policy)
        self.reference = self.start
        return self.reference

    def restored(self) -> TrainingState:
        """All that changes during the run; with --resume as an earlier run has left it.

        The first step calls it. An engine that uses its reference before that calls it itself.
        """
        if self.state is None:
            if self.kl_limits is not None:
                self.parts["inside"] = self.inside = KLLimit(self.policy, *self.kl_limits)
            self.state = TrainingState(self.parts, self.generators)
            if self.config.resume and self.folder is not None:
                self.state.load(self.folder)
        return self.state

    # --- the verbs of a step ------------------------------------------------------------------------

    def steps(self, share: Callable[[Any, int], float] = warmed_up) -> Iterator[int]:
        """The 0-based steps that are left, each with its learning rate, a new clock and meter.

        They end with the step that leaves the KL limit, if there is one. `share` is the part of the peak
        learning rate that a step has (default: a linear warm-up). RuntimeError for a run that has ended.
        """
        if self.ended:
            raise RuntimeError("this run has ended: make another Run to train on")
        with torch.enable_grad():  # in the engine's loop, whatever a notebook has set
            for step in self.restored().steps_left(self.config.steps):
                self.lr = self.config.lr * share(self.config, step)
                for _, optimizer, peak in self.trained:
                    set_learning_rate(optimizer, peak * share(self.config, step))
                self.clock, self.meter = Stopwatch(), UpdateMeter(self.clip_mask)
                self.old = None
                self.log.start_step()
                yield step
                if self.ended:
                    return

    def prompts(self, step: int) -> list[PromptRecord]:
        """The prompts of a step, in shuffled epochs."""
        return prompt_batch(self.records, step, self.config.prompts_per_step, self.config.seed)

    def precise(self) -> AbstractContextManager[None]:
        """Inside the models compute in --precision."""
        return precision(self.policy.device, self.config.precision)

    def sample(self, records: Sequence[PromptRecord], *, mixture: Mixture | None = None) -> Rollout:
        """`group_size` answers to each prompt by the policy, which is the old policy from then on.

        With a `mixture` a teacher draws each token with it.
        """
        size, generator = self.config.group_size, self.generators["sampling"]
        given = self.policy, self.tokenizer, records, self.params, size, generator
        with self.clock.phase("rollout"), self.precise():
            return sample_rollout(*given, mixture=mixture)

    def rewards(self, rollout: Rollout) -> Tensor:
        """The rewards of the answers, (N,), all finite; an answer that was cut off pays its penalty."""
        if self.reward_fn is None:
            raise ValueError("this run has no reward: give Run a reward_fn")
        with self.clock.phase("reward"):
            rewards = checked_rewards(self.reward_fn, rollout)
        return score_missing_eos(rewards, rollout.has_eos, self.config.missing_eos_penalty)

    def group_advantages(self, rollout: Rollout, rewards: Tensor) -> Tensor:
        """The rewards (N,) compared within their groups, (N, 1); by GDPO each of several by itself."""
        if self.config.reward_combination == "sum":
            return group_advantages(rewards, self.config.group_size)
        columns = torch.stack([*rollout.reward_columns.values()] or [rewards], 1)  # (N, K)
        weights = getattr(self.reward_fn, "weights", (1.0,))
        return gdpo_advantages(columns, weights, self.config.group_size)

    def old_log_probs(self, rollout: Rollout, *, groups: bool = True) -> Tensor:
        """log pi_old of the tokens, (N, T), a constant; whole groups as the `minibatches` that follow."""
        coming = torch.Generator().set_state(self.generators["minibatches"].get_state())
        size = self.config.group_size if groups else 1
        minibatches = epoch_minibatches(len(rollout), self.config.minibatches, 1, coming, size)
        forwards = chain.from_iterable(self.micro_batches(rollout, rows) for rows in minibatches)
        with self.clock.phase("score"):
            self.old = old_policy_log_probs(self.policy, rollout, self.config, forwards)
        return self.old

    def log_probs(self, model: GPT, rollout: Rollout) -> Tensor:
        """The log-probs of the tokens under any model, (N, T), a constant."""
        with self.clock.phase("score"):
            return rollout_log_probs(model, rollout, self.config)

    def ref_log_probs(
        self, reference: GPT, rollout: Rollout, *, needed: bool = False
    ) -> Tensor | None:
        """log pi_ref, (N, T), a constant; None if no penalty, no KL limit and no `needed` asks for it.

        Call it behind `old_log_probs` and before the update, which a KL limit may have to undo.
        """
        if not (needed or self.kl.coef or self.kl_limits):
            return None
        ref = self.log_probs(reference, rollout)
        if self.inside is not None:
            old = rollout.log_probs if self.old is None else self.old
            moved = self.start if self.measures_start else None
            start = ref if moved is None else self.log_probs(moved, rollout)
            kl = float(sequence_kl(old, start, rollout.response_mask))
            length = float(rollout.lengths.float().mean())
            self.inside.before_update(kl, kl / length, self.restored().step)
        return ref

    def minibatches(
        self, rollout: Rollout, *, groups: bool = True, epochs: int | None = None
    ) -> Iterator[Tensor]:
        """The rows of every optimizer step, shuffled, with gradients of zero; whole groups or not."""
        if len(rollout) == 0:
            return
        size = self.config.group_size if groups else 1
        epochs = self.config.updates_per_batch if epochs is None else epochs
        generator = self.generators["minibatches"]
        self.give_back()
        with self.clock.phase("update"):
            for rows in epoch_minibatches(
                len(rollout), self.config.minibatches, epochs, generator, size
            ):
                self.zero_grad()
                yield rows
            self.zero_grad()  # while a step samples there are none

    def give_back(self) -> None:
        """A large model's rollouts and updates fill each other's gaps badly: start each without any."""
        if self.policy.parameter_count() >= SMALL:
            give_back_freed_memory()

    def zero_grad(self) -> None:
        """Zero the gradients and the running loss."""
        for _, optimizer, _ in self.trained:
            optimizer.zero_grad(set_to_none=True)
        self.loss = self.policy.wte.weight.new_zeros(())

    def micro_batches(
        self, rollout: Rollout, rows: Tensor
    ) -> Iterator[tuple[Tensor, ResponseBatch]]:
        """A minibatch in forwards, those of the old log-probs too: which rows, and their sequences."""
        config = self.config
        return micro_batches(rollout.sequences, rows, config.micro_batch_size, config.rows_together)

    def scores(
        self, policy: GPT, batch: ResponseBatch, *, entropy_gradient: bool = False
    ) -> TokenScores:
        """Log-probs and entropies of the batch's tokens, (n, T) each, with a gradient."""
        with self.precise():
            return token_scores(
                policy, batch, self.config.temperature, entropy_gradient=entropy_gradient
            )

    def record(
        self,
        loss: Tensor,
        scores: TokenScores,
        given: Update,
        batch: ResponseBatch,
        **measured: Tensor,
    ) -> None:
        """Count a forward for the log, after its backward; `measured`: more numbers per token, (n, T)."""
        self.loss += loss.detach()
        self.meter.add_tokens(scores, given.old, given.advantages, batch, **measured)

    def optimizer_step(self, **losses: float) -> Tensor:
        """Clip the gradient at `max_grad_norm` and let AdamW step; returns the norm from before the clip.

        A critic's gradient is clipped by its own norm: one over both would let a critic that is far off
        shrink the policy's step. `losses` are what the logged loss is made of.
        """
        norm, *of_critic = [
            clip_and_step(optimizer, model.parameters(), self.config.max_grad_norm)
            for model, optimizer, _ in self.trained
        ]
        self.meter.add_update(self.loss, norm, of_critic[0] if of_critic else None, **losses)
        return norm

    # --- after the updates ----------------------------------------------------------------------------

    def finish_step(
        self,
        step: int,
        rollout: Rollout,
        rewards: Tensor,
        update: Update,
        *,
        kl_to_hold: str = "kl",
        measured: Mapping[str, float] | None = None,
    ) -> None:
        """Make the step's row, let the KL controller hold its `kl_to_hold`, then `close_step`.

        `measured`: more numbers of the step, for the row. ValueError for a KL limit without its KL:
        nobody would know which policy was inside it.
        """
        inside = self.inside
        if inside and inside.measured != step:
            raise ValueError(
                "a limit of the KL needs that from the reference: let the engine give run.ref_log_probs "
                "to its Update, or leave stop_kl and stop_kl_per_token out (None)"
            )
        from_start = {"kl_from_start": inside.kl} if inside and self.measures_start else {}
        row = self.row(rollout, rewards, update.old, update.ref) | from_start | dict(measured or {})
        if kl_to_hold in row:
            self.kl.update(row[kl_to_hold], len(rollout))
        self.close_step(step, row, StepBatch(rollout, rewards, update, self.clip_mask))

    def row(
        self,
        rollout: Rollout,
        rewards: Tensor,
        old_log_probs: Tensor,
        ref_log_probs: Tensor | None = None,
        *,
        updated: bool = True,
    ) -> dict[str, float]:
        """The numbers that every engine logs of a step (docs/metrics.md), with those of its updates."""
        row = rollout_metrics(rollout, rewards, old_log_probs, ref_log_probs)
        row |= self.meter.metrics() if updated else {}
        row |= {"kl_coef": self.kl.coef, "lr": self.lr}
        return row | self.clock.metrics(tokens=rollout.tokens)

    def close_step(self, step: int, row: dict[str, Any], batch: StepBatch | None = None) -> None:
        """Validate, log and checkpoint the 0-based `step`.

        A run ends after config.steps, or early once the KL per response from the start exceeds its limit:
        then the policy becomes again what it last was inside, and that is what is validated and kept.
        `batch` is what the step was trained on, for the token log.
        """
        state, inside, done = self.restored(), self.inside, step + 1
        state.step = done
        undone = inside.after_step() if inside else {}
        last = done == self.config.steps or bool(undone)
        row = row | undone
        if self.validate is not None and (done % self.config.eval_every == 0 or last):
            measured_from = self.start or self.reference
            row = row | self.validate(self.policy, measured_from, done)
            if inside and last and not undone and (undone := inside.at_end(row)):
                row = row | undone | self.validate(self.policy, measured_from, done)
            if batch is not None and isinstance(self.validate, KeepsBatches):
                self.validate.record(self.policy, measured_from, done, batch)
            check_alike(self.policy)
        check_losses(row)
        self.log.write(step=done, **row)
        state.stopped = bool(undone)
        self.ended = last
        keep_state(state, self.folder, self.config.save_every, last=last)
