"""Opening the reward that the flags ask for, and the rule that a run is measured by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from data.collate import ResponseBatch, collate_responses
from data.readers import read_preferences
from data.records import PromptRecord
from data.sources import Source, default_folder, flags_for, has_annotator, is_checked, source
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from harness.errors import UserError
from harness.files import display_path
from harness.paths import MODEL_FILE, folder_of_run
from reward_model.scalar_head import RewardModel, load_reward_model
from rl.rewards.function import open_function
from rl.rewards.sources import (
    Combine,
    EnsembleReward,
    RewardFn,
    RewardModelReward,
    RuleReward,
    is_function,
    made_of,
)
from rl.rewards.verifiable import VerifiableReward, answer_match, read_answer
from rl.training.config import EngineConfig, RunFlags


def world_rule(found: Source) -> RuleReward | None:
    """The exact objective of a generated world; None for files."""
    if found.gold is None:
        return None
    if found.CHECK is not None:
        return VerifiableReward(found.gold, found.CHECK)
    return RuleReward(found.gold, "gold reward")


def open_rule(found: Source, data: str) -> RuleReward | None:
    """The rule that a source is measured by: a world's own, or the check of a file's answers."""
    prompts = {split: found.prompts(split) for split in ("train", "validation", "test")}
    return world_rule(found) or answer_rule(data, prompts, needed=False)


def answer_rule(
    data: str, prompts: Mapping[str, Sequence[PromptRecord]], needed: bool
) -> VerifiableReward | None:
    """The check of the answers that a file brings with its prompts; None if it brings none.

    UserError if it is needed, and cannot compare them all: empty ones, lists, objects, true and false.
    """
    answers = [record.answer for records in prompts.values() for record in records]
    unfit = sum(not isinstance(answer, str) or not answer.strip() for answer in answers)
    if answers.count(None) == len(answers) or (unfit and not needed):
        return None
    if unfit:
        raise UserError(
            f"{data}: {unfit} of {len(answers)} prompts have no text or number as `answer`, which the "
            "rule could check: give one to every prompt, or --reward FILE.py:FUNCTION"
        )
    return VerifiableReward(answer_match, "right answer", reads=read_answer)


@dataclass(frozen=True)
class RewardChoice:
    """Which reward the flags ask for; without folders it is the default reward model's."""

    reward: str
    data: str
    preset: str
    folders: tuple[Path, ...] = ()
    ensemble: Combine = "mean"
    micro_batch_size: int = 32  # of an update: scoring keeps no graph and takes twice as many rows
    precision: str = "float32"

    @classmethod
    def of(cls, config: RunFlags) -> RewardChoice:
        """That of an engine's config."""
        return cls(
            config.reward, config.data, config.preset, config.reward_folders,
            config.ensemble if isinstance(config, EngineConfig) else "mean",
            config.micro_batch_size, config.precision,
        )  # fmt: skip

    @property
    def used_folders(self) -> tuple[Path, ...]:
        """Those of the flags, or the default one."""
        return self.folders or (default_folder("reward_model", self.data, self.preset),)

    @property
    def scored_rows(self) -> int:
        """Rows that a reward model reads at once."""
        return min(2 * self.micro_batch_size, 64)


def open_reward(
    choice: RewardChoice, tokenizer: Tokenizer, device: torch.device, rule: RuleReward | None = None
) -> RewardFn:
    """The reward function that the flags ask for; `rule` is the one of a file with answers."""
    kind, data = choice.reward, choice.data
    if is_function(kind):
        if choice.folders and not has_annotator(data):  # PG-GRPO reads recorded pairs there
            raise _unused(choice, f"function {kind}")
        return open_function(kind)
    rule = rule or world_rule(source(data))
    checks = made_of(rule).check is not None
    if kind in ("gold", "rule") or (kind == "auto" and checks):
        if rule is None:
            raise UserError(f"--reward {kind}: {data} has no rule to check; use --reward model")
        if choice.folders and checks:
            raise _unused(choice, rule.name)
        return rule
    if is_checked(data) and not choice.folders:
        raise UserError(
            f"--reward {kind}: {data}: checked by a rule, without a reward model; leave it out"
        )
    flags = flags_for(data, choice.preset)
    models = [open_reward_model(folder, tokenizer, device, flags) for folder in choice.used_folders]
    if len(models) == 1:
        return RewardModelReward(models[0], choice.scored_rows, dtype=choice.precision)
    room = min(model.gpt.config.context for model in models)
    reference = reference_responses(choice.used_folders[0], tokenizer, room)
    return EnsembleReward(
        models, combine=choice.ensemble, reference=reference,
        micro_batch_size=choice.scored_rows, dtype=choice.precision,
    )  # fmt: skip


def reference_responses(
    folder: Path, tokenizer: Tokenizer, room: int, pairs: int = 256
) -> ResponseBatch | None:
    """Answers on which the members of an ensemble are put on one scale: held-out ones of `folder`.

    Both answers of its first held-out pairs that fit in `room` tokens; None where it kept no pairs.
    """
    path = folder_of_run(folder.resolve()) / "held_out_pairs.jsonl"
    if not path.exists():
        return None
    rows = [
        (tokenizer.encode(record.prompt), [*tokenizer.encode(answer), tokenizer.eos_id])
        for record in read_preferences(path).records[:pairs]
        for answer in (record.chosen, record.rejected)
    ]
    rows = [(prompt, answer) for prompt, answer in rows if len(prompt) + len(answer) <= room]
    if not rows:
        return None
    prompts, answers = [prompt for prompt, _ in rows], [answer for _, answer in rows]
    return collate_responses(prompts, answers, tokenizer.eos_id)


def _unused(choice: RewardChoice, reward: str) -> UserError:
    folders = " ".join(map(str, choice.folders))
    return UserError(
        f"--reward-model {folders} would not be used, the reward is the {reward}: leave it out, or "
        "add --reward model"
    )


def open_reward_model(
    folder: Path, tokenizer: Tokenizer, device: torch.device, flags: str
) -> RewardModel:
    """The reward model in a run folder; UserError if there is none, or one of other tokens."""
    folder = folder_of_run(folder)
    if not (folder / MODEL_FILE).exists():
        raise UserError(
            f"there is no reward model in {display_path(folder)}: train it with\n"
            f"    python -m reward_model.reward_model_training{flags}"
        )
    model, model_tokenizer = load_reward_model(folder, device)
    if model_tokenizer.fingerprint != tokenizer.fingerprint:
        raise UserError(
            f"the reward model in {display_path(folder)} reads {model_tokenizer.name!r} tokens, "
            f"the policy writes {tokenizer.name!r} tokens: train both with one tokenizer"
        )
    return model


def require_reach(
    reward_fn: RewardFn | None,
    policy: GPT,
    tokenizer: Tokenizer,
    prompts: Mapping[str, Sequence[PromptRecord]],
    max_new_tokens: int,
) -> None:
    """UserError for a reward model that cannot read the longest row that the policy may write."""
    models = made_of(reward_fn).reward_models
    reach = min((model.gpt.config.context for model in models), default=policy.config.context)
    if reach >= policy.config.context:
        return
    texts = {record.prompt for records in prompts.values() for record in records}
    longest = max(len(tokenizer.encode(text)) for text in texts)
    if longest + max_new_tokens > reach:
        raise UserError(
            f"a reward model reads {reach} tokens, a prompt has up to {longest} and --max-new-tokens adds "
            f"{max_new_tokens}: lower that, or train the reward model on a base with more positions"
        )
