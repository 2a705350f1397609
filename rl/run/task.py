"""Opening what an RL run needs, the same way for every engine: policy, prompts and reward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from data.records import PromptRecord
from data.sources import default_folder, file_source, flags_for, is_world, source
from gpt.folder import open_model
from gpt.lengths import open_prompts
from gpt.lora import linears_to_bfloat16
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from harness.errors import UserError
from harness.files import display_path
from harness.paths import MODEL_FILE
from rl.rewards.reward import (
    RewardFn,
    components,
    is_function,
    open_reward,
    open_rule,
    rewards_of,
)
from rl.run.config import RunFlags


@dataclass(frozen=True)
class Task:
    """Everything that is given to an engine before it starts."""

    policy: GPT
    tokenizer: Tokenizer
    prompts: dict[str, list[PromptRecord]]  # train, validation, test
    reward_fn: RewardFn | None  # None where none is needed and none is there
    gold: RewardFn | None  # the true objective where it is known; never trained on

    @property
    def reward_name(self) -> str:
        """What to call the reward in a message."""
        return "none" if self.reward_fn is None else self.reward_fn.name


def open_policy(
    model: str | None,
    data: str,
    preset: str,
    device: torch.device,
    *,
    with_reward_model: bool = True,
    chat_arguments: Sequence[str] = (),
) -> tuple[GPT, Tokenizer]:
    """The policy to start from, or a UserError with the command that makes it, or the reward model too."""
    folder = default_folder("pretraining", data, preset)
    if model is None and not (folder / MODEL_FILE).exists():
        found = source(data, None)
        if is_world(data) and found.corpus is None:
            make = "`python scripts/smollm2.py --out runs/smollm2`, then --model runs/smollm2"
            raise UserError(f"{data} needs a model that has read English: {make}")
        checked, answers = found.CHECK is not None, 2  # a world's annotator compares two
        if not is_world(data):
            result = file_source(data, None).result
            checked, answers = result.records[0].answer is not None, result.answers
        if not answers:
            raise UserError(
                f"{data}: prompts alone make no model: name one with --model, a run or published weights"
            )
        learned = with_reward_model and not checked and answers == 2
        stage = "reward_model.reward_model_training" if learned else "gpt.pretraining"
        raise UserError(
            f"no model to start from in {display_path(folder)}: name one with --model, or make it with  "
            f"python -m {stage}{flags_for(data, preset)}"
        )
    return open_model(model or folder, device, chat_arguments)


# (config, tokenizer, device) -> the reward in place of --reward's, or None where none is needed
OwnReward = Callable[[Any, Tokenizer, torch.device], RewardFn | None]


def open_task(config: RunFlags, device: torch.device, own_reward: OwnReward | None = None) -> Task:
    """Load everything, checking that the pieces fit each other.

    An engine with a reward of its own, such as a teacher, opens it by `own_reward`.
    """
    data = config.data
    named = [name for name in rewards_of(config.reward) if not is_function(name)]
    learned = own_reward is None and bool(named)
    policy, tokenizer = open_policy(
        config.model, data, config.preset, device, with_reward_model=learned,
        chat_arguments=config.chat_arguments,
    )  # fmt: skip
    room = policy.config.context - config.max_new_tokens
    if room < 1:
        positions = f"the policy's {policy.config.context} positions"
        raise UserError(f"--max-new-tokens leaves no room for a prompt in {positions}: lower it")
    found, prompts = open_prompts(data, tokenizer, room)
    needed = learned and bool({*named} - {"model", *config.judges})
    rule = open_rule(found, data, prompts, needed=needed)
    if own_reward is not None:
        reward_fn = own_reward(config, tokenizer, device)
    else:
        reward_fn = open_reward(config, tokenizer, device, rule)
    require_reach(reward_fn, policy, tokenizer, prompts, config.max_new_tokens)
    return Task(policy, tokenizer, prompts, reward_fn, rule)


def to_bfloat16(task: Task) -> None:
    """Linear layers of the task's reward models and teacher in bfloat16."""
    made = components(task.reward_fn)
    for model in (*made.reward_models, *(judge.model for judge in made.judges), made.teacher):
        if model is not None:
            linears_to_bfloat16(model)


def require_reach(
    reward_fn: RewardFn | None,
    policy: GPT,
    tokenizer: Tokenizer,
    prompts: Mapping[str, Sequence[PromptRecord]],
    max_new_tokens: int,
) -> None:
    """UserError for a reward model or a teacher that cannot read the longest row that may be written.

    A judge of its own form must read every prompt; how many tokens an answer has there is known later.
    """
    made = components(reward_fn)
    asked = [record for records in prompts.values() for record in records]
    for judge in made.judges:
        judge.batch(asked, ["."] * len(asked), [True] * len(asked))
    models = [*(model.gpt for model in made.reward_models), made.teacher or policy]
    reach = min(model.config.context for model in models)
    if reach >= policy.config.context:
        return
    texts = {record.prompt for record in asked}
    longest = max(len(tokenizer.encode_prompt(text)) for text in texts)
    if longest + max_new_tokens > reach:
        raise UserError(
            f"what pays the reward reads {reach} tokens, a prompt has up to {longest} and --max-new-tokens "
            f"adds {max_new_tokens}: lower that, or take a reward model or teacher with more positions"
        )
