"""REINFORCE++ and REINFORCE++-baseline (Hu et al. 2025, arXiv:2501.03262, version 9).

Plain REINFORCE++ (k = group_size, usually 1), `--variant plain`:

    line 1   k outputs per prompt from the old policy             run.sample
    line 2   r_t = -beta k1_t, plus R at the last token           token_level_rewards
    line 3   A_t = R - beta sum_{u >= t} k1_u             (Eq. 4) discounted_returns, gamma = 1
    line 4   A_t = (A_t - mean) / std over the batch      (Eq. 5) whiten, over all tokens of the batch
    line 5   ascend the clipped objective                 (Eq. 1) reinforce_pp_loss: grpo_objective

REINFORCE++-baseline (k > 1), `--variant baseline`, has other advantages and the KL in the loss:

    line 6   A = R - mean over the prompt's k outputs     (Eq. 6) group_advantages without a scale
    line 7   A = (A - mean) / std over the batch          (Eq. 7) whiten, over all responses of the batch
    line 8   ascend Eq. 1, minus lambda k2                (Eq. 8) reinforce_pp_loss, kl_coef = lambda

The paper's appendix B.2 gives a reward to the last token alone; Eq. 4 is what its released code
computes, and what stands here. Eq. 7 runs over the N responses there, as here by default; the
released code (OpenRLHF) and verl run it over the tokens, so that long responses weigh more:
`--norm-over token`.
What is new next to PPO: no value model, the batch is the baseline. Next to GRPO: the standard
deviation is that of the batch, so that prompts whose rewards are close stay quiet.

    python -m rl.reinforce_pp_engine              reviews, the learned reward model
    python -m rl.reinforce_pp_engine --data sums  arithmetic, checked by a rule
    python -m rl.reinforce_pp_engine --variant baseline --group-size 8 --prompts-per-step 16
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from harness.flags import AtLeastOne, NotNegative
from rl.batches.rollout import Update
from rl.equations.advantages import discounted_returns, group_advantages, whiten
from rl.equations.kl import k2
from rl.equations.losses import grpo_objective
from rl.equations.token_rewards import token_level_rewards
from rl.loop import Run
from rl.run.config import EngineConfig
from rl.run.engine import Engine
from rl.run.metrics import clip_mask

# One response per prompt: a batch of as many responses has more prompts than in the other engines.


@dataclass(frozen=True)
class ReinforcePPConfig(EngineConfig):
    """Improve a policy with REINFORCE++ or REINFORCE++-baseline."""

    variant: Literal["plain", "baseline"] = "plain"
    """plain: reward to go with the KL in the reward. baseline: minus the prompt's mean reward, with
    the KL (k2) in the loss; needs --group-size 2 or more."""
    norm_over: Literal["auto", "sequence", "token"] = "auto"
    """Whose mean and standard deviation normalise the advantages. token: all tokens of the batch.
    sequence: all responses, one advantage each. auto: token for plain, sequence for baseline, as the
    paper's appendix B.2 says; the authors' code (OpenRLHF) and verl use token for both."""
    prompts_per_step: AtLeastOne = 128
    """Prompts per rollout batch."""
    group_size: AtLeastOne = 1
    """k: responses per prompt; the baseline variant needs at least 2."""
    kl_coef: float = 0.05
    """beta of the plain variant's reward, lambda of the baseline's loss; with 0 and no stop_kl no
    reference is asked."""
    clip_range: NotNegative = 0.2
    """epsilon: the clip of the ratio to 1 - epsilon ... 1 + epsilon."""

    gamma = 1.0  # of the plain variant's reward to go

    @property
    def normalised_over(self) -> str:
        """norm_over, or what it is by default in this variant."""
        if self.norm_over != "auto":
            return self.norm_over
        return "token" if self.variant == "plain" else "sequence"

    def __post_init__(self) -> None:
        super().__post_init__()
        responses = self.prompts_per_step * self.group_size
        if self.variant == "baseline" and self.group_size < 2:
            raise ValueError(
                "the variant baseline compares the responses to one prompt, and group_size is 1: "
                f"add --group-size 8 --prompts-per-step {max(responses // 8, 1)}, "
                "or use --variant plain"
            )
        if responses < 2:
            raise ValueError("a batch of one response has no spread to normalise by: sample more")


def reinforce_pp_advantages(
    config: ReinforcePPConfig,
    rewards: Tensor,  # (N,)
    old_log_probs: Tensor,  # (N, T)
    ref_log_probs: Tensor | None,  # (N, T); read by the plain variant alone
    response_mask: Tensor,  # (N, T)
    kl_coef: float,
) -> Tensor:  # (N, T) or (N, 1)
    """(A - mean) / std over the whole batch, never inside one response (Eqs. 4-5 or 6-7)."""
    if config.variant == "plain":
        token_rewards = token_level_rewards(  # line 2
            rewards, old_log_probs, ref_log_probs, response_mask, kl_coef
        )
        advantages = discounted_returns(token_rewards, response_mask, config.gamma)  # line 3
    else:
        centred = group_advantages(rewards, config.group_size, scale="none")  # line 6
        advantages = centred.expand(response_mask.shape)  # one for all tokens of a response
    if config.normalised_over == "token":
        return whiten(advantages, response_mask)  # line 4
    # The first token's reward to go is the return of the whole response.
    return whiten(advantages[:, :1], response_mask[:, :1])  # line 7


def reinforce_pp_loss(
    config: ReinforcePPConfig,
    log_probs: Tensor,  # (n, T)
    old_log_probs: Tensor,  # (n, T)
    ref_log_probs: Tensor | None,  # (n, T)
    advantages: Tensor,  # (n, T) or (n, 1)
    response_mask: Tensor,  # (n, T)
    *,
    kl_coef: float,
    responses: int,
) -> Tensor:
    """The negated objective of some rows of a minibatch (arXiv:2501.03262, Eqs. 1 and 8).

    (1/N) sum_i (1/L_i) sum_t [ -min(ratio A, clip(ratio) A) + kl_coef * k2 ], GRPO's objective of a
    minibatch of N = `responses`. Only the baseline variant has the KL in the loss.
    """
    kl = None
    if config.variant == "baseline" and ref_log_probs is not None:
        kl = k2(log_probs, ref_log_probs)  # (n, T)
    return grpo_objective(  # lines 5 and 8
        log_probs, old_log_probs, advantages, response_mask, kl,
        clip_range=config.clip_range, kl_coef=kl_coef, responses=responses,
    )  # fmt: skip


def train(run: Run) -> list[dict[str, Any]]:
    """Run REINFORCE++, update `run.policy` in place and return one metrics row a step."""
    config: ReinforcePPConfig = run.config
    policy, reference = run.policy, run.freeze_reference()
    run.clip_mask = clip_mask(config.clip_range)  # for the log
    for step in run.steps():
        rollout = run.sample(run.prompts(step))  # line 1
        rewards = run.rewards(rollout)  # (N,)  line 2
        old = run.old_log_probs(rollout)  # (N, T)
        ref = run.ref_log_probs(reference, rollout)  # (N, T), None where no KL is asked for
        advantages = reinforce_pp_advantages(  # lines 3-4, or 6-7: (N, T) or (N, 1)
            config, rewards, old, ref, rollout.response_mask, run.kl.coef
        )
        update = Update(old, ref, advantages, rollout.response_mask)

        for rows in run.minibatches(rollout):  # mu
            for part, batch in run.micro_batches(rollout, rows):
                scores = run.scores(policy, batch)  # (n, T), with a gradient
                given = update.rows(part)
                loss = reinforce_pp_loss(  # lines 5 and 8: Eq. 1, or Eq. 8
                    config, scores.log_probs, given.old, given.ref, given.advantages, given.mask,
                    kl_coef=run.kl.coef, responses=len(rows),
                )  # fmt: skip
                loss.backward()
                run.record(loss, scores, given, batch)
            run.optimizer_step()
        run.finish_step(step, rollout, rewards, update)
    return run.log.rows


ENGINE = Engine(
    name="reinforce_pp",
    box="REINFORCE++",
    config=ReinforcePPConfig,
    train=train,
    toy="--variant baseline",
)

main = ENGINE.run  # config -> run folder

if __name__ == "__main__":
    ENGINE.run_as_command()
