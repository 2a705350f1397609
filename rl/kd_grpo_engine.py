"""GRPO with a teacher's log-likelihood as the reward: knowledge distillation by reinforcement.

Two boxes in one, the second being the first with the lines marked (2). Their nearest relative in
print is MiniLLM (Gu et al. 2024, arXiv:2306.08543); the rest is GRPO (arXiv:2402.03300).

    line 1   student <- start; teacher frozen                   policy; TeacherReward
    line 2   reference <- student                               reference
    line 3   for each batch of prompts                          run.prompts
    line 4     G outputs per prompt                             run.sample
    line 5     r = log p_teacher(o | q)                         TeacherReward, teacher_reward
    line 6     r = r - lambda L_PT(o), of the output itself (3) own_text_coef: own_text_penalty
    line 7     A = (r - mean of the group) / (std + eps)        group_advantages
    line 8     L_policy = -A log pi(o | q)                      kd_grpo_loss, policy_loss
    line 9     L_KL to the reference                            scores_and_penalty, kl_estimator
    line 10    L_PT = -log pi(d), d from pre-training text  (2) text_gradient
    line 11    L = L_policy + beta L_KL + lambda L_PT       (2) kl_coef, pretraining_coef
    line 12    now and then: reference <- student               renew_reference, moved_reference

Where it differs from the boxes, and why. r = log p alone has no entropy term: what maximises it is
the teacher's one likeliest output, and as a sum over tokens it favours short ones; by default the
student's own log-probability is subtracted (`--teacher-reward sum` is the box). -A log pi is
REINFORCE and right for one pass over the samples; by default the clipped ratio takes its place
(`--policy-loss reinforce` is the box). log pi - log pi_ref, differentiated, pulls nowhere: k3, k2
or the full KL. L_PT is a mean over tokens, so the length of the text does not set its weight. Line
(3) is off by default. Unlike one number for the whole batch it differs within a group and does act,
but it protects no earlier text: the student's loss on what it has just written is minus its own
log-probability, so likely outputs earn more, and the student's entropy is what is penalised.
What is new next to GRPO: the reward is a model's log-probability, and a second loss holds on to
what the student learned before.

    python -m rl.kd_grpo_engine                       reviews, the teacher of scripts/make_teacher.py
    python -m rl.kd_grpo_engine --teacher-reward sum --policy-loss reinforce --pretraining-coef 0
    python -m rl.kd_grpo_engine --data texts.json --preset small --teacher runs/larger
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from data.collate import ResponseBatch
from gpt.corpus import Corpus
from gpt.log_probs import TokenScores, token_scores, token_scores_and_kl
from gpt.model import GPT
from harness.flags import NotNegative
from rl.batches.rollout import Update
from rl.equations.advantages import group_advantages
from rl.equations.kl import loss_estimator
from rl.equations.losses import grpo_objective, policy_gradient, sequence_mean, sequence_sum
from rl.loop import Run
from rl.rewards.teacher_reward import (
    MovingReference,
    TeacherFlags,
    TeacherReward,
    moved_reference,
    refuse_other_rewards,
    reward_from_teacher,
)
from rl.run.config import require_groups
from rl.run.engine import Engine
from rl.run.metrics import clip_mask
from rl.run.pretraining_loss import TextConfig, open_text, text_gradient, text_of


@dataclass(frozen=True)
class KDGRPOConfig(TeacherFlags, MovingReference, TextConfig):
    """Distil a teacher into a policy with GRPO."""

    teacher_reward: Literal["reverse_kl", "mean", "sum"] = "reverse_kl"
    """reverse_kl: log p_teacher - log p_student. mean, sum: log p_teacher alone, over the tokens."""
    per_token: bool = False
    """reverse_kl as the mean over a response's tokens, not their sum, which is on average minus the
    KL of the response."""
    own_text_coef: NotNegative = 0.0
    """Takes this much of the student's own -log p_student of a response off its reward (summed or
    averaged as the reward is). It acts, as a penalty on entropy: against variety. With reverse_kl 1
    leaves log p_teacher alone."""
    policy_loss: Literal["clipped", "reinforce"] = "clipped"
    """clipped: GRPO's ratio and clip. reinforce: -A log pi of the whole response, for one pass only;
    of several minibatches all but the first are then a little older than the policy."""
    clip_range: NotNegative = 0.2
    """epsilon: the clip of the ratio to 1 - epsilon ... 1 + epsilon."""
    kl_coef: float = 0.04
    """beta, the weight of the KL to the reference; with 0 and no stop_kl none is asked."""
    kl_estimator: Literal["k3", "k2", "full"] = "k3"
    """k3, k2 of the sampled tokens, or full, over the vocabulary."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_groups(self)
        refuse_other_rewards(self.reward, self.reward_model)
        if self.kl_estimator != "full":
            loss_estimator(self.kl_estimator)
        if self.teacher_reward != "reverse_kl" and self.per_token:
            raise ValueError(
                f"per_token belongs to reverse_kl; {self.teacher_reward!r} says itself what is done "
                "with the tokens: leave per_token out"
            )
        if self.policy_loss == "reinforce" and self.updates_per_batch > 1:
            raise ValueError(
                f"updates_per_batch must be 1 with the policy loss reinforce: got "
                f"{self.updates_per_batch}. Without a ratio its gradient holds for new samples only; "
                "take --policy-loss clipped for several passes"
            )


