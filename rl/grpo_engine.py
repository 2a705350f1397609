"""GRPO: Group Relative Policy Optimization (Shao et al. 2024, arXiv:2402.03300, Algorithm 1).

    line 1     policy model <- initial policy          the pre-trained or fine-tuned GPT
    line 3     reference model <- policy               reference (frozen copy)
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

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from data.records import PromptRecord
from gpt.common import (
    MetricLog,
    TrainingState,
    make_generator,
    precision,
    preset_defaults,
    run_script,
)
from gpt.generate import SamplingParams
from gpt.log_probs import token_scores
from gpt.model import GPT
from gpt.optimizer import adamw, clip_and_step, set_learning_rate
from gpt.pretraining import Preset
from gpt.tokenizer import Tokenizer
from rl.advantages import group_advantages
from rl.evaluation import Validation
from rl.kl import loss_estimator
from rl.losses import clipped_surrogate, sequence_mean
from rl.metrics import Stopwatch, UpdateMeter, kl_exceeded, rollout_metrics
from rl.rewards import RewardFn, checked_rewards
from rl.rollout import (
    micro_batches,
    minibatches,
    old_policy_log_probs,
    prompt_batch,
    rollout_log_probs,
    sample_rollout,
)
from rl.run import run_training

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "small": dict(
        lr=3e-5, prompts_per_step=4, minibatches=1, micro_batch_size=16, kl_coef=0.04, steps=40,
        max_new_tokens=64, eval_prompts=32, test_prompts=64,
    ),
    **{
        name: dict(
            lr=1e-6, prompts_per_step=8, minibatches=1, micro_batch_size=micro, kl_coef=0.04,
            max_new_tokens=128, steps=200, stop_kl=None,
        )
        for name, micro in [("gpt2", 16), ("gpt2-medium", 8), ("gpt2-large", 4), ("gpt2-xl", 2)]
    },
}  # fmt: skip


@dataclass(frozen=True)
class GRPOConfig:
    """Improve a policy with GRPO."""

    preset: Preset = "tiny"
    """Size of the policy and matching defaults, applied before all other flags."""
    data: str = "reviews"
    """A world (reviews, sums) or a file with prompts (formats: data/README.md)."""
    reward: Literal["auto", "model", "gold", "rule"] = "auto"
    """auto: the rule for sums, otherwise the learned reward model. gold: the world's true objective."""
    policy: Path | None = None
    """Run folder to start from; default: gpt.pretraining's for this data and preset."""
    reward_model: Path | None = None
    """Run folder of the reward model; default: the one of this data and preset."""
    steps: int = 80
    """Rollout batches (M)."""
    prompts_per_step: int = 16
    """Prompts per rollout batch."""
    group_size: int = 8
    """G: responses per prompt, at least 2."""
    updates_per_batch: int = 1
    """mu: passes over each rollout batch."""
    minibatches: int = 2
    """Optimizer steps per pass; whole groups stay together."""
    micro_batch_size: int = 32
    """Rows per forward pass; changes memory and speed, never the gradient."""
    lr: float = 2e-4
    """Peak learning rate, constant after the warm-up."""
    warmup: int = 5
    """Batches of linear warm-up."""
    clip_low: float = 0.2
    """epsilon below 1."""
    clip_high: float = 0.2
    """epsilon above 1."""
    kl_coef: float = 0.1
    """beta, the weight of k3 in the loss; 0 needs no reference model at all."""
    kl_estimator: Literal["k3", "k2", "k1"] = "k3"
    """k3 is the paper's; k2 has the gradient of KL(policy || reference); k1 is refused, and says why."""
    max_norm: float = 1.0
    """Gradient norm at which gradients are clipped."""
    temperature: float = 1.0
    """tau, the same for sampling and scoring."""
    max_new_tokens: int = 48
    """Longest response; a longer one is cut off and has no EOS."""
    stop_kl: float | None = 8.0
    """Stop early once the KL per response, averaged over 5 steps, exceeds this many nats."""
    non_finite_reward: float | None = None
    """Put this number in place of a NaN or infinite reward; by default such a reward is refused."""
    eval_every: int = 10
    """Steps between validations."""
    eval_prompts: int = 128
    """Prompts per validation, one response each; 0 skips it."""
    test_prompts: int = 512
    """Test prompts that the start and the result answer once, after training; 0 skips it."""
    checkpoint_every: int = 50
    """Steps between resumable checkpoints."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: autocast over float32 weights, for GPUs."""
    seed: int = 0
    device: str = "auto"
    """auto (cuda, then mps, then cpu) or a device name."""
    out: Path | None = None
    """Run folder; default runs/grpo-DATA-PRESET."""
    resume: bool = False
    """Continue the run in the run folder."""

    def __post_init__(self) -> None:
        loss_estimator(self.kl_estimator)


