"""PPO for RLHF (Schulman et al. 2017, arXiv:1707.06347; Ouyang et al. 2022, arXiv:2203.02155).

    line 1   policy <- start, reference <- frozen copy          policy, reference
    line 2   critic <- reward model                             value_model (a GPT of its own)
    line 3   for each batch of prompts                          prompt_batch
    line 4     y ~ policy; scores R = r_phi(x, y)               sample_rollout, reward_fn, score_missing_eos
    line 5     l_old, l_ref, V_old: constants from here on      old_policy_log_probs, rollout_values
    line 6     r_t = -beta (l_old - l_ref)_t, and R at the end  token_level_rewards (InstructGPT, Eq. 2)
    line 7     A, returns = GAE(r, V_old); A = whiten(A)        gae, whiten (arXiv:1506.02438, Eq. 16)
    line 8     for K epochs, shuffled minibatches               updates_per_batch, minibatches
    line 9       L = L_CLIP + c_v L_VF - c_H H + gamma L_ptx    ppo_loss, text_gradient
    line 10        [+ c_3 KL, in place of the one in r_t]       kl_loss_coef, kl_loss
    line 11      clip each model's gradient, step both          ActorCritic.clip_and_step
    line 12      stop the epochs once KL(old || new) is large   target_kl
    line 13    adapt beta to the KL per response                kl_controller (arXiv:1909.08593)

What is new next to GRPO: a critic predicts what a state is worth, so one response per prompt is
enough and every token has an advantage of its own; the KL penalty is part of the reward. The
critic shares no weight with the policy, and each is clipped by its own gradient norm.

    python -m rl.ppo_engine                       reviews, the learned reward model
    python -m rl.ppo_engine --data sums           arithmetic, checked by a rule
    python -m rl.ppo_engine --data pairs.json --preset small
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from data.records import PromptRecord
from gpt.corpus import Corpus
from gpt.lora import trunk_to_train
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from harness.device import precision
from harness.errors import UserError
from harness.flag_ranges import AboveZero, AtLeastOne
from harness.frozen_copy import frozen_copy
from harness.metric_log import MetricLog
from rl.batches.rollout import (
    epoch_minibatches,
    micro_batches,
    old_policy_log_probs,
    prompt_batch,
    rollout_log_probs,
    sample_rollout,
)
from rl.equations.advantages import whiten
from rl.equations.token_rewards import score_missing_eos, token_level_rewards
from rl.rewards.sources import RewardFn, checked_rewards, made_of
from rl.training.actor_critic import (
    ActorCritic,
    ActorCriticConfig,
    critic_batch,
    gae_targets,
    ppo_loss,
)
from rl.training.config import size_presets, warmed_up
from rl.training.engine import Engine
from rl.training.metrics import Stopwatch, UpdateMeter, explained_variance, rollout_metrics
from rl.training.open_task import Task
from rl.training.run import Validate, finish_step, run_as_command, run_training, set_up
from rl.training.text import open_text, text_gradient, text_of
from rl.training.value_model import ValueModel

PRESETS = size_presets(
    dict(group_size=1, prompts_per_step=32, critic_lr=1e-5, updates_per_batch=1),
    sums=dict(steps=70),
)


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
    missing_eos: Literal["none", "replace", "subtract"] = "none"
    """What a response that was cut off scores: its score, missing_eos_value, or its score less that."""
    missing_eos_value: float = -1.0
    """The score of a response without EOS (replace), or what is taken off it (subtract)."""
    whiten_rewards: bool = False
    """Scale the token rewards r of a batch to (r - mean) / std + mean: spread 1, the mean as it was."""
    target_kl: AboveZero | None = None
    """Leave the epochs once KL(old || new) per token of a minibatch exceeds 1.5 times this."""
    pretraining_coef: float = 0.0
    """gamma of PPO-ptx: the weight of the language model's loss on pre-training text."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.missing_eos == "subtract" and self.missing_eos_value < 0:
            raise ValueError(
                "missing_eos subtract takes missing_eos_value off the score: give a positive number, "
                f"not {self.missing_eos_value}"
            )


