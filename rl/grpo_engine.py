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
    line 11    ascend the GRPO objective (Eq. 3)       grpo_objective, with k3 as the KL (Eq. 4)

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

from harness.flags import NotNegative
from rl.batches.rollout import Update
from rl.equations.kl import loss_estimator
from rl.equations.losses import grpo_objective
from rl.loop import Run
from rl.run.config import EngineConfig, require_groups
from rl.run.engine import Engine
from rl.run.metrics import clip_mask


@dataclass(frozen=True)
class GRPOConfig(EngineConfig):
    """Improve a policy with GRPO."""

    clip_range: NotNegative = 0.2
    """epsilon: the clip of the ratio to 1 - epsilon ... 1 + epsilon."""
    kl_estimator: Literal["k3", "k2"] = "k3"
    """k3 is the paper's; k2 has the gradient of KL(policy || reference)."""

    has_gdpo = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_groups(self)
        loss_estimator(self.kl_estimator)


def train(run: Run) -> list[dict[str, Any]]:
    """Run GRPO, update `run.policy` in place and return one metrics row a step."""
    config: GRPOConfig = run.config
    policy, reference = run.policy, run.freeze_reference()  # lines 1 and 3
    kl = loss_estimator(config.kl_estimator)  # Eq. 4
    run.clip_mask = clip_mask(config.clip_range)  # for the log
    for step in run.steps():  # line 4
        rollout = run.sample(run.prompts(step))  # lines 5-7
        rewards = run.rewards(rollout)  # (N,)  line 8
        advantages = run.group_advantages(rollout, rewards)  # (N, 1)  line 9
        old = run.old_log_probs(rollout)  # (N, T)  line 6
        ref = run.ref_log_probs(reference, rollout)  # (N, T), None where no KL is asked for
        update = Update(old, ref, advantages, rollout.response_mask)

        for rows in run.minibatches(rollout):  # line 10
            for part, batch in run.micro_batches(rollout, rows):
                scores = run.scores(policy, batch)  # (n, T), with a gradient
                given = update.rows(part)
                penalty = None if given.ref is None else kl(scores.log_probs, given.ref)  # (n, T)
                loss = grpo_objective(  # line 11
                    scores.log_probs, given.old, given.advantages, given.mask, penalty,
                    clip_range=config.clip_range, kl_coef=run.kl.coef, responses=len(rows),
                )  # fmt: skip
                loss.backward()
                run.record(loss, scores, given, batch)
            run.optimizer_step()  # clip, AdamW: line 11
        run.finish_step(step, rollout, rewards, update)
    return run.log.rows


ENGINE = Engine(
    name="grpo",
    box="GRPO",
    config=GRPOConfig,
    train=train,
)

main = ENGINE.run  # config -> run folder

if __name__ == "__main__":
    ENGINE.run_as_command()
