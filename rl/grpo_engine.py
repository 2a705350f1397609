"""GRPO: Group Relative Policy Optimization (Shao et al. 2024, arXiv:2402.03300, Algorithm 1).

    line 1     policy model <- initial policy          the pre-trained or fine-tuned GPT
    line 3     reference model <- policy               reference (frozen copy)
    line 4     for step = 1..M                         run.steps
    line 5     sample a batch of prompts               run.prompts
    line 6     old policy <- policy                    run.old_log_probs: its log-probs alone
    line 7     sample G outputs per prompt             run.sample
    line 8     rewards of the outputs                  run.rewards
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

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from harness.flag_ranges import NotNegative
from rl.equations.advantages import group_advantages
from rl.equations.kl import k2, k3, loss_estimator
from rl.equations.losses import clipped_surrogate, sequence_mean
from rl.loop import Run, at
from rl.task import Engine
from rl.training.config import EngineConfig, require_groups, size_presets

PRESETS = size_presets("grpo")


@dataclass(frozen=True)
class GRPOConfig(EngineConfig):
    """Improve a policy with GRPO."""

    clip_range: NotNegative = 0.2
    """epsilon: the clip of the ratio to 1 - epsilon ... 1 + epsilon."""
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
        log_probs, old_log_probs, advantages, config.clip_range, config.clip_range
    )
    if ref_log_probs is not None:
        kl_penalty = {"k3": k3, "k2": k2}[config.kl_estimator]
        token_loss = token_loss + kl_coef * kl_penalty(log_probs, ref_log_probs)
    return sequence_mean(token_loss, response_mask, denominator=rows)  # 1/rows sum 1/|o_i| sum


def train(config: GRPOConfig, run: Run) -> list[dict[str, Any]]:
    """Run GRPO, update `run.policy` in place and return one metrics row a step."""
    policy, reference = run.policy, run.reference  # lines 1 and 3
    for step in run.steps(config):  # line 4
        rollout = run.sample(run.prompts(step))  # lines 5-7
        rewards = run.rewards(rollout)  # (N,)  line 8
        advantages = group_advantages(rewards, config.group_size)  # (N, 1)  line 9
        old = run.old_log_probs(rollout)  # (N, T)  line 6
        ref = run.ref_log_probs(reference, rollout)  # (N, T), None where no KL is asked for

        for rows in run.minibatches(rollout):  # line 10
            for part, batch in run.micro_batches(rollout, rows):
                scores = run.scores(policy, batch)  # (n, T), with a gradient
                loss = grpo_loss(  # line 11
                    config, scores.log_probs, old[part], at(ref, part), advantages[part],
                    batch.response_mask, kl_coef=run.kl.coef, rows=len(rows),
                )  # fmt: skip
                loss.backward()
                run.seen(loss, scores, old[part], advantages[part], batch)
            run.step()  # clip, AdamW: line 11
        run.finish(step, rollout, rewards, advantages, old, ref)
    return run.log.rows


ENGINE = Engine(
    name="grpo",
    box="GRPO",
    config=GRPOConfig,
    train=train,
    presets=PRESETS,
)

main = ENGINE.run  # config -> run folder

if __name__ == "__main__":
    ENGINE.run_as_command()