def grpo_loss(
    config: GRPOConfig,
    log_probs: Tensor,  # (n, T)
    old_log_probs: Tensor,  # (n, T)
    ref_log_probs: Tensor | None,  # (n, T)
    advantages: Tensor,  # (n, 1)
    response_mask: Tensor,  # (n, T)
    rows: int,
) -> tuple[Tensor, Tensor]:
    """The negated GRPO objective of some rows of a minibatch (arXiv:2402.03300, Eqs. 3 and 4).

    (1/rows) sum_i (1/L_i) sum_t [ -min(ratio A, clip(ratio) A) + kl_coef * KL ], with `rows` the
    size of the whole minibatch, so that micro-batches add up. Returns (loss, clipped (n, T)).
    """
    token_loss, clipped = clipped_surrogate(
        log_probs, old_log_probs, advantages, config.clip_low, config.clip_high
    )
    if ref_log_probs is not None:
        kl_penalty = loss_estimator(config.kl_estimator)  # k3 (Eq. 4)
        token_loss = token_loss + config.kl_coef * kl_penalty(log_probs, ref_log_probs)
    return sequence_mean(token_loss, response_mask, denominator=rows), clipped


def train(
    config: GRPOConfig,
    policy: GPT,
    tokenizer: Tokenizer,
    reward_fn: RewardFn,
    prompts: Sequence[PromptRecord],
    log: MetricLog,
    *,
    validate: Validation | None = None,
    folder: Path | None = None,
) -> list[dict[str, Any]]:
    """Run GRPO, update `policy` in place and return one metrics row a step.

    With `validate` its numbers are added every `eval_every` steps; with a folder a resumable state
    is kept there.
    """
    params = SamplingParams(config.temperature, max_new_tokens=config.max_new_tokens)
    reference = copy.deepcopy(policy).eval().requires_grad_(False)  # line 3
    policy.eval()  # dropout stays off: old and new log-probs must describe the same function
    optimizer = adamw(policy, config.lr, weight_decay=0.0)
    generators = {name: make_generator(config.seed, name) for name in ("sampling", "minibatches")}
    state = TrainingState(
        {"policy": policy, "reference": reference, "optimizer": optimizer}, generators
    )
    if config.resume and folder is not None:
        state.load(folder)

    for step in range(state.step, config.steps):
        lr = config.lr * min((step + 1) / max(config.warmup, 1), 1.0)
        set_learning_rate(optimizer, lr)
        clock, meter = Stopwatch(), UpdateMeter()
        records = prompt_batch(prompts, step, config.prompts_per_step, config.seed)  # line 5
        with clock.phase("rollout"):  # lines 6-7: before its update the policy is the old policy
            rollout = sample_rollout(
                policy, tokenizer, records, params, config.group_size, generators["sampling"]
            )
        with clock.phase("reward"):  # line 8
            rewards, non_finite = checked_rewards(reward_fn, rollout, config.non_finite_reward)
        with clock.phase("score"):
            old_log_probs = old_policy_log_probs(policy, rollout, config)  # (N, T)
            ref_log_probs = None  # with kl_coef = 0 the reference is never asked
            if config.kl_coef:
                ref_log_probs = rollout_log_probs(reference, rollout, config)  # (N, T)
        advantages = group_advantages(rewards, config.group_size)  # (N, 1)  line 9

        with clock.phase("update"):
            for _ in range(config.updates_per_batch):  # line 10
                for rows in minibatches(
                    len(rollout), config.minibatches, generators["minibatches"], config.group_size
                ):
                    optimizer.zero_grad(set_to_none=True)
                    loss = torch.zeros((), device=policy.device)
                    for part, batch in micro_batches(
                        rollout.sequences, rows, config.micro_batch_size
                    ):
                        with precision(policy.device, config.precision):
                            scores = token_scores(policy, batch, config.temperature)
                        part_loss, clipped = grpo_loss(
                            config,
                            scores.log_probs,
                            old_log_probs[part],
                            None if ref_log_probs is None else ref_log_probs[part],
                            advantages[part],
                            batch.response_mask,
                            rows=len(rows),
                        )
                        part_loss.backward()
                        loss += part_loss.detach()
                        meter.add_tokens(
                            scores, old_log_probs[part], advantages[part], clipped, batch
                        )
                    norm = clip_and_step(optimizer, policy.parameters(), config.max_norm)  # line 11
                    meter.add_update(loss, norm)

        state.step = step + 1
        row = rollout_metrics(rollout, rewards, old_log_probs, ref_log_probs)
        row |= meter.metrics() | {"non_finite_rewards": non_finite, "lr": lr}
        row |= clock.metrics(tokens=int(rollout.lengths.sum()))
        last = state.step == config.steps or kl_exceeded(log.rows, row, config.stop_kl)
        if validate is not None and (state.step % config.eval_every == 0 or last):
            row |= validate(policy, reference, state.step)
        log.write(step=state.step, **row)
        if folder is not None and state.step % config.checkpoint_every == 0:
            state.save(folder)
        if last:
            break
    return log.rows


def main(config: GRPOConfig) -> Path:
    """Run GRPO with all I/O and return the run folder."""
    return run_training("grpo", config, train)


if __name__ == "__main__":
    import tyro

    run_script(main, tyro.cli(GRPOConfig, default=preset_defaults(GRPOConfig, PRESETS)))
