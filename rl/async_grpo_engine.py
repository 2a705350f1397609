"""GRPO whose sampler is older or less precise than the policy, with a correction by name.

With --lag 0 and --sampler-precision float32 it is rl/grpo_engine.py bit for bit.

    line 1     policy model <- initial policy          the pre-trained or fine-tuned GPT
    line 3     reference model <- policy               reference (frozen copy)
    line 4     for step = 1..M                         steps
    line 5     sample a batch of prompts               prompt_batch
    line 6     mu <- policy `lag` steps ago, rounded   Sampler; the policy itself at lag 0
    line 7     sample G outputs per prompt from mu     sample_rollout
    line 8     rewards of the outputs                  reward_fn
    line 9     group-relative advantages               group_advantages
    line 10    old policy <- policy; w from old / mu   rollout_log_probs, sampler_weights
    line 11    for GRPO iteration = 1..mu              updates_per_batch
    line 12    ascend w times GRPO's objective         async_grpo_loss: clipped_surrogate, or dppo

What is new next to GRPO are lines 6, 7, 10 and 12.

`--correction` names a row of CORRECTIONS (rl/equations/sampler_correction.py). docs/off_policy.md says
which of them to take.

    python -m rl.async_grpo_engine --data sums --lag 16 --correction sequence_tis
    python -m rl.async_grpo_engine --sampler-precision int8 --correction none
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from data.records import PromptRecord
from gpt.generate import SamplingParams
from gpt.log_probs import token_scores
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from harness.device import precision
from harness.flag_ranges import Count, Limit, NotNegative
from harness.frozen_copy import frozen_copy
from harness.metric_log import MetricLog
from harness.optimizer import adamw, clip_and_step, set_learning_rate
from harness.seeds import make_generator
from harness.training_state import TrainingState
from rl.batches.rollout import (
    Rollout,
    epoch_minibatches,
    micro_batches,
    old_policy_log_probs,
    prompt_batch,
    rollout_log_probs,
    sample_rollout,
)
from rl.batches.samplers import Sampler
from rl.equations.advantages import group_advantages
from rl.equations.kl import k3
from rl.equations.losses import (
    clip_acted,
    clipped_surrogate,
    likelihood_ratio,
    sequence_mean,
)
from rl.equations.sampler_correction import (
    dppo,
    dppo_left_out,
)
from rl.rewards.sources import RewardFn, checked_rewards
from rl.training.config import kl_controller, require_groups, size_presets, warmed_up
from rl.training.engine import Engine
from rl.training.metrics import StepBatch, Stopwatch, UpdateMeter, as_floats, rollout_metrics
from rl.training.run import Validate, finish_step, run_as_command, run_training
from rl.training.sampler_weights import SamplerFlags, weighed

PRESETS = size_presets()


@dataclass(frozen=True)
class AsyncGRPOConfig(SamplerFlags):
    """Improve a policy with GRPO whose sampler is another policy."""

    lag: Count = 0
    """Optimizer steps by which the policy that samples is older than the policy that begins an update."""
    dppo_delta: NotNegative = 0.2
    """delta: how far a token may have moved from the sampler, in DPPO's TV or KL."""
    stale_kl: Limit | None = None
    """Nats per answer: a group whose mean KL(mu, pi_old) exceeds them is stale; by default none is."""
    stale: Literal["drop", "weight"] = "drop"
    """What a stale group's advantages are multiplied by. drop: 0. weight: stale_kl / its KL."""
    samplers: Count = 0
    """So many ranks sample while the others train; each is a batch ahead, so lag is at least theirs."""
    on_dead_sampler: Literal["end", "replace"] = "end"
    """What follows where a sampler is killed. end: the run ends. replace: a new process does its work."""
    clip_low: NotNegative = 0.2
    """epsilon below 1."""
    clip_high: NotNegative = 0.2
    """epsilon above 1."""

    has_own_losses = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_groups(self)
        ahead = self.samplers * self.steps_per_batch
        if self.lag < ahead:
            raise ValueError(
                f"samplers {self.samplers} are {ahead} optimizer steps ahead, {self.steps_per_batch} a "
                f"batch: give lag {ahead} or more, not {self.lag}"
            )

    @property
    def steps_per_batch(self) -> int:
        """Optimizer steps on one rollout."""
        return self.updates_per_batch * min(self.minibatches, self.prompts_per_step)

    @property
    def versions(self) -> range:
        """After how many optimizer steps the policy draws each batch, some more than this run has.

        Below 0 it is the start. Empty where the policy draws all of them as it is.
        """
        end = 0 if self.on_policy else self.steps * self.steps_per_batch + 1
        return range(-self.lag, end, self.steps_per_batch)

    @property
    def on_policy(self) -> bool:
        """Whether the policy itself samples."""
        return self.lag == 0 and not self.rounds

    @property
    def clip(self) -> tuple[float, float] | None:
        """GRPO's clip range; None where the correction measures from the sampler."""
        return (self.clip_low, self.clip_high) if self.row.against == "old" else None


