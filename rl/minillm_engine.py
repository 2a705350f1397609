"""MiniLLM: distillation by the reverse KL of whole responses (Gu et al. 2024, arXiv:2306.08543).

    line 1   student <- start; teacher p frozen                 policy; teacher
    line 2   repeat                                             run.steps
    line 3     prompts x; y ~ p~ = alpha p + (1 - alpha) q,     run.prompts, run.sample (Eq. 4: each
               token by token                                   token from the mixture of both models)
    line 4     r_t = log p(y_t) / q(y_t)                        teacher_rewards (Eq. 2)
    line 5     w_t = q / p~ of token t                          mixed_sampling_weights
    line 6     R_{t+1} = the mean of r after token t            length_normalized_returns (Eq. 6)
    line 7     for the inner epochs, in minibatches             updates_per_batch, minibatches
    line 8       Single = w_t KL(q(.|s_t) || p(.|s_t))          token_scores_and_kl (Eq. 3, Eq. 5)
    line 9       Long   = -w_t R_{t+1} min(rho_t, clip(rho_t))  clipped_surrogate
    line 10      L_PT   = cross-entropy on pre-training text    text_gradient
    line 11      descend Single + Long + lambda L_PT            minillm_loss

The gradient of KL(q || p) over responses is that of the token KLs along the way (Single) plus the
effect of a token on the tokens after it (Long): the current token's own reward is in Single, summed
over the vocabulary without sampling noise, and therefore not in R_{t+1}. What is new next to PPO:
the reward comes from a teacher token by token, the teacher helps to sample, and the loss contains
an exact term. There is no critic, no baseline and no reference model. `reward` in the log is
log p(y) / q(y) of the sampled responses, about minus the reverse KL.

    python scripts/make_teacher.py                the teacher, once
    python -m rl.minillm_engine                   reviews
    python -m rl.minillm_engine --teacher-share 0 --pretraining-coef 0
    python -m rl.minillm_engine --data texts.json --preset small --teacher runs/larger
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor

from gpt.corpus import Corpus
from gpt.generate import Mixture
from gpt.log_probs import token_scores_and_kl
from gpt.model import GPT
from harness.flags import AtLeastOne, KLNats, NotNegative, Range
from harness.tensors import masked_sum
from rl.batches.rollout import Update
from rl.equations.losses import (
    clipped_surrogate,
    length_normalized_returns,
    mixed_sampling_weights,
    token_mean,
)
from rl.equations.token_rewards import teacher_rewards
from rl.loop import Run
from rl.rewards.reward import components
from rl.rewards.teacher_reward import (
    TeacherFlags,
    TeacherReward,
    refuse_other_rewards,
    reward_from_teacher,
    teacher_log_probs,
)
from rl.run.config import refuse_others
from rl.run.engine import Engine
from rl.run.metrics import clip_mask
from rl.run.pretraining_loss import TextConfig, open_text, text_gradient, text_of


@dataclass(frozen=True)
class MiniLLMConfig(TeacherFlags, TextConfig):
    """Distil a teacher into a policy with MiniLLM."""

    teacher_share: Annotated[
        float, Range("[0, 1)", "must be in [0, 1), or the weights of the samples have no bound")
    ] = 0.2
    """alpha: the teacher's share of the mixture that responses are drawn from; 0 is on-policy."""
    prompts_per_step: AtLeastOne = 128
    """Prompts per rollout batch."""
    group_size: AtLeastOne = 1
    """Responses per prompt; there is no baseline, so one is enough."""
    updates_per_batch: AtLeastOne = 2
    """Inner epochs of shuffled minibatches over each rollout batch (the paper's code: 4)."""
    kl_coef: float = 0.0
    """Must be 0: the KL to the teacher is the whole loss, and there is no reference."""
    stop_kl: KLNats | None = None
    """Must be left out: no KL to a reference is measured in training."""
    clip_range: NotNegative = 0.2
    """epsilon: the clip of the ratio to 1 - epsilon ... 1 + epsilon."""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_other_rewards(self.reward, self.reward_model)
        refuse_others("MiniLLM", self)


@dataclass(frozen=True)
class WeightedUpdate(Update):
    """What a minibatch learns from: `old` is the student's, whoever drew, `advantages` are R_{t+1}."""

    weights: Tensor  # (N, T), w


