"""PPO with a teacher's log-likelihood as the reward: distillation with a critic.

Two boxes in one, the second being the first with the lines marked (2). Their nearest relative in
print is MiniLLM (Gu et al. 2024, arXiv:2306.08543); the rest is PPO (arXiv:1707.06347).

    student <- start; teacher frozen                   policy; TeacherReward
    reference <- student; critic                       reference; value_model, a head of zeros
    for each batch of prompts                          prompt_batch
      o ~ student; l_old; v = V(state)                 sample_rollout, old_policy_log_probs, gae_targets
      r = log p_teacher(o | q) [- beta KL]             TeacherReward, kd_token_rewards, placement
      r = r - lambda L_PT, for all outputs         (2) pt_mode="reward_bonus": it does nothing
      A, returns = GAE(r, V)                           gae, whiten (arXiv:1506.02438, Eq. 16)
      for K epochs, shuffled minibatches               updates_per_batch, minibatches
        L = L_policy + c_v L_value - c_H entropy       ppo_loss: clipped_surrogate, value_loss
        ... + lambda L_PT                          (2) pt_mode="loss": add_text_gradient

Where it differs from the boxes, and why. The teacher judges every token, so every token gets its
own reward (`--placement terminal` is the box: their sum at the last one; with gamma = 1 the returns
of a whole response are equal, the credit is not). By default the student's log-probability is
subtracted: log p alone is largest for the one likeliest output. There is a value for every state,
not one per prompt, or GAE has no temporal difference; the ratio is a token's, not the product over
the output. And L_PT: as a bonus it is one number for the whole batch, computed without a gradient,
which every baseline takes away again. Only as a loss does it hold on to anything.
What is new next to PPO: the reward is a model's log-probability, token by token.

    python -m rl.kd_ppo_engine                        reviews, the teacher of scripts/make_teacher.py
    python -m rl.kd_ppo_engine --placement terminal --teacher-reward sum
    python -m rl.kd_ppo_engine --pt-mode reward_bonus     warns, and shows what it says
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from data.records import PromptRecord
from gpt.common import (
    MetricLog,
    TrainingState,
    make_generator,
    precision,
    preset_defaults,
    run_script,
)
from gpt.corpus import Corpus
from gpt.generate import SamplingParams
from gpt.log_probs import token_scores
from gpt.model import GPT
from gpt.optimizer import adamw, clip_and_step, set_learning_rate
from gpt.pretraining import add_text_gradient, held_out_loss
from gpt.tokenizer import Tokenizer
from rl.batches.rollout import (
    Rollout,
    epoch_minibatches,
    micro_batches,
    old_policy_log_probs,
    prompt_batch,
    rollout_log_probs,
    sample_rollout,
)
from rl.equations.token_rewards import at_last_token, token_level_rewards
from rl.rewards.sources import RewardFn, checked_rewards
from rl.rewards.teacher import TeacherReward, open_teacher, refuse_other_rewards
from rl.training.actor_critic import gae_targets, ppo_loss
from rl.training.config import EngineConfig, kl_controller, size_presets, warmed_up
from rl.training.evaluation import Validation
from rl.training.metrics import Stopwatch, UpdateMeter, explained_variance, rollout_metrics
from rl.training.run import finish_step, run_training
from rl.training.setup import open_text
from rl.training.value_model import ValueModel

PRESETS = size_presets(
    dict(
        group_size=1, prompts_per_step=32, critic_lr=1e-5, updates_per_batch=1, pretraining_coef=1.0
    )
)


@dataclass(frozen=True)
class KDPPOConfig(EngineConfig):
    """Distil a teacher into a policy with PPO."""

    teacher: Path | None = None
    """Run folder of the teacher; default: the one of this data."""
    teacher_reward: Literal["reverse_kl", "sum"] = "reverse_kl"
    """reverse_kl: log p_teacher - log p_student, summed over a response. sum: log p_teacher alone."""
    placement: Literal["dense", "terminal"] = "dense"
    """dense: every token gets its own part of the reward. terminal: the last token gets the sum."""
    prompts_per_step: int = 128
    """Prompts per rollout batch."""
    group_size: int = 1
    """Responses per prompt; the critic is the baseline, so one is enough."""
    updates_per_batch: int = 2
    """K: epochs of shuffled minibatches over each rollout batch."""
    kl_coef: float = 0.02
    """beta, the weight of the KL to the reference, in every token's reward."""
    gamma: float = 1.0
    """Discount per token."""
    gae_lambda: float = 0.95
    """lambda of GAE; 1 is the whole return minus the value."""
    clip_low: float = 0.2
    """epsilon below 1."""
    clip_high: float = 0.2
    """epsilon above 1."""
    value_coef: float = 0.1
    """c_v, the weight of the value loss."""
    value_clip: float | None = None
    """Clip the new value to the rollout's by this much in the value loss; rewards are in nats here, and
    PPO's usual 0.2 would keep the critic from following them."""
    entropy_coef: float = 0.0
    """c_H, the weight of the entropy bonus."""
    critic_lr: float = 1e-3
    """Peak learning rate of the critic, a copy of the policy with a head of zeros."""
    pt_mode: Literal["loss", "reward_bonus"] = "loss"
    """loss: pretraining_coef * L_PT is part of the loss. reward_bonus: minus that number is added to
    every response's reward, which does nothing; it is there to show that."""
    pretraining_coef: float = 0.1
    """lambda, the weight of the language model's loss on pre-training text; 0 needs no text. MiniLLM
    and the larger presets have 1; a world's text is worse than what its teacher writes, and 1 holds
    back."""
    pretraining_batch_size: int = 32
    """Rows of pre-training text per optimizer step."""
    stop_kl: float | None = None
    """Stop early once the KL to the reference, averaged over 5 steps, exceeds this many nats."""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_other_rewards(self)
        if not (0 <= self.gamma <= 1 and 0 <= self.gae_lambda <= 1):
            raise ValueError(
                f"gamma and gae_lambda must be in 0..1: got {self.gamma} and {self.gae_lambda}"
            )
        if self.value_clip is not None and not self.value_clip > 0:
            raise ValueError(
                f"value_clip must be positive, or None to go without it: got {self.value_clip}"
            )
        if self.pretraining_coef < 0 or self.pretraining_batch_size < 1:
            raise ValueError(
                "pretraining_coef must not be negative and pretraining_batch_size at least 1: got "
                f"{self.pretraining_coef} and {self.pretraining_batch_size}"
            )

    @property
    def updates(self) -> int:
        """The optimizer steps of a batch; with fewer rows than minibatches there are fewer."""
        return self.updates_per_batch * self.minibatches


