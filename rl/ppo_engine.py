"""PPO for RLHF (Schulman et al. 2017, arXiv:1707.06347; Ouyang et al. 2022, arXiv:2203.02155).

    line 1   policy <- start, reference <- frozen copy          policy, reference
    line 2   critic <- reward model                             value_model (a GPT of its own)
    line 3   for each batch of prompts                          run.prompts
    line 4     y ~ policy; scores R = r_phi(x, y)               run.sample, run.rewards
    line 5     l_old, l_ref, V_old: constants from here on      run.old_log_probs, rollout_values
    line 6     r_t = -beta (l_old - l_ref)_t, and R at the end  token_level_rewards (InstructGPT, Eq. 2)
    line 7     A, returns = GAE(r, V_old); A = whiten(A)        gae, whiten (arXiv:1506.02438, Eq. 16)
    line 8     for K epochs, shuffled minibatches               updates_per_batch, minibatches
    line 9       L = L_CLIP + c_v L_VF - c_H H + gamma L_ptx    ppo_loss, text_gradient
    line 10        [+ c_3 KL, in place of the one in r_t]       kl_loss_coef: k2
    line 11      clip each model's gradient, step both          run.optimizer_step
    line 12      stop the epochs once KL(old || new) is large   target_kl
    line 13    adapt beta to the KL per response                kl_target (arXiv:1909.08593)

What is new next to GRPO: a critic predicts what a state is worth, so one response per prompt is
enough and every token has an advantage of its own; the KL penalty is part of the reward. The
critic shares no weight with the policy, and each is clipped by its own gradient norm.

    python -m rl.ppo_engine                       reviews, the learned reward model
    python -m rl.ppo_engine --data sums           arithmetic, checked by a rule
    python -m rl.ppo_engine --data pairs.json --preset small
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gpt.corpus import Corpus
from gpt.lora import critic_trunk
from harness.errors import UserError
from harness.flags import AboveZero, AtLeastOne, NotNegative
from rl.actor_critic import (
    ActorCriticConfig,
    ValueModel,
    batch_values,
    gae_update,
    ppo_loss,
    rollout_values,
    train_critic,
)
from rl.equations.advantages import whiten
from rl.equations.token_rewards import token_level_rewards
from rl.loop import Run
from rl.rewards.reward import components
from rl.run.engine import Engine
from rl.run.metrics import clip_mask, explained_variance
from rl.run.pretraining_loss import open_text, text_gradient, text_of
from rl.run.task import Task


@dataclass(frozen=True)
class PPOConfig(ActorCriticConfig):
    """Improve a policy with PPO."""

    steps: AtLeastOne = 50
    """Rollout batches."""
    kl_coef: float = 0.05
    """beta, the weight of the KL penalty in the reward; with 0, no kl_loss_coef and no stop_kl no
    reference is asked."""
    critic: Literal["auto", "reward_model", "policy"] = "auto"
    """Start of the critic: the reward model (auto, where there is one; of several the first) or the
    policy with a zero head."""
    whiten_rewards: bool = False
    """Scale the token rewards r of a batch to (r - mean) / std + mean: spread 1, the mean as it was."""
    target_kl: AboveZero | None = None
    """Leave the epochs once KL(old || new) per token of a minibatch exceeds 1.5 times this."""
    pretraining_coef: NotNegative = 0.0
    """gamma of PPO-ptx: the weight of the language model's loss on pre-training text."""


def train(
    run: Run, *, value_model: ValueModel | None = None, corpus: Corpus | None = None
) -> list[dict[str, Any]]:
    """Run PPO, update `run.policy` (and `value_model`) in place and return one metrics row a step.

    Without a value model the critic is a copy of the policy with a head of zeros. `corpus` is the
    text of PPO-ptx.
    """
    config: PPOConfig = run.config
    text = text_of(config, corpus)
    policy, reference = run.policy, run.freeze_reference()  # line 1
    start = value_model or ValueModel.from_policy(policy)
    critic = train_critic(run, start, config.critic_lr)  # line 2
    run.clip_mask = clip_mask(config.clip_range)  # for the log
    for step in run.steps():  # line 3
        rollout = run.sample(run.prompts(step))  # lines 3-4
        rewards = run.rewards(rollout)  # (N,)  line 4: R
        old = run.old_log_probs(rollout, groups=False)  # (N, T)  line 5
        ref = run.ref_log_probs(reference, rollout, needed=config.kl_loss_coef > 0)  # line 5
        old_values = rollout_values(run, critic, rollout)  # (N, T)  line 5
        mask = rollout.response_mask
        token_rewards = token_level_rewards(  # line 6: r_t, (N, T)
            rewards, old, ref, mask, run.kl.coef
        )  # fmt: skip
        if config.whiten_rewards:
            token_rewards = whiten(token_rewards, mask, shift_mean=False)
        update = gae_update(config, token_rewards, old, ref, old_values, mask)  # line 7

        for number, rows in enumerate(run.minibatches(rollout, groups=False)):  # line 8
            for part, batch in run.micro_batches(rollout, rows):
                scores = run.scores(policy, batch, entropy_gradient=config.entropy_coef > 0)
                values = batch_values(run, critic, batch)  # (n, T) each, with gradients
                given = update.rows(part)
                losses = ppo_loss(config, scores, values, given, rollout.tokens_of(rows))
                losses.total.backward()  # lines 9-10: L of ppo_loss
                run.record(losses.total, scores, given, batch, **losses.per_token())
            if config.target_kl is not None and run.meter.moved_beyond(1.5 * config.target_kl):
                break  # without the step: far enough from the old policy. line 12
            of_text = text_gradient(config, policy, text, step, number)  # line 9
            run.loss += config.pretraining_coef * of_text.get("pretraining_loss", 0.0)
            run.optimizer_step(**of_text)  # line 11
        explained = explained_variance(old_values, update.returns, mask)
        run.finish_step(step, rollout, rewards, update, measured=explained)  # line 13: beta
    return run.log.rows


def open_critic_and_text(config: PPOConfig, task: Task) -> dict[str, Any]:
    """The critic's start and, for PPO-ptx, the text, as `train` wants them."""
    learned = next(iter(components(task.reward_fn).reward_models), None)
    if config.critic == "reward_model" and learned is None:
        raise UserError(
            f"--critic reward_model: the reward is {task.reward_name}, none that "
            "scores the policy's own tokens: use --critic policy"
        )
    extra: dict[str, Any] = {}
    if learned is not None and config.critic != "policy":
        extra["value_model"] = ValueModel.from_reward_model(
            learned, critic_trunk(config, learned.gpt)
        )
    else:
        extra["value_model"] = ValueModel.from_policy(task.policy)
    return extra | open_text(config, task)


ENGINE = Engine(
    name="ppo",
    box="PPO",
    config=PPOConfig,
    train=train,
    groups=False,
    prepare=open_critic_and_text,
)

main = ENGINE.run  # config -> run folder

if __name__ == "__main__":
    ENGINE.run_as_command()