def minillm_loss(
    config: MiniLLMConfig,
    log_probs: Tensor,  # (n, T)
    token_kl: Tensor,  # (n, T), KL(q(.|s_t) || p(.|s_t)) of the student in training
    given: WeightedUpdate,  # (n, T) each
    *,
    tokens: int,
) -> Tensor:
    """Single + Long of some rows of a minibatch of `tokens` tokens (arXiv:2306.08543, Eqs. 3 to 6).

    1/tokens sum_{i,t} [ w KL_t + max(-rho w R_{t+1}, -clip(rho) w R_{t+1}) ]
    """
    low = high = config.clip_range
    weighted = given.weights * given.advantages
    surrogate = clipped_surrogate(log_probs, given.old, weighted, low, high)  # line 9
    token_loss = given.weights * token_kl + surrogate  # lines 8 and 11
    return token_mean(token_loss, given.mask, denominator=tokens)  # line 11


def minillm_update(
    config: MiniLLMConfig,
    teacher_log_probs: Tensor,  # (N, T)
    old_log_probs: Tensor,  # (N, T)
    response_mask: Tensor,  # (N, T)
) -> tuple[WeightedUpdate, Tensor]:
    """The constants of a rollout, and r_t = log p / q of its tokens (N, T)."""
    token_rewards = teacher_rewards(  # line 4
        teacher_log_probs, old_log_probs, response_mask, reverse_kl=True
    )
    weights = mixed_sampling_weights(  # line 5
        old_log_probs, teacher_log_probs, response_mask, config.teacher_share
    )
    returns = length_normalized_returns(token_rewards, response_mask)  # line 6
    update = WeightedUpdate(old_log_probs, None, returns, response_mask, weights)
    return update, token_rewards


def train(run: Run, *, corpus: Corpus | None = None) -> list[dict[str, Any]]:
    """Run MiniLLM, update `run.policy` in place and return one metrics row a step.

    The reward brings the teacher, `corpus` is the text of L_PT.
    """
    config: MiniLLMConfig = run.config
    text = text_of(config, corpus)
    policy, teacher = run.policy, components(run.reward_fn).teacher  # line 1
    assert teacher is not None, "the reward of this run brings no teacher"
    mixture = Mixture(teacher, config.teacher_share)
    run.clip_mask = clip_mask(config.clip_range)  # for the log
    for step in run.steps():  # line 2
        rollout = run.sample(run.prompts(step), mixture=mixture)  # line 3: y ~ p~, token by token
        with run.clock.phase("reward"):  # line 4: log p
            judged = teacher_log_probs(teacher, rollout, config)  # (N, T)
        old, mask = run.old_log_probs(rollout, groups=False), rollout.response_mask  # (N, T)
        update, token_rewards = minillm_update(config, judged, old, mask)  # lines 4-6: r, w, R

        for number, rows in enumerate(run.minibatches(rollout, groups=False)):  # line 7
            for part, batch in run.micro_batches(rollout, rows):
                with run.precise():  # line 8
                    scores, token_kl = token_scores_and_kl(
                        policy, teacher, batch, config.temperature
                    )
                given = update.rows(part)
                loss = minillm_loss(  # line 11: Single + Long
                    config, scores.log_probs, token_kl, given, tokens=rollout.tokens_of(rows)
                )
                loss.backward()
                run.record(
                    loss, scores, given, batch,
                    single_step_kl=token_kl, mixing_weight=given.weights,
                )  # fmt: skip
            of_text = text_gradient(config, policy, text, step, number)  # line 10
            run.loss += config.pretraining_coef * of_text.get("pretraining_loss", 0.0)
            run.optimizer_step(**of_text)  # line 11
        rewards = masked_sum(token_rewards, mask)  # log p(y) / q(y), (N,)
        run.finish_step(step, rollout, rewards, update)
    return run.log.rows


def teacher_reward(config: MiniLLMConfig, teacher: GPT) -> TeacherReward:
    """The teacher; its reward is log p(y) / q(y), which validations report."""
    return TeacherReward(teacher, config, aggregate="sum", reverse_kl=True)


ENGINE = Engine(
    name="minillm",
    box="MiniLLM",
    config=MiniLLMConfig,
    train=train,
    learns_from="teacher",
    groups=False,
    prepare=open_text,
    own_reward=lambda config: reward_from_teacher(teacher_reward),
)

main = ENGINE.run  # config -> run folder

if __name__ == "__main__":
    ENGINE.run_as_command()