def train(
    config: PPOConfig,
    policy: GPT,
    tokenizer: Tokenizer,
    reward_fn: RewardFn,
    prompts: Sequence[PromptRecord],
    log: MetricLog,
    *,
    value_model: ValueModel | None = None,
    corpus: Corpus | None = None,
    reference: GPT | None = None,
    validate: Validate | None = None,
    folder: Path | None = None,
) -> list[dict[str, Any]]:
    """Run PPO, update `policy` (and `value_model`) in place and return one metrics row a step.

    Without a value model the critic is a copy of the policy with a head of zeros. `corpus` is the
    text of PPO-ptx.
    """
    text = text_of(config, corpus)
    reference = reference or frozen_copy(policy)  # line 1
    value_model = value_model or ValueModel.from_policy(policy)  # line 2
    models = ActorCritic(config, policy, value_model)
    params, _, kl, generators, state = set_up(
        config, policy, folder, models.optimizer, **models.parts(), reference=reference
    )

    for step in state.steps_left(config.steps):  # line 3
        lr = models.set_learning_rates(warmed_up(config, step))
        clock, meter = Stopwatch(), UpdateMeter(clip=(config.clip_low, config.clip_high))
        records = prompt_batch(prompts, step, config.prompts_per_step, config.seed)  # line 3
        with clock.phase("rollout"), precision(policy.device, config.precision):  # line 4
            rollout = sample_rollout(
                policy, tokenizer, records, params, config.group_size, generators["sampling"]
            )
        with clock.phase("reward"):  # line 4: R
            rewards = checked_rewards(reward_fn, rollout)
        with clock.phase("score"):
            old_log_probs = old_policy_log_probs(policy, rollout, config)  # line 5
            ref_log_probs = None
            if kl.coef or config.kl_loss_coef or config.stop_kl is not None:
                ref_log_probs = rollout_log_probs(reference, rollout, config)  # (N, T)  line 5
            token_rewards = token_level_rewards(  # line 6: r_t, (N, T)
                score_missing_eos(
                    rewards, rollout.has_eos, config.missing_eos, config.missing_eos_value
                ),
                old_log_probs,
                ref_log_probs,
                rollout.response_mask,
                kl.coef,
            )
            scaled = token_rewards
            if config.whiten_rewards:
                scaled = whiten(token_rewards, rollout.response_mask, shift_mean=False)
            given = (config, rollout, scaled, old_log_probs, value_model)
            targets = gae_targets(*given, ref_log_probs=ref_log_probs)  # lines 5 and 7

        with clock.phase("update"):
            updates = epoch_minibatches(config, len(rollout), generators["minibatches"])  # line 8
            for update, rows in enumerate(updates):  # line 8
                models.zero_grad()
                loss = torch.zeros((), dtype=policy.wte.weight.dtype, device=policy.device)
                tokens = rollout.tokens_of(rows)
                for part, batch in micro_batches(rollout.sequences, rows, config.micro_batch_size):
                    scores, values = models.scores_and_values(batch)
                    goal = targets.rows(part)
                    part_loss = ppo_loss(config, scores, values, goal, batch.response_mask, tokens)
                    part_loss.total.backward()  # lines 9-10: L of ppo_loss
                    loss += part_loss.total.detach()
                    more = part_loss.per_token()
                    meter.add_tokens(scores, goal.old_log_probs, goal.advantages, batch, **more)
                if config.target_kl is not None and meter.moved_beyond(1.5 * config.target_kl):
                    break  # without the step: far enough from the old policy. line 12
                extra = text_gradient(config, policy, text, step, update)  # line 9
                loss += config.pretraining_coef * extra.get("pretraining_loss", 0.0)
                norm, critic_norm = models.clip_and_step()  # line 11
                meter.add_update(loss, norm, critic_grad_norm=critic_norm, **extra)

        step_batch = critic_batch(meter.acted, rollout, rewards, targets, token_rewards)
        row = rollout_metrics(rollout, rewards, old_log_probs, ref_log_probs)
        row |= meter.metrics() | {"kl_coef": kl.coef, "lr": lr}
        row |= explained_variance(targets.old_values, targets.returns, rollout.response_mask)
        row |= clock.metrics(tokens=rollout.tokens)
        if "kl" in row:
            kl.update(row["kl"], len(rollout))  # line 13
        state.step = step + 1
        if finish_step(config, state, row, log, (policy, reference), validate, folder, step_batch):
            break
    return log.rows


def open_critic_and_text(config: PPOConfig, task: Task) -> dict[str, Any]:
    """The critic's start and, for PPO-ptx, the text, as `train` wants them."""
    learned = next(iter(made_of(task.reward_fn).reward_models), None)
    if config.critic == "reward_model" and learned is None:
        raise UserError(
            f"--critic reward_model: the reward is {task.reward_name}, there is no reward model "
            "to start from; use --critic policy"
        )
    extra: dict[str, Any] = {}
    if learned is not None and config.critic != "policy":
        extra["value_model"] = ValueModel.from_reward_model(
            learned, trunk_to_train(config, learned.gpt)
        )
    else:
        extra["value_model"] = ValueModel.from_policy(task.policy)
    return extra | open_text(config, task)


ENGINE = Engine(
    name="ppo",
    box="PPO",
    config=PPOConfig,
    train=train,
    presets=PRESETS,
    groups=False,
    prepare=open_critic_and_text,
)

main = partial(run_training, ENGINE)  # config -> run folder

if __name__ == "__main__":
    run_as_command(ENGINE)
