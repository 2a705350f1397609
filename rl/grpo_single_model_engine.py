"""GRPO with a single model: the log-probs of the sampler are the old policy and the reference.

An experiment on GRPO (Shao et al. 2024, arXiv:2402.03300, Algorithm 1). That the current policy
becomes the reference of each iteration is policy mirror descent, as in Kimi k1.5 (arXiv:2501.12599)
and K2; those regress on log-probs, and here it is GRPO's own objective that has its reference moved:

    line 1     policy model <- initial policy          the pre-trained or fine-tuned GPT
    line 3     reference model <- policy               left out: no second copy of the weights
    line 4     for step = 1..M                         run.steps
    line 5     sample a batch of prompts               run.prompts
    line 6     old policy, reference <- policy         run.old_log_probs serve as both
    line 7     sample G outputs per prompt             run.sample
    line 8     rewards of the outputs                  run.rewards
    line 9     group-relative advantages               group_advantages
    line 10    for GRPO iteration = 1..mu              updates_per_batch
    line 11    ascend the GRPO objective (Eq. 3)       grpo_objective, with one of PENALTIES as the KL

With rho = pi / pi_old the penalty of Eq. 4 becomes 1/rho + log rho - 1. What that does:

  - Before the first update of a batch rho is 1 but for rounding: the penalty *and its gradient* are 0.
    With one update a batch (updates_per_batch 1 and minibatches 1) it never acts; there is a warning.
  - It is a trust region around the policy of this batch, as in PPO with a KL penalty
    (arXiv:1707.06347, Eq. 8), and no anchor: the reference moves along, so the distance from the
    start has no bound. It is measured in validation only (validation/kl), and stop_kl is refused.
  - Under samples of the old policy 1/rho + log rho - 1 is no KL on average, but chi^2(old || new) -
    KL(old || new). `--penalty rho_minus_log` is the form that fits the samples: rho - 1 - log rho
    is KL(old || new) on average, and so is its gradient. (A chi^2 stands beside the KL in mirror
    descent too, where the mean reward replaces the log-partition term: arXiv:2602.05933.)

What is new next to GRPO: one fewer model in memory. The forward pass that GRPO spends on its
reference goes into a measurement after the last update of a batch, how far that batch has moved
the policy (kl_old_new, kl_new_old); the adaptive controller holds that distance. With kl_coef = 0
this is GRPO without a KL, bit for bit. (`main` keeps the starting weights aside for validation and
the report; `train` never needs them.)

    python -m rl.grpo_single_model_engine                      reviews, the learned reward model
    python -m rl.grpo_single_model_engine --data sums          arithmetic, checked by a rule
    python -m rl.grpo_single_model_engine --penalty rho_minus_log --kl-target 0.05
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from harness.flags import AboveZero, AtLeastOne, KLNats, NotNegative
from harness.tensors import masked_sum
from rl.batches.rollout import Rollout, Update
from rl.equations.kl import k3, k3_importance, rho_minus_log
from rl.equations.losses import grpo_objective
from rl.loop import Run
from rl.run.config import EngineConfig, require_groups
from rl.run.engine import Engine
from rl.run.metrics import clip_mask

PENALTIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "k3": k3,
    "rho_minus_log": rho_minus_log,
}


@dataclass(frozen=True)
class SingleModelGRPOConfig(EngineConfig):
    """Improve a policy with GRPO and no reference model: a trust region around each batch."""

    steps: AtLeastOne = 40
    """Rollout batches. Nothing else bounds the distance from the start: more of them go further."""
    clip_range: NotNegative = 0.2
    """epsilon: the clip of rho to 1 - epsilon ... 1 + epsilon."""
    penalty: Literal["k3", "rho_minus_log"] = "k3"
    """k3: Eq. 4 with the old policy as the reference; rho_minus_log: the one that is a KL here."""
    updates_per_batch: AtLeastOne = 2
    """mu: passes over each rollout batch; with one update a batch the penalty is 0."""
    kl_coef: float = 1.0
    """beta, the weight of the penalty on leaving the policy of this batch."""
    kl_target: AboveZero | None = None
    """Nats per response from the old policy, per batch (kl_old_new), that kl_coef holds by moving."""
    stop_kl: KLNats | None = None
    """A number is refused: it would stop at a KL from the start, and no copy of the start is kept."""

    has_gdpo = True
    kl_horizon = 1_000  # responses over which kl_coef moves towards kl_target

    def __post_init__(self) -> None:
        super().__post_init__()
        require_groups(self)
        if self.kl_limits:
            raise ValueError(
                f"stop_kl {self.stop_kl} needs the KL from the start, and this engine keeps no copy "
                "of the start: leave stop_kl out and watch validation/kl"
            )
        updates = self.updates_per_batch * min(self.minibatches, self.prompts_per_step)
        if updates == 1 and self.kl_coef > 0:
            warnings.warn(
                "with one update a batch the policy is still the old policy when the penalty is "
                "taken, so the penalty and its gradient are 0: raise updates_per_batch or "
                "minibatches, or set kl_coef to 0",
                stacklevel=3,
            )


@torch.no_grad()
def batch_kl(new_log_probs: Tensor, old_log_probs: Tensor, rollout: Rollout) -> dict[str, float]:
    """How far one batch has moved the policy, nats per response, from samples of the old policy.

    kl_old_new  mean_i sum_t (rho - 1 - log rho)            KL(old || new)
    kl_new_old  mean_i sum_t (rho log rho - (rho - 1))      KL(new || old), at the same prefixes
    """
    mask = rollout.response_mask
    old_new = rho_minus_log(new_log_probs, old_log_probs)
    # rho (1/rho + log rho - 1): the importance weight makes k3 an estimate from old samples
    new_old = k3_importance(new_log_probs, old_log_probs, old_log_probs)
    return {
        "kl_old_new": float(masked_sum(old_new, mask).mean()),
        "kl_new_old": float(masked_sum(new_old, mask).mean()),
    }


def train(run: Run) -> list[dict[str, Any]]:
    """Run single-model GRPO, update `run.policy` in place and return one metrics row a step."""
    config: SingleModelGRPOConfig = run.config
    policy = run.policy  # line 1
    run.clip_mask = clip_mask(config.clip_range)  # for the log
    for step in run.steps():  # line 4
        rollout = run.sample(run.prompts(step))  # lines 5 and 7
        rewards = run.rewards(rollout)  # (N,)  line 8
        advantages = run.group_advantages(rollout, rewards)  # (N, 1)  line 9
        old = run.old_log_probs(rollout)  # (N, T)  line 6: also the reference
        update = Update(old, None, advantages, rollout.response_mask)

        for rows in run.minibatches(rollout):  # line 10
            for part, batch in run.micro_batches(rollout, rows):
                scores = run.scores(policy, batch)  # (n, T), with a gradient
                given = update.rows(part)
                kl = PENALTIES[config.penalty](scores.log_probs, given.old)  # pi_ref = pi_old
                loss = grpo_objective(  # line 11
                    scores.log_probs, given.old, given.advantages, given.mask, kl,
                    clip_range=config.clip_range, kl_coef=run.kl.coef, responses=len(rows),
                )  # fmt: skip
                loss.backward()
                run.record(loss, scores, given, batch)
            run.optimizer_step()  # line 11
        new = run.log_probs(policy, rollout)  # (N, T), after the last update of this batch
        moved = batch_kl(new, old, rollout)
        run.finish_step(step, rollout, rewards, update, kl_to_hold="kl_old_new", measured=moved)
    return run.log.rows


ENGINE = Engine(
    name="grpo_single_model",
    box="Single-model GRPO",
    config=SingleModelGRPOConfig,
    train=train,
)

main = ENGINE.run  # config -> run folder

if __name__ == "__main__":
    ENGINE.run_as_command()
