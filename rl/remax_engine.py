"""ReMax: the greedy answer is REINFORCE's baseline (Li et al. 2024, arXiv:2310.10505, Algorithm 1).

    line 1     for each batch of prompts x                  steps, prompt_batch
    line 2     sample y ~ pi( . | x)                        sample_rollout
    line 3     greedy answer g: always the likeliest token  sample_rollout, greedy
    line 4     A = r(x, y) - r(x, g)                        reward_fn; greedy_baseline_advantages
    line 5     log pi(y | x) of the policy that learns      token_scores
    line 6     loss = -mean of A log pi(y | x)              remax_loss: policy_gradient, sequence_sum
    line 7     minimise the loss                            clip_and_step

The paper's Algorithm 1 leaves the KL out. Here it is part of the reward, as in PPO: every token pays
beta k1, and its advantage holds what is paid from it on. The greedy answer pays none.
Where it differs from the authors' code: theirs lets a token pay for itself alone, divides by the
tokens of the batch, samples with top_p 0.9 and clips rewards to +-5.
What is new next to RLOO: the baseline is one more answer, drawn without chance, and no other sample,
so one answer per prompt is enough. It costs a second sampling, and no memory.

    python -m rl.remax_engine                     reviews, the learned reward model
    python -m rl.remax_engine --data sums         arithmetic, checked by a rule
    python -m rl.remax_engine --group-size 4 --prompts-per-step 16
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data.records import PromptRecord
from gpt.log_probs import token_scores
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from harness.device import precision
from harness.flag_ranges import AtLeastOne
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
from rl.equations.advantages import greedy_baseline_advantages
from rl.equations.losses import policy_gradient, sequence_sum
from rl.equations.token_rewards import token_level_rewards
from rl.rewards.sources import RewardFn, checked_rewards
from rl.training.config import EngineConfig, size_presets, warmed_up
from rl.training.engine import Engine
from rl.training.metrics import StepBatch, Stopwatch, UpdateMeter, rollout_metrics
from rl.training.run import Validate, finish_step, run_as_command, run_training, set_up

# One response per prompt and one greedy answer: as many responses as the others sample for a batch.
PRESETS = size_presets(dict(prompts_per_step=16))


@dataclass(frozen=True)
class ReMaxConfig(EngineConfig):
    """Improve a policy with REINFORCE and the greedy answer as its baseline."""

    prompts_per_step: AtLeastOne = 64
    """Prompts per rollout batch; each is answered greedily, too."""
    group_size: AtLeastOne = 1
    """Responses per prompt, which share the greedy answer."""
    minibatches: AtLeastOne = 1
    """Optimizer steps a batch, on disjoint rows; the paper takes one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.updates_per_batch > 1:
            raise ValueError(
                f"updates_per_batch must be 1: got {self.updates_per_batch}. Without a ratio the "
                "gradient holds for new samples only"
            )


def remax_advantages(  # line 4
    rewards: Tensor,  # (N,)
    greedy_rewards: Tensor,  # (prompts,)
    old_log_probs: Tensor,  # (N, T)
    ref_log_probs: Tensor | None,  # (N, T)
    response_mask: Tensor,  # (N, T)
    *,
    kl_coef: float,
    group_size: int,
) -> Tensor:  # (N, T)
    """A_t = R(y) - kl_coef * sum_{u >= t} (log pi_old - log pi_ref)_u - R(greedy answer).

    The expected gradient is that of R - kl_coef KL.
    """
    token_rewards = token_level_rewards(
        rewards, old_log_probs, ref_log_probs, response_mask, kl_coef
    )
    baseline = greedy_rewards.repeat_interleave(group_size)  # (N,)
    return greedy_baseline_advantages(token_rewards, baseline, response_mask)


def remax_loss(  # line 6
    log_probs: Tensor,  # (n, T)
    advantages: Tensor,  # (n, T)
    response_mask: Tensor,  # (n, T)
    *,
    rows: int,
) -> Tensor:
    """-(1/rows) sum_i sum_t A_it log pi(y_it) of some rows of a minibatch of `rows`."""
    return sequence_sum(policy_gradient(log_probs, advantages), response_mask, denominator=rows)


