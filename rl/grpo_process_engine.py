"""GRPO with process supervision (Shao et al. 2024, arXiv:2402.03300, section 4.1.3).

Algorithm 1 with lines 8 and 9 exchanged for the step-wise ones:

    line 1     policy model <- initial policy          the pre-trained or fine-tuned GPT
    line 3     reference model <- policy               reference (frozen copy)
    line 4     for step = 1..M                         steps
    line 5     sample a batch of prompts               prompt_batch
    line 6     old policy <- policy                    only its log-probs are kept
    line 7     sample G outputs per prompt             sample_rollout
    line 8     a reward at the end of every step       step_reward_fn: rewards, ends and mask (N, K)
    line 9     z-scores over all steps of the group,   process_advantages
               summed over the steps still to end
    line 10    for GRPO iteration = 1..mu              updates_per_batch
    line 11    ascend the GRPO objective (Eq. 3)       process_grpo_loss: clipped_surrogate and k3

    q_ij <- (q_ij - mean(R)) / std(R)     R: the rewards of all steps of all G outputs
    A_it  = sum over the steps j that end at token t or later of q_ij

Each token answers for its own step and for those that follow, not for the ones before it. Nothing
divides by the number of steps: an output of many steps has larger advantages, and as one mean serves
them all, a step can be worth less than none.
What is new next to GRPO: rewards per step, advantages per token. With one step per output
(--steps-from outcome) it is GRPO, bit for bit. `reward` in the log stays the outcome's.

    python -m rl.grpo_process_engine --data sums       each written step and the answer, by rule
    python -m rl.grpo_process_engine                   reviews, sentences by the reward model
    python -m rl.grpo_process_engine --data sums --steps-from outcome
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
from harness.errors import UserError
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
from rl.equations.advantages import process_advantages
from rl.equations.kl import k2, k3, loss_estimator
from rl.equations.losses import clipped_surrogate, sequence_mean
from rl.rewards.sources import RewardFn, checked_rewards, made_of
from rl.rewards.step_rewards import (
    CheckedSteps,
    OutcomeSteps,
    RewardModelSteps,
    StepRewardFn,
    StepRewards,
    checked_steps,
)
from rl.training.config import EngineConfig, require_groups, size_presets, warmed_up
from rl.training.engine import Engine
from rl.training.evaluation import Conditions
from rl.training.metrics import StepBatch, Stopwatch, UpdateMeter, rollout_metrics
from rl.training.open_task import Task
from rl.training.run import Validate, finish_step, run_as_command, run_training, set_up

PRESETS = size_presets()


@dataclass(frozen=True)
class ProcessGRPOConfig(EngineConfig):
    """Improve a policy with GRPO and a reward for every step of a response."""

    steps_from: Literal["auto", "rule", "outcome", "reward_model"] = "auto"
    """rule: each written step of a sum is checked; reward_model: its score after each sentence;
    outcome: one step, plain GRPO. auto: the rule for sums, else the reward model if there is one."""
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


def open_step_rewards(config: ProcessGRPOConfig, task: Task) -> dict[str, StepRewardFn]:
    """The source of step rewards that the flags ask for, as `train` takes it."""
    kind, models = config.steps_from, made_of(task.reward_fn).reward_models
    if len(models) > 1 and kind in ("auto", "reward_model"):
        raise UserError(
            "the scores after each sentence are those of one reward model: name one, or use "
            "--steps-from outcome with several"
        )
    if kind == "auto":
        kind = "rule" if config.data == "sums" else "reward_model" if models else "outcome"
    source: StepRewardFn = OutcomeSteps()
    if kind == "rule":
        if config.data != "sums":
            raise UserError(
                f"--steps-from rule: {config.data} has no rule for the steps of a response; use "
                "outcome or reward_model"
            )
        source = CheckedSteps(task.tokenizer)
    if kind == "reward_model":
        if not models:
            raise UserError(
                f"--steps-from reward_model: the reward is the {task.reward_name}, not a learned "
                "model; add --reward model, or use outcome"
            )
        how = Conditions.of(config)
        source = RewardModelSteps(models[0], task.tokenizer, how.scored, how.precision)
    print(f"steps: {source.name}")
    return {"step_reward_fn": source}


def process_grpo_loss(  # line 11
    config: ProcessGRPOConfig,
    log_probs: Tensor,  # (n, T)
    old_log_probs: Tensor,  # (n, T)
    ref_log_probs: Tensor | None,  # (n, T)
    advantages: Tensor,  # (n, T)
    response_mask: Tensor,  # (n, T)
    *,
    kl_coef: float,
    rows: int,
) -> Tensor:
    """GRPO's objective (Eqs. 3 and 4) with A_it, as in grpo_engine.py; a minibatch has `rows` rows."""
    token_loss = clipped_surrogate(  # -min[ratio A, clip(ratio) A]
        log_probs, old_log_probs, advantages, config.clip_low, config.clip_high
    )
    if ref_log_probs is not None:
        kl_penalty = {"k3": k3, "k2": k2}[config.kl_estimator]
        token_loss = token_loss + kl_coef * kl_penalty(log_probs, ref_log_probs)
    return sequence_mean(token_loss, response_mask, denominator=rows)  # 1/rows sum 1/|o_i| sum


