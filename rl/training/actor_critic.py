"""What PPO's engines share: the targets of a rollout and the clipped loss of actor and critic.

(Schulman et al. 2017, arXiv:1707.06347; GAE: arXiv:1506.02438.)
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from torch import Tensor

from gpt.common import precision
from gpt.log_probs import TokenScores
from rl.batches.rollout import Rollout
from rl.equations.advantages import gae, whiten
from rl.equations.losses import clipped_surrogate, token_mean, value_loss
from rl.training.value_model import ValueModel


class ActorCriticConfig(Protocol):
    """The fields of an engine's config that targets and loss read."""

    @property
    def gamma(self) -> float: ...

    @property
    def gae_lambda(self) -> float: ...

    @property
    def clip_low(self) -> float: ...

    @property
    def clip_high(self) -> float: ...

    @property
    def value_coef(self) -> float: ...

    @property
    def value_clip(self) -> float | None: ...

    @property
    def entropy_coef(self) -> float: ...

    @property
    def micro_batch_size(self) -> int: ...

    @property
    def precision(self) -> Literal["float32", "bfloat16"]: ...


class Targets(NamedTuple):
    """What a minibatch learns from, all (N, T) and constant during the epochs."""

    old_log_probs: Tensor
    old_values: Tensor
    advantages: Tensor
    returns: Tensor

    def rows(self, index: Tensor) -> Targets:
        """The targets of some rows."""
        return Targets(*(tensor[index] for tensor in self))


class Losses(NamedTuple):
    """Of some rows of a minibatch."""

    total: Tensor  # scalar
    value: Tensor  # (n, T)
    value_clipped: Tensor  # (n, T) bool, where the value's clip acted


def gae_targets(
    config: ActorCriticConfig,
    rollout: Rollout,
    token_rewards: Tensor,  # (N, T)
    old_log_probs: Tensor,  # (N, T)
    value_model: ValueModel,
    *,
    values_after: Tensor | None = None,  # (N,)
) -> Targets:
    """Values, GAE advantages (whitened over the whole batch) and returns of a rollout.

    A response ends with value 0, or with `values_after` where it is given.
    """
    mask = rollout.response_mask
    with precision(value_model.gpt.device, config.precision):
        old_values = value_model.rollout_values(rollout.sequences, config.micro_batch_size)
    advantages, returns = gae(
        token_rewards,
        old_values,
        mask,
        config.gamma,
        config.gae_lambda,
        bootstrap_values=values_after,
    )
    return Targets(old_log_probs, old_values, whiten(advantages, mask), returns)


def ppo_loss(
    config: ActorCriticConfig,
    scores: TokenScores,  # (n, T) each, of the policy in training
    values: Tensor,  # (n, T), of the critic in training
    targets: Targets,  # (n, T) each
    response_mask: Tensor,  # (n, T)
    tokens: int,
) -> Losses:
    """L_CLIP + c_v L_VF - c_H H as means over the `tokens` valid tokens of the whole minibatch.

    (arXiv:1707.06347, Eq. 9, as a loss and with the customary half in L_VF.) A loss on other text
    is no mean over these tokens; the engine's loop adds it.
    """
    token_loss = clipped_surrogate(
        scores.log_probs,
        targets.old_log_probs,
        targets.advantages,
        config.clip_low,
        config.clip_high,
    )
    squared = value_loss(values, targets.old_values, targets.returns, config.value_clip)
    unclipped = value_loss(values, targets.old_values, targets.returns)
    token_loss = token_loss + config.value_coef * squared
    if config.entropy_coef:
        token_loss = token_loss - config.entropy_coef * scores.entropy
    total = token_mean(token_loss, response_mask, denominator=tokens)
    return Losses(total, squared, squared > unclipped)
