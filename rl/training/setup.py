"""Opening what an RL run needs, the same way for every engine: policy, prompts and reward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from data import reviews, sums
from data.readers import read_prompts
from data.records import PromptRecord
from gpt.common import MODEL_FILE, UserError, display_path, load_gpt
from gpt.corpus import open_corpus, open_prompts
from gpt.model import GPT
from gpt.pretraining import default_folder, flags_for
from gpt.tokenizer import Tokenizer
from reward_model.model import load_reward_model
from rl.rewards.sources import RewardFn, RewardModelReward, RuleReward
from rl.rewards.verifiable import VerifiableReward, answer_match, read_answer, think_format
from rl.training.config import EngineConfig


@dataclass(frozen=True)
class Task:
    """Everything that is given to an engine before it starts."""

    policy: GPT
    tokenizer: Tokenizer
    prompts: dict[str, list[PromptRecord]]  # train, validation, test
    reward_fn: RewardFn | None  # None where none is needed and none is there
    gold: RuleReward | None  # the true objective where it is known; never seen in training

    @property
    def reward_name(self) -> str:
        """What to call the reward in a message."""
        return "none" if self.reward_fn is None else self.reward_fn.name


def world_rule(data: str) -> RuleReward | None:
    """The exact objective of a generated world; None for files."""
    if data == "reviews":
        return RuleReward(reviews.gold_reward, "gold reward")
    if data == "sums":
        return VerifiableReward(sums.exact_match, "exact match")
    return None


def answer_rule(
    data: str, prompts: Mapping[str, Sequence[PromptRecord]]
) -> VerifiableReward | None:
    """The check of the answers that a file brings with its prompts; None if it brings none."""
    answers = [record.answer for records in prompts.values() for record in records]
    missing = answers.count(None)
    if missing == len(answers):
        return None
    if missing:
        raise UserError(
            f"{data}: {missing} of {len(answers)} prompts have no answer to check: give one to "
            "every prompt, or to none"
        )
    return VerifiableReward(answer_match, "right answer", reads=read_answer)


def brings_answers(data: str) -> bool:
    """Whether the first prompt of a file comes with an answer."""
    path = Path(data)
    return path.is_file() and read_prompts(path, limit=1).records[0].answer is not None


def open_reward(
    kind: str, data: str, preset: str, folder: Path | None, tokenizer: Tokenizer,
    device: torch.device, rule: RuleReward | None = None,
) -> RewardFn:  # fmt: skip
    """The reward function that the flags ask for; `rule` is the one of a file with answers."""
    rule = rule or world_rule(data)
    if kind in ("gold", "rule") or (kind == "auto" and isinstance(rule, VerifiableReward)):
        if rule is None:
            raise UserError(f"--reward {kind}: {data} has no rule to check; use --reward model")
        if folder is not None and isinstance(rule, VerifiableReward):
            raise UserError(
                f"--reward-model {folder} would not be used, the reward is the {rule.name}: leave it "
                "out, or add --reward model"
            )
        return rule
    if data == "sums" and folder is None:
        raise UserError(
            f"--reward {kind}: sums are checked by a rule and have no reward model; leave it out"
        )
    folder = folder or default_folder("reward_model", data, preset)
    if not (folder / MODEL_FILE).exists():
        flags = flags_for(data, preset)
        raise UserError(
            f"there is no reward model in {display_path(folder)}: train it with\n"
            f"    python -m reward_model.reward_model_training{flags}"
        )
    model, model_tokenizer = load_reward_model(folder, device)
    if model_tokenizer.fingerprint != tokenizer.fingerprint:
        raise UserError(
            f"the reward model in {display_path(folder)} reads {model_tokenizer.name!r} tokens, the "
            f"policy writes {tokenizer.name!r} tokens: train both with one tokenizer"
        )
    return RewardModelReward(model)


def as_paid(config: EngineConfig, reward_fn: RewardFn) -> RewardFn:
    """The reward with what the flags say a checked answer earns; UserError if it checks none."""
    if not (config.wrong_reward or config.format_weight or config.normalize_parts):
        return reward_fn
    if not isinstance(reward_fn, VerifiableReward):
        raise UserError(
            "--wrong-reward, --format-weight and --normalize-parts change what a checked answer "
            f"earns; the {reward_fn.name} checks none: leave them out"
        )
    others = {"format": (config.format_weight, think_format)} if config.format_weight else None
    return reward_fn.paying(wrong=config.wrong_reward, others=others)


def open_policy(
    folder: Path | None,
    data: str,
    preset: str,
    device: torch.device,
    *,
    with_reward_model: bool = True,
) -> tuple[GPT, Tokenizer]:
    """The policy to start from, or a UserError with the command that makes it.

    Where a reward model is needed too that is the command that trains one: it pre-trains first.
    """
    if data not in ("reviews", "sums") and not Path(data).exists():
        raise UserError(f"there is no file {data}: --data takes reviews, sums or a file")
    explicit = folder is not None
    folder = folder or default_folder("pretraining", data, preset)
    if not explicit and not (folder / MODEL_FILE).exists():
        checked = data == "sums" or brings_answers(data)
        learned = with_reward_model and not checked
        stage = "reward_model.reward_model_training" if learned else "gpt.pretraining"
        raise UserError(
            f"there is no model to start from in {display_path(folder)}: make it with\n"
            f"    python -m {stage}{flags_for(data, preset)}"
        )
    return load_gpt(folder, device)


class TaskConfig(Protocol):
    """The fields of an engine's config that say what to open."""

    @property
    def data(self) -> str: ...

    @property
    def preset(self) -> str: ...

    @property
    def reward(self) -> str: ...

    @property
    def policy(self) -> Path | None: ...

    @property
    def reward_model(self) -> Path | None: ...

    @property
    def max_new_tokens(self) -> int: ...


