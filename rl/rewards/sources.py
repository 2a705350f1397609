"""Where rewards come from: reward models, rules, and the check that they are numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from data.collate import ResponseBatch
from data.records import PromptRecord
from gpt.log_probs import score_in_micro_batches
from gpt.model import GPT
from harness.device import on_device, precision
from harness.ranks.collectives import all_gather_list, shard_block
from rl.batches.rollout import Rollout
from rl.equations.ensembles import ensemble_mean, worst_case

if TYPE_CHECKING:
    from reward_model.scalar_head import RewardModel

NAMED = ("auto", "model", "gold", "rule")  # what --reward takes beside WHERE:FUNCTION

# --- what --reward may say -----------------------------------------------------------------------


def is_function(reward: str) -> bool:
    """Whether a --reward names the user's function."""
    return ":" in reward


def check_reward(reward: str) -> None:
    """ValueError for a --reward that is neither one of the names nor WHERE:FUNCTION."""
    if reward in NAMED:
        return
    where, colon, function = reward.rpartition(":")
    if not colon:
        raise ValueError(
            f"reward {reward!r} is none of {', '.join(NAMED)}, and a function of your own needs a "
            "colon, as in my_rewards:brief or my_rewards.py:brief"
        )
    if not where or not function.isidentifier():
        raise ValueError(
            f"reward {reward!r} must be MODULE:FUNCTION or FILE.py:FUNCTION, as in my_rewards:brief"
        )


# --- where rewards come from --------------------------------------------------------------------

# (record, response text, ended with EOS) -> value
Rule = Callable[[PromptRecord, str, bool], float]


class RewardFn(Protocol):
    """Scores a rollout: (N,) float, one number per response, higher is better."""

    name: str

    def __call__(self, rollout: Rollout) -> Tensor: ...


@runtime_checkable
class MeasuringReward(RewardFn, Protocol):
    """A reward that also says what to log of the responses, such as the parts it is made of."""

    def with_metrics(self, rollout: Rollout) -> tuple[Tensor, dict[str, float]]: ...


class Check(RewardFn, Protocol):
    """A rule that says right or wrong (rl/rewards/verifiable.py)."""

    def correct(self, rollout: Rollout) -> Tensor:
        """(N,) bool: which responses are right."""


@dataclass(frozen=True)
class MadeOf:
    """What a reward is made of, which each class of rewards says by its `made_of`."""

    reward_models: tuple[RewardModel, ...] = ()
    teacher: GPT | None = None
    check: Check | None = None  # the reward itself, if it says right or wrong
    reads_records: bool = False  # a rule, which needs more of a prompt than its text
    # (N, T) that add up to the reward, 0 at padding, where it is a sum over tokens
    token_rewards: Callable[[Rollout], Tensor] | None = None
    # what it says of each token, (N, T) by the name that the token log has for it
    token_columns: Callable[[Rollout], dict[str, Tensor]] | None = None


def made_of(reward_fn: RewardFn | None) -> MadeOf:
    """What a reward says it is made of; nothing for none, and for a function that says nothing."""
    return getattr(reward_fn, "made_of", MadeOf())


def prefix_scores(model: RewardModel, rollout: Rollout) -> dict[str, Tensor]:
    """What a reward model says of each token: the reward if the response ended there, (N, T)."""
    score = model.prefix_scores
    return {"prefix_score": score_in_micro_batches(score, rollout.sequences, len(rollout))}


@dataclass(eq=False)
class RewardModelReward:
    """The score of a trained reward model, in `dtype`; it must share the policy's tokenizer."""

    model: RewardModel
    micro_batch_size: int = 64
    dtype: str = "float32"
    name = "reward model"

    @property
    def made_of(self) -> MadeOf:
        return MadeOf(reward_models=(self.model,), token_columns=partial(prefix_scores, self.model))

    def __call__(self, rollout: Rollout) -> Tensor:
        with precision(self.model.device, self.dtype):
            return score_in_micro_batches(self.model, rollout.sequences, self.micro_batch_size)