def async_grpo_loss(  # line 12
    config: AsyncGRPOConfig,
    log_probs: Tensor,  # (n, T)
    anchor: Tensor,  # (n, T) log-probs of the old policy, or of the sampler
    ref_log_probs: Tensor | None,  # (n, T)
    advantages: Tensor,  # (n, T), weighted
    response_mask: Tensor,  # (n, T)
    *,
    kl_coef: float,
    rows: int,
) -> Tensor:
    """GRPO's objective with weighted advantages: -1/G sum_i 1/|o_i| sum_t min[ratio w A, ...].

    The ratio is pi / pi_old, or pi / mu where the correction says so; DPPO has an objective of its own.
    The KL penalty is not weighted.
    """
    if config.row.divergence is not None:
        token_loss = dppo(log_probs, anchor, advantages, config.row.divergence, config.dppo_delta)
    else:
        token_loss = clipped_surrogate(
            log_probs, anchor, advantages, config.clip_low, config.clip_high
        )
    if ref_log_probs is not None:
        token_loss = token_loss + kl_coef * k3(log_probs, ref_log_probs)
    return sequence_mean(token_loss, response_mask, denominator=rows)  # 1/rows sum 1/|o_i| sum


@torch.no_grad()
def corrected(  # line 10
    config: AsyncGRPOConfig,
    advantages: Tensor,  # (N, 1)
    old_log_probs: Tensor,  # (N, T)
    sampler_log_probs: Tensor,  # (N, T)
    mask: Tensor,  # (N, T)
) -> tuple[Tensor, dict[str, float]]:
    """The advantages (N, T) with the weights of the correction, and what is logged of the sampler."""
    weights, kl, numbers = weighed(config, old_log_probs, sampler_log_probs, mask)
    share = stale_share(config, kl.view(-1, config.group_size).mean(1))
    numbers["stale_groups"] = (share < 1).float().mean()
    weights = weights * share.repeat_interleave(config.group_size)[:, None]
    return weights * advantages, as_floats(numbers)


def stale_share(config: AsyncGRPOConfig, kl: Tensor) -> Tensor:
    """What a rule leaves of each group's advantages, (groups,), from its KL(mu, pi_old), (groups,)."""
    if config.stale_kl is None:
        return torch.ones_like(kl)
    less = config.stale_kl / kl if config.stale == "weight" else torch.zeros_like(kl)
    return torch.where(kl > config.stale_kl, less, 1.0)


def acted(config: AsyncGRPOConfig, log_probs: Tensor, anchor: Tensor, advantages: Tensor) -> Tensor:
    """Where the objective gives no gradient: the clip acts, or DPPO leaves the token out."""
    if config.row.divergence is not None:
        return dppo_left_out(
            log_probs, anchor, advantages, config.row.divergence, config.dppo_delta
        )
    ratio = likelihood_ratio(log_probs, anchor)
    return clip_acted(ratio, advantages, config.clip_low, config.clip_high)


def draw_batch(
    config: AsyncGRPOConfig,
    tokenizer: Tokenizer,
    prompts: Sequence[PromptRecord],
    generator: torch.Generator,
    mu: GPT,
    step: int,
) -> Rollout:
    """The answers of 0-based `step` from mu: with a lag the same ones, whoever draws them and when."""
    records = prompt_batch(prompts, step, config.prompts_per_step, config.seed)  # line 5
    if config.lag:
        generator = make_generator(config.seed, f"sampling {step}")
    params = SamplingParams(config.temperature, max_new_tokens=config.max_new_tokens)
    with precision(mu.device, config.precision):  # line 7
        return sample_rollout(mu, tokenizer, records, params, config.group_size, generator)


def scored(config: AsyncGRPOConfig, policy: GPT, rollout: Rollout) -> tuple[Tensor, Tensor]:
    """log-probs (N, T) of a rollout under the old policy and under the sampler."""
    if not config.on_policy:
        return rollout_log_probs(policy, rollout, config), rollout.log_probs
    old_log_probs = old_policy_log_probs(policy, rollout, config)
    return old_log_probs, old_log_probs


