"""What a reward is, which one the flags ask for, and the check that it gives numbers.

A kind of rewards is one file of this folder with `open_kind(config, tokenizer, device)`, and --reward
takes its name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from data.records import PromptRecord
from data.sources import Source, has_annotator
from gpt.folder import hub_repo
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from harness.device import on_device
from harness.errors import UserError
from harness.files import expanded
from harness.ranks.collectives import all_gather_list, shard_block
from rl import rewards
from rl.batches.rollout import Rollout

if TYPE_CHECKING:
    from reward_model.judge import Judge
    from reward_model.scalar_head import RewardModel

LARGEST = 1e15  # a reward in size: sums of squares over a batch stay finite in float32
NAMED = ("auto", "model", "gold", "rule")  # what --reward takes beside WHERE:FUNCTION
OWN = {"reward", "several", "model", "function", "verifiable", "teacher_reward", "step_rewards"}

# --- what a reward is ---------------------------------------------------------------------------

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
    """What a reward is made of, which each class of rewards says by its `components`."""

    reward_models: tuple[RewardModel, ...] = ()  # that score the sampled tokens
    judges: tuple[Judge, ...] = ()  # that read the texts in a form of their own
    teacher: GPT | None = None
    # (policy, rollout, temperature, rows at once) -> two estimates of its KL to the teacher, (N,) nats
    distance: Callable[[GPT, Rollout, float, int], tuple[Tensor, Tensor]] | None = None
    check: Check | None = None  # the reward itself, if it says right or wrong
    reads_records: bool = False  # a rule, which needs more of a prompt than its text
    # (N, T) that add up to the reward, 0 at padding, where it is a sum over tokens
    token_rewards: Callable[[Rollout], Tensor] | None = None
    # what it says of each token, (N, T) by the name that the token log has for it
    token_columns: Callable[[Rollout], dict[str, Tensor]] | None = None


def components(reward_fn: RewardFn | None) -> MadeOf:
    """What a reward says it is made of; nothing for none, and for a function that says nothing."""
    return getattr(reward_fn, "components", MadeOf())


def made_of_all(rewards: Iterable[RewardFn]) -> MadeOf:
    """What several are made of; of each token the first that reads it says what it thinks."""
    made = [components(reward) for reward in rewards]
    return MadeOf(
        reward_models=tuple(model for each in made for model in each.reward_models),
        judges=tuple(judge for each in made for judge in each.judges),
        reads_records=any(each.reads_records for each in made),
        token_columns=next(filter(None, (each.token_columns for each in made)), None),
    )


@dataclass(eq=False)
class RuleReward:
    """A function of (record, response text, ended with EOS): a world's gold reward or a checkable rule."""

    rule: Rule
    name: str

    @property
    def components(self) -> MadeOf:
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
    """Rewards (N,) on the rollout's device. ValueError for another shape, NaN, and beyond LARGEST."""
    rewards = rewards.float()
    if rewards.shape != (len(rollout),):
        raise ValueError(f"reward {name!r} must be ({len(rollout)},): got {tuple(rewards.shape)}")
    broken = ~(rewards.abs() <= LARGEST)
    if broken.any():
        row = int(broken.nonzero()[0])
        raise ValueError(
            f"{int(broken.sum())} of {len(rollout)} rewards are not finite, or beyond {LARGEST:g}: mend "
            f"{name} (it gave {float(rewards[row]):g} to row {row}, {rollout.responses[row][:60]!r})"
        )
    return on_device(rewards, rollout.response_tokens.device)


def row_place(rollout: Rollout, row: int) -> str:
    """Which row, in words."""
    return f"prompt {row + 1} of {len(rollout)}, {rollout.records[row].prompt[:60]!r}"


# --- what --reward may say -----------------------------------------------------------------------


class RewardFlags(Protocol):
    """The flags of an engine that a reward is opened by (rl/run/config.py)."""

    @property
    def reward(self) -> str | tuple[str, ...]: ...

    @property
    def reward_weights(self) -> tuple[float, ...]: ...

    @property
    def reward_model(self) -> tuple[str, ...]: ...

    @property
    def ensemble(self) -> Literal["mean", "min"]: ...

    @property
    def data(self) -> str: ...

    @property
    def preset(self) -> str: ...

    @property
    def model(self) -> str | None: ...

    @property
    def model_name(self) -> str: ...

    @property
    def scored_rows(self) -> int: ...

    @property
    def precision(self) -> str: ...


