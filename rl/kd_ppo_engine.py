"""PPO with a teacher's log-likelihood as the reward: distillation with a critic.

Two boxes in one, the second being the first with the lines marked (2). Their nearest relative in
print is MiniLLM (Gu et al. 2024, arXiv:2306.08543); the rest is PPO (arXiv:1707.06347).

    line 1   student <- start; teacher frozen                   policy; TeacherReward
    line 2   reference <- student; critic                       reference; value_model, a head of zeros
    line 3   for each batch of prompts                          run.prompts
    line 4     o ~ student; l_old; v = V(state)                 run.sample, old_log_probs, rollout_values
    line 5     r = log p_teacher(o | q) [- beta KL]             TeacherReward, kd_token_rewards, placement
    line 6     r = r - lambda L_PT, for all outputs         (2) pt_mode="reward_bonus": holds no text
    line 7     A, returns = GAE(r, V)                           gae_update: gae, whiten (arXiv:1506.02438,
                                                                Eq. 16); gae_lambda = 1: Monte-Carlo
    line 8     for K epochs, shuffled minibatches               updates_per_batch, minibatches
    line 9       L = L_policy + c_v L_value - c_H entropy       ppo_loss: clipped_surrogate, value_loss
    line 10      ... + lambda L_PT                          (2) pt_mode="loss": text_gradient
    line 11      [... + beta KL, if it is not in the reward]    kl_loss_coef: k2
    line 12    update the reference if needed                   renew_reference, moved_reference

Where it differs from the boxes, and why. The teacher judges every token, so every token gets its
own reward (`--placement terminal` is the box: their sum at the last one; with gamma = 1 the returns
of a whole response are equal, the credit is not). By default the student's log-probability is
subtracted: log p alone is largest for the one likeliest output. There is a value for every state,
not one per prompt, or GAE has no temporal difference; the ratio is a token's, not the product over
the output. And L_PT: as a bonus it is one number for the whole batch, computed without a gradient.
The baseline takes it away again, exactly only for a perfect critic or GAE's lambda = 1; otherwise it
disturbs the advantages through the critic's error. Only as a loss does it hold on to the text.
What is new next to PPO: the reward is a model's log-probability, token by token.

    python -m rl.kd_ppo_engine                        reviews, the teacher of scripts/make_teacher.py
    python -m rl.kd_ppo_engine --placement terminal --teacher-reward sum
    python -m rl.kd_ppo_engine --pt-mode reward_bonus     warns, and shows what it says
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gpt.corpus import Corpus
from gpt.model import GPT
from gpt.pretraining import held_out_loss
from harness.flags import AboveZero
from rl.actor_critic import (
    ActorCriticConfig,
    ValueModel,
    batch_values,
    gae_update,
    ppo_loss,
    rollout_values,
    train_critic,
)
from rl.batches.rollout import Rollout
from rl.equations.token_rewards import token_level_rewards
from rl.loop import Run
from rl.rewards.reward import RewardFn, components
from rl.rewards.teacher_reward import (
    MovingReference,
    TeacherFlags,
    TeacherReward,
    moved_reference,
    refuse_other_rewards,
    reward_from_teacher,
)
from rl.run.config import refuse_penalty
from rl.run.engine import Engine
from rl.run.metrics import clip_mask, explained_variance
from rl.run.pretraining_loss import open_text, text_gradient, text_of


@dataclass(frozen=True)
class KDPPOConfig(TeacherFlags, MovingReference, ActorCriticConfig):
    """Distil a teacher into a policy with PPO."""

    teacher_reward: Literal["reverse_kl", "sum"] = "reverse_kl"
    """reverse_kl: log p_teacher - log p_student, summed over a response. sum: log p_teacher alone."""
    placement: Literal["dense", "terminal"] = "dense"
    """dense: every token gets its own part of the reward. terminal: the last token gets the sum."""
    kl_coef: float = 0.02
    """beta, the weight of the KL to the reference, in every token's reward."""
    value_clip: AboveZero | None = None
    """Clip the new value to the rollout's by this much in the value loss; rewards are in nats here, and
    PPO's usual 0.2 would keep the critic from following them."""
    pt_mode: Literal["loss", "reward_bonus"] = "loss"
    """loss: pretraining_coef * L_PT is part of the loss. reward_bonus: minus that number is added to
    every response's reward, which cannot hold the text; it is there to show that."""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_other_rewards(self.reward, self.reward_model)
        refuse_penalty("KD-PPO", self)


def rewards_of_tokens(
    config: KDPPOConfig, reward_fn: RewardFn | None, rollout: Rollout
) -> Tensor | None:  # (N, T)
    """What the teacher gives to each token, where the placement asks for that."""
    if config.placement == "terminal":
        return None
    token_rewards = components(reward_fn).token_rewards
    if token_rewards is None:
        raise ValueError(
            "placement dense takes a teacher's reward apart that is a sum over tokens, and this reward "
            "is none: use placement terminal, or teacher_reward(config, teacher)"
        )
    return token_rewards(rollout)