def train(
    config: AsyncGRPOConfig,
    policy: GPT,  # line 1
    tokenizer: Tokenizer,
    reward_fn: RewardFn,
    prompts: Sequence[PromptRecord],
    log: MetricLog,
    *,
    reference: GPT | None = None,
    validate: Validate | None = None,
    folder: Path | None = None,
) -> list[dict[str, Any]]:
    """Run asynchronous GRPO, update `policy` in place and return one metrics row a step."""
    reference = reference or frozen_copy(policy)  # line 3
    policy.eval()  # dropout stays off: old and new log-probs must describe the same function
    optimizer = adamw(policy, config.lr, weight_decay=0.0)
    kl = kl_controller(config)
    generators = {name: make_generator(config.seed, name) for name in ("sampling", "minibatches")}

    draw = partial(draw_batch, config, tokenizer, prompts, generators["sampling"])  # lines 5-7
    sampler = Sampler(policy, config.versions, config.sampler_precision, draw)
    sampler.hand_out(config.samplers, config.on_dead_sampler == "replace")  # there lines 5-7 alone
    state = TrainingState(
        {"policy": policy, "reference": reference, "optimizer": optimizer, "kl": kl, "sampler": sampler},
        generators,
    )  # fmt: skip
    if config.resume and folder is not None:
        state.load(folder)

    for step in state.steps_left(config.steps):  # line 4
        lr = config.lr * warmed_up(config, step)
        set_learning_rate(optimizer, lr)
        clock, meter = Stopwatch(), UpdateMeter(clip=config.clip)
        lag = sampler.lag(step)
        with clock.phase("rollout"):
            rollout = sampler.rollout(step, config.steps)
        with clock.phase("reward"):  # line 8
            rewards = checked_rewards(reward_fn, rollout)
        with clock.phase("score"):
            old_log_probs, sampler_log_probs = scored(config, policy, rollout)  # line 10
            ref_log_probs = None
            if kl.coef or config.stop_kl is not None:  # the penalty, or when to stop
                ref_log_probs = rollout_log_probs(reference, rollout, config)  # (N, T)
        advantages = group_advantages(rewards, config.group_size)  # (N, 1)  line 9
        advantages, measured = corrected(  # (N, T)  line 10
            config, advantages, old_log_probs, sampler_log_probs, rollout.response_mask
        )
        anchor = sampler_log_probs if config.row.against == "sampler" else old_log_probs

        with clock.phase("update"):
            order = generators["minibatches"]  # line 11: epochs and minibatches
            for rows in epoch_minibatches(config, len(rollout), order, config.group_size):
                optimizer.zero_grad(set_to_none=True)
                loss = torch.zeros((), dtype=policy.wte.weight.dtype, device=policy.device)
                for part, batch in micro_batches(rollout.sequences, rows, config.micro_batch_size):
                    with precision(policy.device, config.precision):
                        scores = token_scores(policy, batch, config.temperature)
                    ref = None if ref_log_probs is None else ref_log_probs[part]
                    given = (config, scores.log_probs, anchor[part])
                    part_loss = async_grpo_loss(  # line 12
                        *given, ref, advantages[part], batch.response_mask,
                        kl_coef=kl.coef, rows=len(rows),
                    )  # fmt: skip
                    part_loss.backward()
                    loss += part_loss.detach()
                    clipped, old = acted(*given, advantages[part]), old_log_probs[part]
                    meter.add_tokens(scores, old, advantages[part], batch, clipped=clipped)
                norm = clip_and_step(optimizer, policy.parameters(), config.max_norm)  # line 12
                meter.add_update(loss, norm)
                sampler.updated()

        step_batch = StepBatch(meter.acted, rollout, rewards, advantages)
        row = rollout_metrics(rollout, rewards, old_log_probs, ref_log_probs)
        row |= meter.metrics() | measured | {"kl_coef": kl.coef, "lr": lr, "lag": lag}
        row |= clock.metrics(tokens=rollout.tokens)
        if "kl" in row:
            kl.update(row["kl"], len(rollout))
        state.step = step + 1
        models = (policy, reference)
        if finish_step(config, state, row, log, models, validate, folder, step_batch):
            break
    sampler.dismiss()
    return log.rows


ENGINE = Engine(
    name="async_grpo",
    box="Asynchronous GRPO",
    config=AsyncGRPOConfig,
    train=train,
    presets=PRESETS,
    toy="--lag 3 --sampler-precision bfloat16 --correction sequence_tis",
)

main = partial(run_training, ENGINE)  # config -> run folder

if __name__ == "__main__":
    run_as_command(ENGINE)