def train(
    config: ReMaxConfig,
    policy: GPT,
    tokenizer: Tokenizer,
    reward_fn: RewardFn,
    prompts: Sequence[PromptRecord],
    log: MetricLog,
    *,
    reference: GPT | None = None,
    validate: Validate | None = None,
    folder: Path | None = None,
) -> list[dict[str, Any]]:
    """Run ReMax, update `policy` in place and return one metrics row a step."""
    reference = reference or frozen_copy(policy)  # pi_ref
    params, optimizer, kl, generators, state = set_up(config, policy, folder, reference=reference)
    greedily = replace(params, greedy=True)

    for step in state.steps_left(config.steps):  # line 1
        lr = config.lr * warmed_up(config, step)
        set_learning_rate(optimizer, lr)
        clock, meter = Stopwatch(), UpdateMeter()
        records = prompt_batch(prompts, step, config.prompts_per_step, config.seed)  # line 1
        with clock.phase("rollout"), precision(policy.device, config.precision):
            rollout = sample_rollout(  # line 2: y ~ pi( . | x)
                policy, tokenizer, records, params, config.group_size, generators["sampling"]
            )
            greedy = sample_rollout(policy, tokenizer, records, greedily, group_size=1)  # line 3
        with clock.phase("reward"):  # line 4: r(x, y) and r(x, g)
            rewards, non_finite = checked_rewards(reward_fn, rollout, config.non_finite_reward)
            greedy_rewards, _ = checked_rewards(reward_fn, greedy, config.non_finite_reward)
        with clock.phase("score"):
            old_log_probs = old_policy_log_probs(policy, rollout, config)  # (N, T)
            ref_log_probs = None
            if kl.coef or config.stop_kl is not None:  # for the penalty, or to know when to stop
                ref_log_probs = rollout_log_probs(reference, rollout, config)  # (N, T)
        advantages = remax_advantages(  # (N, T)  line 4
            rewards, greedy_rewards, old_log_probs, ref_log_probs, rollout.response_mask,
            kl_coef=kl.coef, group_size=config.group_size,
        )  # fmt: skip

        with clock.phase("update"):
            for rows in epoch_minibatches(
                config, len(rollout), generators["minibatches"], config.group_size
            ):
                optimizer.zero_grad(set_to_none=True)
                loss = torch.zeros((), dtype=policy.wte.weight.dtype, device=policy.device)
                for part, batch in micro_batches(rollout.sequences, rows, config.micro_batch_size):
                    with precision(policy.device, config.precision):
                        scores = token_scores(policy, batch, config.temperature)  # line 5
                    part_loss = remax_loss(  # line 6
                        scores.log_probs, advantages[part], batch.response_mask, rows=len(rows)
                    )
                    part_loss.backward()
                    loss += part_loss.detach()
                    meter.add_tokens(scores, old_log_probs[part], advantages[part], batch)
                norm = clip_and_step(optimizer, policy.parameters(), config.max_norm)  # line 7
                meter.add_update(loss, norm)

        step_batch = StepBatch(meter.acted, rollout, rewards, advantages)
        row = rollout_metrics(rollout, rewards, old_log_probs, ref_log_probs)
        row |= meter.metrics() | {"non_finite_rewards": non_finite, "kl_coef": kl.coef, "lr": lr}
        row |= clock.metrics(tokens=int(rollout.lengths.sum() + greedy.lengths.sum()))
        if "kl" in row:
            kl.update(row["kl"], len(rollout))
        state.step = step + 1
        if finish_step(config, state, row, log, (policy, reference), validate, folder, step_batch):
            break
    return log.rows


ENGINE = Engine(
    name="remax",
    box="ReMax",
    config=ReMaxConfig,
    train=train,
    presets=PRESETS,
    groups=False,
)

main = partial(run_training, ENGINE)  # config -> run folder

if __name__ == "__main__":
    run_as_command(ENGINE)
