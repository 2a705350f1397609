"""What PPO's engines share: two models in training, the targets of a rollout, the clipped loss.

(Schulman et al. 2017, arXiv:1707.06347; GAE: arXiv:1506.02438.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from data.collate import ResponseBatch
from gpt.log_probs import TokenScores, response_hidden, scatter_responses
from gpt.lora import copy_to_train
from gpt.model import GPT, head_product
from gpt.ranks import score_in_micro_batches
from harness.flags import AboveZero, AtLeastOne, NotNegative, ZeroToOne
from harness.optimizer import adamw
from reward_model.scalar_head import RewardModel
from rl.batches.rollout import CriticUpdate, Rollout
from rl.equations.advantages import gae, whiten
from rl.equations.kl import k2
from rl.equations.losses import clipped_surrogate, token_mean, value_loss
from rl.loop import Run
from rl.run.pretraining_loss import TextConfig


@dataclass(frozen=True)
class ActorCriticConfig(TextConfig):
    """What an engine with a critic can be told, beside what every engine can."""

    prompts_per_step: AtLeastOne = 128
    """Prompts per rollout batch."""
    group_size: AtLeastOne = 1
    """Responses per prompt; the critic is the baseline, so one is enough."""
    updates_per_batch: AtLeastOne = 2
    """K: epochs of shuffled minibatches over each rollout batch."""
    kl_loss_coef: NotNegative = 0.0
    """c_3, the weight of k2 in the loss instead, whose gradient is that of KL(policy || reference); not
    with a kl_coef, or the KL counts twice."""
    gamma: ZeroToOne = 1.0
    """Discount per token."""
    gae_lambda: ZeroToOne = 0.95
    """lambda of GAE; 1 is the whole return minus the value."""
    clip_range: NotNegative = 0.2
    """epsilon: the clip of the ratio to 1 - epsilon ... 1 + epsilon."""
    value_clip: AboveZero | None = 0.2
    """Clip the new value to the rollout's by this much in the value loss."""
    entropy_coef: NotNegative = 0.0
    """c_H, the weight of the entropy bonus."""
    critic_lr: NotNegative = 1e-3
    """Peak learning rate of the critic."""

    rates = ("lr", "critic_lr")
    # c_v. The critic's weights and Adam are its own, and Adam ignores a constant factor: the weight of
    # the value loss acts through max_grad_norm alone.
    value_coef = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kl_loss_coef and self.kl_coef:
            raise ValueError(
                f"kl_loss_coef {self.kl_loss_coef} and kl_coef {self.kl_coef} would count the same "
                "KL twice, in the loss and in the reward: set one of them to 0"
            )


# --- the critic beside the policy ---------------------------------------------------------------


class ValueModel(nn.Module):
    """The critic: `gpt` reads the row, `head` turns each hidden state into the value of that state.

    V_t is the value of the state (x, y_<t), *before* token t: it is read at the column that predicts
    token t. One value per prompt would leave GAE without temporal differences.
    """

    def __init__(self, gpt: GPT) -> None:
        super().__init__()
        self.gpt = gpt
        self.head = nn.Linear(gpt.config.n_embd, 1)

    @classmethod
    def from_policy(cls, policy: GPT) -> ValueModel:
        """A copy of the policy's trunk, or of its adapters, under a head of zeros: values start at 0.

        Where there is a reward model, from which Huang et al. 2024, arXiv:2403.17031, start theirs, take
        `from_reward_model`.
        """
        model = cls(copy_to_train(policy))
        with torch.no_grad():
            model.head.weight.zero_()
            model.head.bias.zero_()
        return model.to(policy.wte.weight).eval()  # its device and dtype

    @classmethod
    def from_reward_model(cls, reward_model: RewardModel, gpt: GPT | None = None) -> ValueModel:
        """A copy of the reward model, head included (InstructGPT, arXiv:2203.02155, section 3.5).

        The normalisation of its scores is folded into the head, so that a state's first value is
        the score of the last token so far, on the scale of the rewards. `gpt` is the trunk to train,
        if it is not to be a whole copy.
        """
        model = cls(gpt or copy_to_train(reward_model.gpt))
        with torch.no_grad():
            model.head.weight.copy_(reward_model.head.weight / reward_model.std)
            model.head.bias.copy_((reward_model.head.bias - reward_model.mean) / reward_model.std)
        return model.to(reward_model.head.weight).eval()

    def forward(self, batch: ResponseBatch) -> Tensor:
        """V_t of the state before each response token, (N, T), float32 at least, 0 at padding."""
        hidden = response_hidden(self.gpt, batch, batch.predicting_columns)  # (M, D)
        values = head_product(hidden, self.head.weight, self.head.bias)[:, 0]  # (M,)
        return scatter_responses(values, batch)

    def rollout_values(self, batch: ResponseBatch, micro_batch_size: int) -> Tensor:
        """`forward` in micro-batches and without a gradient, (N, T)."""
        return score_in_micro_batches(self, batch, micro_batch_size)