def step_metrics(steps: StepRewards, advantages: Tensor, group_size: int) -> dict[str, float]:
    """Mean reward of a step, steps per response, and the share of groups without any advantage."""
    groups = advantages.reshape(len(advantages) // group_size, -1)
    return {
        "step_reward": float(steps.rewards[steps.mask].mean()),
        "steps_per_response": float(steps.mask.sum(1).float().mean()),
        "zero_spread_steps": float((groups == 0).all(1).float().mean()),
    }


def train(
    config: ProcessGRPOConfig,
    policy: GPT,  # line 1
    tokenizer: Tokenizer,
    reward_fn: RewardFn,
    prompts: Sequence[PromptRecord],
    log: MetricLog,
    *,
    step_reward_fn: StepRewardFn,
    reference: GPT | None = None,
    validate: Validate | None = None,
    folder: Path | None = None,
) -> list[dict[str, Any]]:
    """Run process-supervised GRPO, update `policy` in place and return one metrics row a step."""
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
        with clock.phase("reward"):  # line 8: the outcome for the log, the steps to learn from
            rewards = checked_rewards(reward_fn, rollout)
            steps = checked_steps(step_reward_fn, rollout, rewards)
        with clock.phase("score"):
            old_log_probs = old_policy_log_probs(policy, rollout, config)  # (N, T)  line 6
            ref_log_probs = None
            if kl.coef or config.stop_kl is not None:  # for the penalty, or to know when to stop
                ref_log_probs = rollout_log_probs(reference, rollout, config)  # (N, T)
        advantages = process_advantages(  # (N, T)  line 9
            *steps, rollout.response_mask, config.group_size
        )

        with clock.phase("update"):
            for rows in epoch_minibatches(  # line 10
                config, len(rollout), generators["minibatches"], config.group_size
            ):
                optimizer.zero_grad(set_to_none=True)
                loss = torch.zeros((), dtype=policy.wte.weight.dtype, device=policy.device)
                for part, batch in micro_batches(rollout.sequences, rows, config.micro_batch_size):
                    with precision(policy.device, config.precision):
                        scores = token_scores(policy, batch, config.temperature)
                    part_loss = process_grpo_loss(  # line 11
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
        row |= step_metrics(steps, advantages, config.group_size)
        row |= meter.metrics() | {"kl_coef": kl.coef, "lr": lr}
        row |= clock.metrics(tokens=rollout.tokens)
        if "kl" in row:
            kl.update(row["kl"], len(rollout))
        state.step = step + 1
        if finish_step(config, state, row, log, (policy, reference), validate, folder, step_batch):
            break
    return log.rows


ENGINE = Engine(
    name="grpo_process",
    box="Process-supervised GRPO",
    config=ProcessGRPOConfig,
    train=train,
    presets=PRESETS,
    prepare=open_step_rewards,
)

main = partial(run_training, ENGINE)  # config -> run folder

if __name__ == "__main__":
    run_as_command(ENGINE)