# (config, tokenizer, device) -> the reward in the place of --reward's, or None where none is needed
OwnReward = Callable[[Any, Tokenizer, torch.device], RewardFn | None]


def open_task(
    config: TaskConfig, device: torch.device, own_reward: OwnReward | None = None
) -> Task:
    """Load everything, checking that the pieces fit each other.

    An engine with a reward of its own, such as a teacher, opens it by `own_reward`.
    """
    data, preset = config.data, config.preset
    policy, tokenizer = open_policy(
        config.policy, data, preset, device, with_reward_model=own_reward is None
    )
    room = policy.config.context - config.max_new_tokens
    if room < 1:
        raise UserError(
            f"--max-new-tokens {config.max_new_tokens} leaves no room for a prompt in the policy's "
            f"{policy.config.context} positions"
        )
    prompts = open_prompts(data, tokenizer, room)
    gold = world_rule(data) or answer_rule(data, prompts)
    if own_reward is not None:
        reward_fn = own_reward(config, tokenizer, device)
    else:
        reward_fn = open_reward(
            config.reward, data, preset, config.reward_model, tokenizer, device, gold
        )
    if reward_fn is not None and isinstance(config, EngineConfig):
        reward_fn = as_paid(config, reward_fn)
    return Task(policy, tokenizer, prompts, reward_fn, gold)


class TextConfig(Protocol):
    """The fields of an engine's config that ask for pre-training text."""

    @property
    def data(self) -> str: ...

    @property
    def seed(self) -> int: ...

    @property
    def pretraining_coef(self) -> float: ...

    @property
    def pretraining_batch_size(self) -> int: ...


def open_text(config: TextConfig, task: Task) -> dict[str, Any]:
    """The text of the language model's loss as an engine's `train` wants it, if that has a weight."""
    if not config.pretraining_coef:
        return {}
    corpus = open_corpus(
        config.data,
        task.tokenizer,
        batch_size=config.pretraining_batch_size,
        context=task.policy.config.context,
        seed=config.seed,
    )
    return {"corpus": corpus}


def batch_description(config: EngineConfig) -> str:
    """The derived sizes of a batch in words, printed before a run."""
    rows = config.prompts_per_step * config.group_size
    minibatches = min(config.minibatches, config.prompts_per_step)
    return (
        f"{config.prompts_per_step} prompts x {config.group_size} responses = {rows} rows a step; "
        f"{config.updates_per_batch * minibatches} optimizer steps on about {rows // minibatches} "
        f"rows each, {config.micro_batch_size} rows per forward"
    )