def rewards_of(reward: str | Sequence[str]) -> tuple[str, ...]:
    """The rewards that --reward names, one or several."""
    return (reward,) if isinstance(reward, str) else tuple(reward)


def is_function(reward: str) -> bool:
    """Whether a --reward names the user's function."""
    return ":" in reward.removeprefix("hf://")


def names_model(reward: str) -> bool:
    """Whether a --reward names a reward model, by its folder or as one of the hub."""
    known = is_function(reward) or reward in (*NAMED, *kinds())
    return not known and (expanded(Path(reward)).is_dir() or hub_repo(reward) is not None)


def kinds() -> set[str]:
    """The files of this folder that open a reward by their name, beside `model`: adding one adds a kind."""
    return {module.name for module in iter_modules(rewards.__path__)} - OWN


def check_reward(reward: str) -> None:
    """ValueError for a --reward that is neither one of the names nor WHERE:FUNCTION."""
    named = (*NAMED, *sorted(kinds()))
    where, _, function = reward.rpartition(":")
    own = (where and function.isidentifier()) or names_model(reward)
    if reward not in named and not own:
        raise ValueError(
            f"reward {reward!r} is none of {', '.join(named)} and no reward model's folder; a function of "
            "your own is named with a colon, as in my_rewards:brief or my_rewards.py:brief"
        )


def open_rule(
    found: Source, data: str, prompts: Mapping[str, Sequence[PromptRecord]], *, needed: bool
) -> RuleReward | None:
    """What is known to be right: a world's own rule, or the check of a file's answers; None: nothing.

    UserError if it is `needed` and an answer of the file is no text, or an empty one.
    """
    if found.gold is not None and found.CHECK is None:
        return RuleReward(found.gold, "gold reward")
    answers = [record.answer for records in prompts.values() for record in records]
    unfit = sum(not isinstance(answer, str) or not answer.strip() for answer in answers)
    own = found.gold is not None
    if not own and (answers.count(None) == len(answers) or (unfit and not needed)):
        return None
    if unfit and not own:
        raise UserError(
            f"{data}: {unfit} of {len(answers)} prompts have no text or number as `answer` for the rule: "
            "give one to every prompt, or --reward FILE.py:FUNCTION"
        )
    from rl.rewards.verifiable import ANSWERS, VerifiableReward  # which imports this file's classes

    return VerifiableReward(found.gold, str(found.CHECK)) if found.gold else ANSWERS


def open_reward(
    config: RewardFlags, tokenizer: Tokenizer, device: torch.device, rule: RuleReward | None
) -> RewardFn:
    """The reward that the flags ask for; `rule` is what `open_rule` has found."""
    names, checked = rewards_of(config.reward), components(rule).check is not None
    opened: list[RewardFn] = []
    unread = not has_annotator(config.data)  # of a world PG-GRPO reads the recorded pairs there
    for name in names:
        if is_function(name):
            from rl.rewards.function import open_function

            opened.append(open_function(name))
        elif name in ("gold", "rule") or (name == "auto" and checked):
            if rule is None:
                raise UserError(f"--reward {name}: {config.data} has no rule; use --reward model")
            opened.append(rule)
        else:  # a file of this folder: it alone is imported
            own, kind = names_model(name), name if name in kinds() else "model"
            open_kind = importlib.import_module(f"rl.rewards.{kind}").open_kind
            opened.append(open_kind(config, tokenizer, device, *[(name,)] * own))
            unread = unread and own
    if unread and config.reward_model:
        folders = " ".join(config.reward_model)
        raise UserError(f"the reward is {' and '.join(names)}: leave --reward-model {folders} out")
    if len(names) == 1 and not config.reward_weights:
        return opened[0]
    from rl.rewards.several import SeveralRewards, labels_of

    return SeveralRewards(dict(zip(labels_of(names), opened, strict=True)), config.reward_weights)