Combine = Literal["mean", "min"]


class EnsembleReward:
    """Several reward models' scores of a rollout, combined into one reward per response, (N,).

    mean: their mean. min: the lowest (WCO; Coste et al. 2024, arXiv:2310.02743). All members must share
    the policy's tokenizer.

    With `reference` each member is standardised on those responses, so that what is left between them
    is disagreement. They are fixed, and not the rollout: a reward that is centred on every batch could
    not rise.
    """

    def __init__(
        self,
        models: Sequence[RewardModel],
        *,
        combine: Combine = "mean",
        reference: ResponseBatch | None = None,
        micro_batch_size: int = 64,
        dtype: str = "float32",
    ) -> None:
        self.members = [RewardModelReward(model, micro_batch_size, dtype) for model in models]
        self.combined = {"mean": ensemble_mean, "min": worst_case}[combine]
        self.name = f"{combine} of {len(models)} reward models"
        if reference is not None:
            for model in models:
                with precision(model.device, dtype):
                    model.normalize_on(reference.to(model.device), micro_batch_size)

    @property
    def made_of(self) -> MadeOf:
        """Its members; of each token the first one says what it thinks."""
        models = tuple(member.model for member in self.members)
        return MadeOf(reward_models=models, token_columns=self.members[0].made_of.token_columns)

    def __call__(self, rollout: Rollout) -> Tensor:
        return self.with_metrics(rollout)[0]

    @torch.no_grad()
    def with_metrics(self, rollout: Rollout) -> tuple[Tensor, dict[str, float]]:
        """Rewards (N,), and how far the members are apart (docs/metrics.md, "Ensembles")."""
        scores = torch.stack([member(rollout) for member in self.members])  # (K, N)
        return self.combined(scores), {
            "ensemble_mean": float(scores.mean()),
            "ensemble_spread": float(scores.std(0).mean()),
        }


@dataclass(eq=False)
class RuleReward:
    """A function of (record, response text, ended with EOS): a world's gold reward or a checkable rule."""

    rule: Rule
    name: str

    @property
    def made_of(self) -> MadeOf:
        return MadeOf(reads_records=True)

    def __call__(self, rollout: Rollout) -> Tensor:
        rows = zip(rollout.records, rollout.responses, rollout.has_eos.tolist(), strict=True)
        values = all_gather_list([self.rule(*row) for row in list(rows)[shard_block(len(rollout))]])
        return torch.tensor(values, dtype=torch.float32)  # `finite_rewards` moves it


@torch.no_grad()
def checked_rewards(reward_fn: RewardFn, rollout: Rollout) -> Tensor:
    """Rewards (N,), all finite. What the reward measures goes to the rollout."""
    if isinstance(reward_fn, MeasuringReward):
        rewards, metrics = reward_fn.with_metrics(rollout)
        rollout.reward_metrics.update(metrics)
    else:
        rewards = reward_fn(rollout)
    return finite_rewards(rewards, reward_fn.name, rollout)


def finite_rewards(rewards: Tensor, name: str, rollout: Rollout) -> Tensor:
    """Rewards (N,) on the rollout's device. ValueError for another shape, NaN and infinity."""
    rewards = rewards.float()
    if rewards.shape != (len(rollout),):
        raise ValueError(
            f"the reward {name!r} must give one number per response, (N,) = "
            f"({len(rollout)},): got {tuple(rewards.shape)}"
        )
    broken = ~rewards.isfinite()
    if broken.any():
        row = int(broken.nonzero()[0])
        raise ValueError(
            f"{int(broken.sum())} of {len(rollout)} rewards are not finite (row {row}: "
            f"{rollout.responses[row][:60]!r}): mend the reward"
        )
    return on_device(rewards, rollout.response_tokens.device)
