"""GRPO: Group Relative Policy Optimization (Shao et al. 2024, arXiv:2402.03300, Algorithm 1).

    line 1     policy model <- initial policy          the pre-trained or fine-tuned GPT
    line 3     reference model <- policy               reference (frozen copy)
    line 4     for step = 1..M                         steps
    line 5     sample a batch of prompts               prompt_batch
    line 6     old policy <- policy                    only its log-probs are kept
    line 7     sample G outputs per prompt             sample_rollout
    line 8     rewards of the outputs                  reward_fn
    line 9     group-relative advantages               group_advantages
    line 10    for GRPO iteration = 1..mu              updates_per_batch
    line 11    ascend the GRPO objective (Eq. 3)       grpo_loss: clipped_surrogate, k3, sequence_mean

This is one outer iteration of Algorithm 1 with outcome supervision: the reference and the reward
model stay as they are. Where it differs from the paper: a batch may be cut into minibatches.
What is new next to PPO: the group's mean replaces the value model, and the KL penalty sits in the
loss instead of the reward.

    python -m rl.grpo_engine                      reviews, the learned reward model
    python -m rl.grpo_engine --data sums          arithmetic, checked by a rule
    python -m rl.grpo_engine --data pairs.json --preset small
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
from gpt.log_probs import token_scores
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from harness.device import precision
from harness.flag_ranges import NotNegative
from harness.frozen_copy import frozen_copy
from harness.metric_log import MetricLog
from harness.optimizer import clip_and_step, set_learning_rate
from rl.batches.rollout import (
    epoch_minibatches,
    micro_batches,
    old_policy_log_probs,
    prompt_batch,
    rollout_log_probs,
    sample_rollout,
)
from rl.equations.advantages import group_advantages
from rl.equations.kl import k2, k3, loss_estimator
from rl.equations.losses import clipped_surrogate, sequence_mean
from rl.rewards.sources import RewardFn, checked_rewards
from rl.training.config import EngineConfig, require_groups, size_presets, warmed_up
from rl.training.engine import Engine
from rl.training.metrics import StepBatch, Stopwatch, UpdateMeter, rollout_metrics
from rl.training.run import Validate, finish_step, run_as_command, run_training, set_up

PRESETS = size_presets()


@dataclass(frozen=True)
class GRPOConfig(EngineConfig):
    """Improve a policy with GRPO."""

    clip_low: NotNegative = 0.2
    """epsilon below 1."""
    clip_high: NotNegative = 0.2
    """epsilon above 1."""
    kl_estimator: Literal["k3", "k2", "k1"] = "k3"
    """k3 is the paper's; k2 has the gradient of KL(policy || reference); k1 is refused, and says why."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_groups(self)
        loss_estimator(self.kl_estimator)


def grpo_loss(  # line 11
    config: GRPOConfig,
    log_probs: Tensor,  # (n, T)
    old_log_probs: Tensor,  # (n, T)
    ref_log_probs: Tensor | None,  # (n, T)
    advantages: Tensor,  # (n, 1)
    response_mask: Tensor,  # (n, T)
    *,
    kl_coef: float,
    rows: int,
) -> Tensor:
    """The negated GRPO objective of some rows of a minibatch (arXiv:2402.03300, Eqs. 3 and 4).

    Eq. 3   -1/G sum_i 1/|o_i| sum_t { min[ratio A, clip(ratio, 1 - eps, 1 + eps) A] - beta KL }
    Eq. 4   KL = pi_ref / pi - log(pi_ref / pi) - 1, which is k3;   ratio = pi / pi_old

    1/G becomes 1/`rows`, the size of the whole minibatch, so that micro-batches add up.
    """
    token_loss = clipped_surrogate(  # -min[ratio A, clip(ratio) A]
        log_probs, old_log_probs, advantages, config.clip_low, config.clip_high
    )
    if ref_log_probs is not None:
        kl_penalty = {"k3": k3, "k2": k2}[config.kl_estimator]
        token_loss = token_loss + kl_coef * kl_penalty(log_probs, ref_log_probs)
    return sequence_mean(token_loss, response_mask, denominator=rows)  # 1/rows sum 1/|o_i| sum


def train(
    config: GRPOConfig,
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
    """Run GRPO, update `policy` in place and return one metrics row a step.

    `reference` is the policy as it starts, frozen; without it a copy is made. With `validate` its
    numbers are added every `eval_every` steps; with a folder a resumable state is kept there.
    """
    reference = reference or frozen_copy(policy)  # line 3
    params, optimizer, kl, generators, state = set_up(config, policy, folder, reference=reference)

    for step in state.steps_left(config.steps):  # line 4
        lr = config.lr * warmed_up(config, step)
        set_learning_rate(optimizer, lr)
        clock, meter = Stopwatch(), UpdateMeter(clip=(config.clip_low, config.clip_high))
        records = prompt_batch(prompts, step, config.prompts_per_step, config.seed)  # line 5
        with clock.phase("rollout"), precision(policy.device, config.precision):  # lines 6-7
            rollout = sample_rollout(  # before its update the policy is the old policy
                policy, tokenizer, records, params, config.group_size, generators["sampling"]
            )
        with clock.phase("reward"):  # line 8
            rewards = checked_rewards(reward_fn, rollout)
        with clock.phase("score"):
            old_log_probs = old_policy_log_probs(policy, rollout, config)  # (N, T)  line 6
            ref_log_probs = None
            if kl.coef or config.stop_kl is not None:  # for the penalty, or to know when to stop
                ref_log_probs = rollout_log_probs(reference, rollout, config)  # (N, T)
        advantages = group_advantages(rewards, config.group_size)  # (N, 1)  line 9

        with clock.phase("update"):
            for rows in epoch_minibatches(  # line 10
                config, len(rollout), generators["minibatches"], config.group_size
            ):
                optimizer.zero_grad(set_to_none=True)
                loss = torch.zeros((), dtype=policy.wte.weight.dtype, device=policy.device)
                for part, batch in micro_batches(rollout.sequences, rows, config.micro_batch_size):
                    with precision(policy.device, config.precision):
                        scores = token_scores(policy, batch, config.temperature)
                    part_loss = grpo_loss(  # line 11
                        config,
                        scores.log_probs,
                        old_log_probs[part],
                        None if ref_log_probs is None else ref_log_probs[part],
                        advantages[part],
                        batch.response_mask,
                        kl_coef=kl.coef,
                        rows=len(rows),
                    )
                    part_loss.backward()
                    loss += part_loss.detach()
                    meter.add_tokens(scores, old_log_probs[part], advantages[part], batch)
                norm = clip_and_step(optimizer, policy.parameters(), config.max_norm)  # line 11
                meter.add_update(loss, norm)

        step_batch = StepBatch(meter.acted, rollout, rewards, advantages)
        row = rollout_metrics(rollout, rewards, old_log_probs, ref_log_probs)
        row |= meter.metrics() | {"kl_coef": kl.coef, "lr": lr}
        row |= clock.metrics(tokens=rollout.tokens)
        if "kl" in row:
            kl.update(row["kl"], len(rollout))
        state.step = step + 1
        if finish_step(config, state, row, log, (policy, reference), validate, folder, step_batch):
            break
    return log.rows


ENGINE = Engine(
    name="grpo",
    box="GRPO",
    config=GRPOConfig,
    train=train,
    presets=PRESETS,
)

main = partial(run_training, ENGINE)  # config -> run folder

if __name__ == "__main__":
    run_as_command(ENGINE)
