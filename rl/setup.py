"""Opening what an RL run needs, the same way for every engine: policy, prompts and reward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from data import reviews, sums
from data.readers import keep_within, read_prompts, split_records
from data.records import PromptRecord
from gpt.common import MODEL_FILE, UserError, display_path, load_gpt
from gpt.model import GPT
from gpt.pretraining import default_folder
from gpt.tokenizer import Tokenizer
from reward_model.model import load_reward_model
from rl.config import EngineConfig
from rl.rewards import RewardFn, RewardModelReward, RuleReward

Rule = Callable[[PromptRecord, str, bool], float]


@dataclass(frozen=True)
class Task:
    """Everything that is given to an engine before it starts."""

    policy: GPT
    tokenizer: Tokenizer
    prompts: dict[str, list[PromptRecord]]  # train, validation, test
    reward_fn: RewardFn
    gold: RuleReward | None  # the true objective where it is known; never seen in training


def world_rule(data: str) -> RuleReward | None:
    """The exact objective of a generated world; None for files."""
    if data == "reviews":
        return RuleReward(reviews.gold_reward, "gold reward")
    if data == "sums":
        return RuleReward(sums.exact_match, "exact match")
    return None


def open_prompts(
    data: str, tokenizer: Tokenizer, max_prompt_tokens: int
) -> dict[str, list[PromptRecord]]:
    """The prompts of a world or a file per split; prompts that are too long are left out, counted."""
    if data == "reviews":
        return {split: reviews.prompts(split) for split in ("train", "validation", "test")}
    if data == "sums":
        return {split: sums.prompts(split, count=2000) for split in ("train", "validation", "test")}
    result = read_prompts(Path(data))
    print(result.summary())
    kept, dropped = keep_within(result.records, tokenizer.encode, max_prompt_tokens, 1)
    for reason, count in dropped.items():
        print(f"left out {count} prompts of more than {max_prompt_tokens} tokens: {reason}")
    splits = split_records(kept)
    for split in ("train", "validation", "test"):
        if not splits[split]:
            raise UserError(
                f"{data}: no {split} prompts are left of {len(result.records)}: give more prompts "
                "or lower --max-new-tokens"
            )
    return {name: list(records) for name, records in splits.items()}


def open_reward(
    kind: str, data: str, preset: str, folder: Path | None, tokenizer: Tokenizer,
    device: torch.device,
) -> RewardFn:  # fmt: skip
    """The reward function that the flags ask for."""
    rule = world_rule(data)
    if kind in ("gold", "rule") or (kind == "auto" and data == "sums"):
        if rule is None:
            raise UserError(f"--reward {kind}: {data} has no rule to check; use --reward model")
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


def flags_for(data: str, preset: str) -> str:
    """The flags that select this data and preset, for a command to copy."""
    flags = "" if data == "reviews" else f" --data {data}"
    return flags + ("" if preset == "tiny" else f" --preset {preset}")


def open_policy(
    folder: Path | None, data: str, preset: str, device: torch.device
) -> tuple[GPT, Tokenizer]:
    """The policy to start from, or a UserError with the command that makes it."""
    explicit = folder is not None
    folder = folder or default_folder("pretraining", data, preset)
    if not explicit and not (folder / MODEL_FILE).exists():
        stage = "gpt.pretraining" if data == "sums" else "reward_model.reward_model_training"
        raise UserError(
            f"there is no model to start from in {display_path(folder)}: make it with\n"
            f"    python -m {stage}{flags_for(data, preset)}"
        )
    return load_gpt(folder, device)


def open_task(
    *,
    data: str,
    preset: str,
    reward: str,
    policy: Path | None,
    reward_model: Path | None,
    max_new_tokens: int,
    device: torch.device,
) -> Task:
    """Load everything, checking that the pieces fit each other."""
    model, tokenizer = open_policy(policy, data, preset, device)
    room = model.config.context - max_new_tokens
    if room < 1:
        raise UserError(
            f"--max-new-tokens {max_new_tokens} leaves no room for a prompt in the policy's "
            f"{model.config.context} positions"
        )
    return Task(
        policy=model,
        tokenizer=tokenizer,
        prompts=open_prompts(data, tokenizer, room),
        reward_fn=open_reward(reward, data, preset, reward_model, tokenizer, device),
        gold=world_rule(data),
    )


def batch_description(config: EngineConfig) -> str:
    """The derived sizes of a batch in words, printed before a run."""
    rows = config.prompts_per_step * config.group_size
    minibatches = min(config.minibatches, config.prompts_per_step)
    return (
        f"{config.prompts_per_step} prompts x {config.group_size} responses = {rows} rows a step; "
        f"{config.updates_per_batch * minibatches} optimizer steps on about {rows // minibatches} "
        f"rows each, {config.micro_batch_size} rows per forward"
    )
