"""RLOO: REINFORCE Leave-One-Out (Ahmadian et al. 2024, arXiv:2402.14740, section 2.3).

The paper gives an estimator in place of a box (after Kool et al. 2019, k = group_size):

    1/k sum_i [ R(y_i, x) - 1/(k-1) sum_{j != i} R(y_j, x) ] grad log pi(y_i | x)

    line 1     y_1 ... y_k ~ pi( . | x)                           run.sample
    line 2     R(y, x) = r(x, y) - beta log(pi / pi_ref)(y | x)   run.rewards; token_level_rewards, summed
    line 3     R(y_i, x) - the mean of the other k - 1            leave_one_out_advantages
    line 4     two gradient steps a batch (appendix C)            minibatches, on disjoint rows
    line 5     grad log pi(y | x), the whole response             rloo_loss: policy_gradient, sequence_sum

The whole response is one action: log pi(y | x) is the sum over its tokens, undivided by the length.
Two other forms have the name too and are a flag away: `--loss clipped` puts the ratio of whole
responses into PPO's clip, `--loss token` gives each token its response's advantage in the token
PPO loss.
What is new next to GRPO: the baseline leaves the response's own reward out and nothing divides by
a standard deviation; the KL is part of the reward, before the baseline; no ratio, no clip.

    python -m rl.rloo_engine                      reviews, the learned reward model
    python -m rl.rloo_engine --data sums          arithmetic, checked by a rule
    python -m rl.rloo_engine --loss clipped --updates-per-batch 2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from harness.flags import NotNegative
from rl.batches.rollout import Update
from rl.equations.advantages import leave_one_out_advantages
from rl.equations.losses import (
    clipped_surrogate,
    policy_gradient,
    sequence_clipped_surrogate,
    sequence_mean,
    sequence_ratio,
    sequence_sum,
    token_mean,
)
from rl.equations.token_rewards import token_level_rewards
from rl.loop import Run
from rl.run.config import EngineConfig, require_groups
from rl.run.engine import Engine
from rl.run.metrics import ClipMask, clip_mask, no_clip


@dataclass(frozen=True)
class RLOOConfig(EngineConfig):
    """Improve a policy with REINFORCE and a leave-one-out baseline."""

    loss: Literal["sequence", "clipped", "token"] = "sequence"
    """sequence: the paper's REINFORCE on whole responses. clipped: with the clipped ratio of whole
    responses. token: the token PPO loss."""
    clip_range: NotNegative = 0.2
    """epsilon: the clip of the ratio to 1 - epsilon ... 1 + epsilon, for the losses clipped and token."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_groups(self)
        if self.loss == "sequence" and self.updates_per_batch > 1:
            raise ValueError(
                f"updates_per_batch must be 1 with the loss sequence: got {self.updates_per_batch}. "
                "Without a ratio its gradient holds for new samples only; take --loss clipped or "
                "--loss token for several passes"
            )


def clip_mask_of(config: RLOOConfig) -> ClipMask:
    """Where the clip of this loss acts."""
    if config.loss == "sequence":
        return no_clip
    if config.loss == "clipped":
        return clip_mask(config.clip_range, ratio=sequence_ratio)
    return clip_mask(config.clip_range)


def rloo_advantages(
    config: RLOOConfig,
    rewards: Tensor,  # (N,)
    old_log_probs: Tensor,  # (N, T)
    ref_log_probs: Tensor | None,  # (N, T)
    response_mask: Tensor,  # (N, T)
    kl_coef: float,
) -> Tensor:  # (N, 1)
    """R'_i - 1/(G-1) sum_{j != i} R'_j, R' = R - kl_coef * sum_t (log pi_old - log pi_ref)."""
    penalised = token_level_rewards(  # line 2
        rewards, old_log_probs, ref_log_probs, response_mask, kl_coef
    )
    advantages = leave_one_out_advantages(penalised.sum(1), config.group_size)  # line 3
    return advantages


def rloo_loss(
    config: RLOOConfig,
    log_probs: Tensor,  # (n, T)
    old_log_probs: Tensor,  # (n, T)
    advantages: Tensor,  # (n, 1)
    response_mask: Tensor,  # (n, T)
    *,
    responses: int,
    tokens: int,
) -> Tensor:
    """The negated objective of some rows of a minibatch of N = `responses` with `tokens` tokens.

    sequence  -(1/N) sum_i A_i sum_t log pi(y_it): the paper's, nothing is clipped
    clipped   -(1/N) sum_i min(s_i A_i, clip(s_i) A_i), s_i = exp(sum_t (log pi - log pi_old))
    token     -(1/tokens) sum_it min(ratio_it A_i, clip(ratio_it) A_i)

    At log_probs = old_log_probs the gradients of the first two are equal, the third is N / tokens of
    them.
    """
    low = high = config.clip_range
    if config.loss == "sequence":  # line 5
        loss = policy_gradient(log_probs, advantages)
        return sequence_sum(loss, response_mask, denominator=responses)
    if config.loss == "clipped":
        loss = sequence_clipped_surrogate(
            log_probs, old_log_probs, advantages, response_mask, low, high
        )
        return sequence_mean(loss, response_mask, denominator=responses)
    loss = clipped_surrogate(log_probs, old_log_probs, advantages, low, high)
    return token_mean(loss, response_mask, denominator=tokens)


def train(run: Run) -> list[dict[str, Any]]:
    """Run RLOO, update `run.policy` in place and return one metrics row a step."""
    config: RLOOConfig = run.config
    policy, reference = run.policy, run.freeze_reference()  # pi, pi_ref
    run.clip_mask = clip_mask_of(config)  # for the log
    for step in run.steps():
        rollout = run.sample(run.prompts(step))  # line 1: y_1 ... y_k ~ pi( . | x)
        rewards = run.rewards(rollout)  # (N,)  line 2: r(x, y)
        old = run.old_log_probs(rollout)  # (N, T)
        ref = run.ref_log_probs(reference, rollout)  # (N, T), None where no KL is asked for
        advantages = rloo_advantages(  # (N, 1)  lines 2-3
            config, rewards, old, ref, rollout.response_mask, run.kl.coef
        )
        update = Update(old, ref, advantages, rollout.response_mask)

        for rows in run.minibatches(rollout):  # line 4
            for part, batch in run.micro_batches(rollout, rows):
                scores = run.scores(policy, batch)  # (n, T), with a gradient
                given = update.rows(part)
                loss = rloo_loss(  # line 5: A grad log pi(y | x)
                    config, scores.log_probs, given.old, given.advantages, given.mask,
                    responses=len(rows), tokens=rollout.tokens_of(rows),
                )  # fmt: skip
                loss.backward()
                run.record(loss, scores, given, batch)
            run.optimizer_step()  # line 5
        run.finish_step(step, rollout, rewards, update)
    return run.log.rows


ENGINE = Engine(
    name="rloo",
    box="RLOO",
    config=RLOOConfig,
    train=train,
)

main = ENGINE.run  # config -> run folder

if __name__ == "__main__":
    ENGINE.run_as_command()