def train_critic(run: Run, critic: ValueModel, lr: float) -> ValueModel:
    """Before the first step: let each train the critic too, by an AdamW with this peak rate."""
    critic.eval().gpt.gradient_checkpointing = run.policy.gradient_checkpointing
    optimizer = adamw(critic, lr, weight_decay=0.0)
    run.trained.append((critic, optimizer, lr))
    run.parts |= {"value_model": critic, "critic_optimizer": optimizer}
    return critic


def rollout_values(run: Run, critic: ValueModel, rollout: Rollout) -> Tensor:
    """What the critic says before each token, (N, T), a constant."""
    with run.clock.phase("score"), run.precise():
        return critic.rollout_values(rollout.sequences, run.config.micro_batch_size)


def batch_values(run: Run, critic: ValueModel, batch: ResponseBatch) -> Tensor:
    """What the critic says before each token, (n, T), with a gradient."""
    with run.precise():
        return critic(batch)


# --- what they learn from -----------------------------------------------------------------------


def gae_update(
    config: ActorCriticConfig,
    token_rewards: Tensor,  # (N, T)
    old_log_probs: Tensor,  # (N, T)
    ref_log_probs: Tensor | None,  # (N, T)
    old_values: Tensor,  # (N, T)
    mask: Tensor,  # (N, T)
) -> CriticUpdate:
    """GAE advantages, whitened over the whole batch, and returns, which are V_old + GAE."""
    advantages, returns = gae(token_rewards, old_values, mask, config.gamma, config.gae_lambda)
    td_errors, _ = gae(
        token_rewards, old_values, mask, config.gamma, 0.0
    )  # lambda 0: delta_t alone
    return CriticUpdate(
        old_log_probs, ref_log_probs, whiten(advantages, mask), mask, old_values, returns, td_errors
    )


# --- the loss -----------------------------------------------------------------------------------


class Losses(NamedTuple):
    """Of some rows of a minibatch."""

    total: Tensor  # scalar
    policy: Tensor  # (n, T), the clipped surrogate alone
    value: Tensor  # (n, T)
    value_clipped: Tensor  # (n, T) bool, where the value's clip acted

    def per_token(self) -> dict[str, Tensor]:
        """What is logged of every token, by the name that it is logged under."""
        return {
            "policy_loss": self.policy,
            "value_loss": self.value,
            "value_clip_fraction": self.value_clipped,
        }


def ppo_loss(
    config: ActorCriticConfig,
    scores: TokenScores,  # (n, T) each, of the policy in training
    values: Tensor,  # (n, T), of the critic in training
    given: CriticUpdate,  # (n, T) each
    tokens: int,
) -> Losses:
    """L_CLIP + c_v L_VF - c_H H + c_3 KL as means over the `tokens` tokens of the whole minibatch.

    (arXiv:1707.06347, Eq. 9, as a loss and with the customary half in L_VF.) The KL is that to the
    reference. A loss on other text is no mean over these tokens; the engine's loop adds it.
    """
    low = high = config.clip_range
    policy_loss = clipped_surrogate(scores.log_probs, given.old, given.advantages, low, high)
    squared = value_loss(values, given.old_values, given.returns, config.value_clip)
    unclipped = value_loss(values, given.old_values, given.returns)
    token_loss = policy_loss + config.value_coef * squared
    if config.entropy_coef:
        token_loss = token_loss - config.entropy_coef * scores.entropy
    if config.kl_loss_coef:
        if given.ref is None:
            raise ValueError(
                f"kl_loss_coef {config.kl_loss_coef} needs the reference's log-probs: got None"
            )
        kl = k2(scores.log_probs, given.ref)
        token_loss = token_loss + config.kl_loss_coef * kl
    total = token_mean(token_loss, given.mask, denominator=tokens)
    return Losses(total, policy_loss, squared, squared > unclipped)