def scores_and_penalty(  # line 9
    config: KDGRPOConfig,
    policy: GPT,
    reference: GPT,
    batch: ResponseBatch,
    ref_log_probs: Tensor | None,  # (n, T)
) -> tuple[TokenScores, Tensor | None]:
    """The policy's scores and its KL to the reference as a loss, (n, T), where one is asked for."""
    if ref_log_probs is not None and config.kl_estimator == "full":
        return token_scores_and_kl(policy, reference, batch, config.temperature)
    scores = token_scores(policy, batch, config.temperature)
    if ref_log_probs is None:
        return scores, None
    return scores, loss_estimator(config.kl_estimator)(scores.log_probs, ref_log_probs)


def kd_grpo_loss(  # lines 8 and 11
    config: KDGRPOConfig,
    log_probs: Tensor,  # (n, T)
    old_log_probs: Tensor,  # (n, T)
    penalty: Tensor | None,  # (n, T)
    advantages: Tensor,  # (n, 1)
    response_mask: Tensor,  # (n, T)
    *,
    kl_coef: float,
    responses: int,
) -> Tensor:
    """L_policy + kl_coef * L_KL of some rows of a minibatch of N = `responses` (micro-batches add up).

    clipped:   (1/N) sum_i (1/L_i) sum_t [ -min(ratio A, clip(ratio) A) + kl_coef * KL ]
    reinforce: (1/N) sum_i [ -A_i sum_t log pi(y_it) + kl_coef * (1/L_i) sum_t KL ]

    The first is GRPO's (arXiv:2402.03300, Eq. 3).
    """
    if config.policy_loss == "reinforce":
        policy_loss = policy_gradient(log_probs, advantages)
        loss = sequence_sum(policy_loss, response_mask, denominator=responses)
        if penalty is not None:
            loss = loss + kl_coef * sequence_mean(penalty, response_mask, denominator=responses)
        return loss
    return grpo_objective(
        log_probs, old_log_probs, advantages, response_mask, penalty,
        clip_range=config.clip_range, kl_coef=kl_coef, responses=responses,
    )  # fmt: skip


def train(run: Run, *, corpus: Corpus | None = None) -> list[dict[str, Any]]:
    """Run KD-GRPO, update `run.policy` in place and return one metrics row a step.

    The reward is the teacher's (`teacher_reward(config, teacher)`), `corpus` the text of L_PT.
    """
    config: KDGRPOConfig = run.config
    text, policy = text_of(config, corpus), run.policy  # line 1
    reference = run.freeze_reference(moves=config.renew_reference is not None)  # line 2
    if config.policy_loss == "clipped":
        run.clip_mask = clip_mask(config.clip_range)  # for the log
    for step in run.steps():  # line 3
        rollout = run.sample(run.prompts(step))  # lines 3-4
        rewards = run.rewards(rollout)  # (N,)  lines 5-6
        advantages = group_advantages(rewards, config.group_size)  # (N, 1)  line 7
        old = run.old_log_probs(rollout)  # (N, T)
        ref = run.ref_log_probs(reference, rollout)  # (N, T), None where no KL is asked for
        update = Update(old, ref, advantages, rollout.response_mask)

        for number, rows in enumerate(run.minibatches(rollout)):
            for part, batch in run.micro_batches(rollout, rows):
                given = update.rows(part)
                with run.precise():  # line 9
                    scores, penalty = scores_and_penalty(
                        config, policy, reference, batch, given.ref
                    )
                loss = kd_grpo_loss(  # lines 8 and 11: L_policy + beta L_KL
                    config, scores.log_probs, given.old, penalty, given.advantages, given.mask,
                    kl_coef=run.kl.coef, responses=len(rows),
                )  # fmt: skip
                loss.backward()
                run.record(loss, scores, given, batch)
            of_text = text_gradient(config, policy, text, step, number)  # line 10
            run.loss += config.pretraining_coef * of_text.get("pretraining_loss", 0.0)
            run.optimizer_step(**of_text)  # line 11
        moved_reference(config.renew_reference, step + 1, reference, policy)  # line 12
        run.finish_step(step, rollout, rewards, update)
    return run.log.rows


def teacher_reward(config: KDGRPOConfig, teacher: GPT) -> TeacherReward:  # lines 5-6
    """The teacher's reward in the form that the flags ask for."""
    reverse_kl = config.teacher_reward == "reverse_kl"
    averaged = config.teacher_reward == "mean" or config.per_token
    return TeacherReward(
        teacher, config, aggregate="mean" if averaged else "sum", reverse_kl=reverse_kl,
        own_text_coef=config.own_text_coef,
    )  # fmt: skip


ENGINE = Engine(
    name="kd_grpo",
    box="KD-GRPO",
    config=KDGRPOConfig,
    train=train,
    learns_from="teacher",
    prepare=open_text,
    own_reward=lambda config: reward_from_teacher(teacher_reward),
)

main = ENGINE.run  # config -> run folder

if __name__ == "__main__":
    ENGINE.run_as_command()