def kd_token_rewards(  # lines 5-6
    rewards: Tensor,  # (N,), the sum over the tokens
    teacher_rewards: Tensor | None,  # (N, T), the tokens; None: terminal
    old_log_probs: Tensor,  # (N, T)
    ref_log_probs: Tensor | None,  # (N, T)
    response_mask: Tensor,  # (N, T)
    *,
    kl_coef: float,
    bonus: float = 0.0,
) -> Tensor:  # (N, T)
    """r_t = (log p_teacher [- log p_student])_t - kl_coef * (log p_student - log p_ref)_t.

    terminal: the teacher's part stands as `rewards` at the last token instead, and so does in any
    case the `bonus`, one number for all responses.
    """
    given = old_log_probs, ref_log_probs, response_mask, kl_coef
    if teacher_rewards is None:
        return token_level_rewards(rewards + bonus, *given)
    return token_level_rewards(torch.full_like(rewards, bonus), *given) + teacher_rewards


def warn_of_bonus(config: KDPPOConfig) -> None:
    """Of the mode in which the text cannot be held."""
    if config.pretraining_coef and config.pt_mode == "reward_bonus":
        warnings.warn(
            "pt_mode reward_bonus adds the same number, without a gradient, to the reward of every "
            "response: it cannot hold the text, and where GAE's lambda is below 1 it disturbs the "
            "advantages. Use pt_mode loss",
            stacklevel=3,
        )


def text_bonus(
    config: KDPPOConfig, policy: GPT, text: Corpus | None, step: int
) -> tuple[float, dict[str, float]]:
    """-lambda L_PT in the mode reward_bonus, one number without a gradient, and what is logged."""
    if text is None or config.pt_mode != "reward_bonus":
        return 0.0, {}
    text_loss = held_out_loss(policy, [text.batch(step * config.updates)])
    return -config.pretraining_coef * text_loss, {"pretraining_loss": text_loss}


def train(run: Run, *, corpus: Corpus | None = None) -> list[dict[str, Any]]:
    """Run KD-PPO, update `run.policy` in place and return one metrics row a step.

    The reward is the teacher's (`teacher_reward(config, teacher)`), `corpus` the text of L_PT.
    """
    config: KDPPOConfig = run.config
    text, policy = text_of(config, corpus), run.policy  # line 1
    warn_of_bonus(config)
    reference = run.freeze_reference(moves=config.renew_reference is not None)  # line 2
    critic = train_critic(run, ValueModel.from_policy(policy), config.critic_lr)  # line 2
    run.clip_mask = clip_mask(config.clip_range)  # for the log
    for step in run.steps():  # line 3
        rollout = run.sample(run.prompts(step))  # lines 3-4
        rewards = run.rewards(rollout)  # (N,)  line 5
        bonus, of_bonus = text_bonus(config, policy, text, step)  # line 6
        old = run.old_log_probs(rollout, groups=False)  # (N, T)  line 4
        ref = run.ref_log_probs(reference, rollout, needed=config.kl_loss_coef > 0)  # (N, T)
        old_values = rollout_values(run, critic, rollout)  # (N, T)  line 4
        mask = rollout.response_mask
        token_rewards = kd_token_rewards(  # (N, T)  lines 5-6
            rewards, rewards_of_tokens(config, run.reward_fn, rollout), old, ref, mask,
            kl_coef=run.kl.coef, bonus=bonus,
        )  # fmt: skip
        update = gae_update(config, token_rewards, old, ref, old_values, mask)  # line 7

        for number, rows in enumerate(run.minibatches(rollout, groups=False)):  # line 8
            for part, batch in run.micro_batches(rollout, rows):
                scores = run.scores(policy, batch, entropy_gradient=config.entropy_coef > 0)
                values = batch_values(run, critic, batch)  # (n, T) each, with gradients
                given = update.rows(part)
                losses = ppo_loss(config, scores, values, given, rollout.tokens_of(rows))
                losses.total.backward()  # lines 9 and 11: L of ppo_loss
                run.record(losses.total, scores, given, batch, **losses.per_token())
            held = text if config.pt_mode == "loss" else None  # line 10
            of_text = text_gradient(config, policy, held, step, number)
            run.loss += config.pretraining_coef * of_text.get("pretraining_loss", 0.0)
            run.optimizer_step(**of_text)  # line 9
        moved_reference(config.renew_reference, step + 1, reference, policy)  # line 12
        explained = explained_variance(old_values, update.returns, mask)
        run.finish_step(step, rollout, rewards, update, measured=explained | of_bonus)
    return run.log.rows


def teacher_reward(config: KDPPOConfig, teacher: GPT) -> TeacherReward:
    """The teacher's reward of a response, summed over its tokens, in the form the flags ask for."""
    reverse_kl = config.teacher_reward == "reverse_kl"
    return TeacherReward(teacher, config, aggregate="sum", reverse_kl=reverse_kl)


ENGINE = Engine(
    name="kd_ppo",
    box="KD-PPO",
    config=KDPPOConfig,
    train=train,
    learns_from="teacher",
    groups=False,
    prepare=open_text,
    own_reward=lambda config: reward_from_teacher(teacher_reward),
)

main = ENGINE.run  # config -> run folder

if __name__ == "__main__":
    ENGINE.run_as_command()