def rewards_of_tokens(
    config: KDPPOConfig, reward_fn: RewardFn, rollout: Rollout
) -> Tensor | None:  # (N, T)
    """What the teacher gives to each token, where the placement asks for that."""
    if config.placement == "terminal":
        return None
    if not isinstance(reward_fn, TeacherReward) or reward_fn.aggregate != "sum":
        raise ValueError(
            f"placement dense takes a teacher's reward apart that is a sum over tokens; the reward "
            f"{reward_fn.name!r} is none: use placement terminal, or teacher_reward(config, teacher)"
        )
    return reward_fn.token_rewards(rollout)


def kd_token_rewards(
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
    case the `bonus`, one number for all responses. A response whose reward was replaced (it was not
    finite) has that number at its last token.
    """
    if teacher_rewards is None:
        scores = rewards + bonus
        return token_level_rewards(scores, old_log_probs, ref_log_probs, response_mask, kl_coef)
    scores = torch.full_like(rewards, bonus)
    others = token_level_rewards(scores, old_log_probs, ref_log_probs, response_mask, kl_coef)
    usable = teacher_rewards.isfinite().all(1, keepdim=True)  # (N, 1)
    return others + torch.where(usable, teacher_rewards, at_last_token(rewards, response_mask))


def train(
    config: KDPPOConfig,
    policy: GPT,
    tokenizer: Tokenizer,
    reward_fn: RewardFn,
    prompts: Sequence[PromptRecord],
    log: MetricLog,
    *,
    corpus: Corpus | None = None,
    validate: Validation | None = None,
    folder: Path | None = None,
) -> list[dict[str, Any]]:
    """Run KD-PPO, update `policy` in place and return one metrics row a step.

    `reward_fn` is the teacher's (`teacher_reward(config, teacher)`), `corpus` the text of L_PT. With
    `validate` its numbers are added every `eval_every` steps; with a folder a resumable state is
    kept there.
    """
    if config.pretraining_coef and corpus is None:
        raise ValueError("pretraining_coef needs a corpus: pass one, or set it to 0")
    if config.pretraining_coef and config.pt_mode == "reward_bonus":
        warnings.warn(
            "pt_mode reward_bonus adds the same number to the reward of every response: whitened "
            "advantages do not contain it and L_PT has no gradient, so nothing is protected. Use "
            "pt_mode loss",
            stacklevel=2,
        )
    text = corpus if config.pretraining_coef else None
    params = SamplingParams(config.temperature, max_new_tokens=config.max_new_tokens)
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    policy.eval()  # dropout stays off: old and new log-probs must describe the same function
    value_model = ValueModel.from_policy(policy)
    optimizer = adamw(policy, config.lr, weight_decay=0.0)
    critic_optimizer = adamw(value_model, config.critic_lr, weight_decay=0.0)
    kl = kl_controller(config)
    generators = {name: make_generator(config.seed, name) for name in ("sampling", "minibatches")}
    state = TrainingState(
        {
            "policy": policy,
            "reference": reference,
            "optimizer": optimizer,
            "value_model": value_model,
            "critic_optimizer": critic_optimizer,
            "kl": kl,
        },
        generators,
    )
    if config.resume and folder is not None:
        state.load(folder)

    for step in range(state.step, config.steps):
        lr = config.lr * warmed_up(config, step)
        set_learning_rate(optimizer, lr)
        set_learning_rate(critic_optimizer, config.critic_lr * warmed_up(config, step))
        clock, meter = Stopwatch(), UpdateMeter(clip=(config.clip_low, config.clip_high))
        text_losses: list[float] = []
        records = prompt_batch(prompts, step, config.prompts_per_step, config.seed)
        with clock.phase("rollout"):  # o ~ student
            rollout = sample_rollout(
                policy, tokenizer, records, params, config.group_size, generators["sampling"]
            )
        with clock.phase("reward"):  # r = log p_teacher(o | q)
            rewards, non_finite = checked_rewards(reward_fn, rollout, config.non_finite_reward)
            bonus = 0.0
            if text is not None and config.pt_mode == "reward_bonus":  # - lambda L_PT
                text_losses = [held_out_loss(policy, [text.batch(step * config.updates)])]
                bonus = -config.pretraining_coef * text_losses[0]  # one number, no gradient
        with clock.phase("score"):
            old_log_probs = old_policy_log_probs(policy, rollout, config)  # (N, T)
            ref_log_probs = None
            if kl.coef or config.stop_kl is not None:  # for the penalty, or to know when to stop
                ref_log_probs = rollout_log_probs(reference, rollout, config)  # (N, T)
            token_rewards = kd_token_rewards(  # (N, T)
                rewards,
                rewards_of_tokens(config, reward_fn, rollout),
                old_log_probs,
                ref_log_probs,
                rollout.response_mask,
                kl_coef=kl.coef,
                bonus=bonus,
            )
            targets = gae_targets(config, rollout, token_rewards, old_log_probs, value_model)

        with clock.phase("update"):
            updates = epoch_minibatches(config, len(rollout), generators["minibatches"])
            for update, rows in enumerate(updates):
                optimizer.zero_grad(set_to_none=True)
                critic_optimizer.zero_grad(set_to_none=True)
                loss = torch.zeros((), device=policy.device)
                for part, batch in micro_batches(rollout.sequences, rows, config.micro_batch_size):
                    with precision(policy.device, config.precision):
                        scores = token_scores(
                            policy,
                            batch,
                            config.temperature,
                            entropy_gradient=config.entropy_coef != 0,
                        )
                        values = value_model(batch)
                    part_loss = ppo_loss(
                        config,
                        scores,
                        values,
                        targets.rows(part),
                        batch.response_mask,
                        tokens=int(rollout.lengths[rows].sum()),
                    )
                    part_loss.total.backward()
                    loss += part_loss.total.detach()
                    meter.add_tokens(
                        scores,
                        old_log_probs[part],
                        targets.advantages[part],
                        batch,
                        value_loss=part_loss.value,
                        value_clip_fraction=part_loss.value_clipped,
                    )
                if text is not None and config.pt_mode == "loss":  # L_PT: fresh text each time
                    text_losses.append(
                        add_text_gradient(
                            policy,
                            text,
                            step * config.updates + update,
                            config.pretraining_coef,
                            micro_batch_size=config.micro_batch_size,
                            dtype=config.precision,
                        )
                    )
                    loss += config.pretraining_coef * text_losses[-1]
                norm = clip_and_step(optimizer, policy.parameters(), config.max_norm)
                clip_and_step(critic_optimizer, value_model.parameters(), config.max_norm)
                meter.add_update(loss, norm)

        row = rollout_metrics(rollout, rewards, old_log_probs, ref_log_probs)
        row |= meter.metrics() | {"non_finite_rewards": non_finite, "kl_coef": kl.coef, "lr": lr}
        row |= explained_variance(targets.old_values, targets.returns, rollout.response_mask)
        if text_losses:
            row["pretraining_loss"] = sum(text_losses) / len(text_losses)
        row |= clock.metrics(tokens=int(rollout.lengths.sum()))
        if "kl" in row:
            kl.update(row["kl"], len(rollout))
        state.step = step + 1
        if finish_step(config, state, row, log, policy, reference, validate, folder):
            break
    return log.rows


def teacher_reward(config: KDPPOConfig, teacher: GPT) -> TeacherReward:
    """The teacher's reward of a response, summed over its tokens, in the form the flags ask for."""
    reverse_kl = config.teacher_reward == "reverse_kl"
    return TeacherReward(teacher, config, aggregate="sum", reverse_kl=reverse_kl)


def open_teacher_reward(
    config: KDPPOConfig, tokenizer: Tokenizer, device: torch.device
) -> TeacherReward:
    """The teacher of the run folder that the flags name, as a reward."""
    teacher = open_teacher(
        config.teacher, tokenizer, device, data=config.data, preset=config.preset
    )
    return teacher_reward(config, teacher)


def main(config: KDPPOConfig) -> Path:
    """Run KD-PPO with all I/O and return the run folder."""
    return run_training("kd_ppo", config, train, open_text, own_reward=open_teacher_reward)


if __name__ == "__main__":
    import tyro

    run_script(main, tyro.cli(KDPPOConfig, default=preset_defaults(KDPPOConfig, PRESETS)))
