"""The memory forecast of an engine: which models it holds, and on how many rows each phase works.

The arithmetic is gpt/memory/forecast.py's. What differs between engines stands in their entries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from gpt.memory.announce import announce, longest_prompt
from gpt.memory.forecast import FULL_KL_CHUNKS, Forecast, Model, Phase
from gpt.model import GPTConfig
from harness.ranks.collectives import world
from rl.rewards.sources import made_of
from rl.training.config import RunFlags
from rl.training.engine import Engine, Needs
from rl.training.evaluation import PASS_K, Conditions
from rl.training.open_task import Task


@dataclass(frozen=True)
class Given:
    """What the flags do not say: the shapes of the models, and how long the prompts are."""

    policy: GPTConfig
    rewards: tuple[GPTConfig, ...] = ()  # reward models, a judge
    teacher: GPTConfig | None = None
    prompt_tokens: int = 128
    checked: bool = False  # answers can be checked: the test draws several of each prompt
    device: str = "cpu"
    ranks: int = 1

    @property
    def critic(self) -> GPTConfig:
        """The reward model's shape, where one pays."""
        return self.rewards[0] if self.rewards and self.teacher is None else self.policy


def engine_forecast(engine: Engine, config: RunFlags, given: Given) -> Forecast:
    """The models and the phases of a run with these flags."""
    needs = engine.needs(config)
    return Forecast(
        tuple(_held_models(config, given, needs)),
        tuple(_phases(config, given, needs)),
        bfloat16=config.precision == "bfloat16",
        checkpoint=config.checkpoint_blocks,
        device=given.device,
    )


def _held_models(config: RunFlags, given: Given, needs: Needs) -> Iterator[Model]:
    """Every model in memory. A reference that stays is the start; under adapters both share tensors."""
    rank, narrow = config.lora_rank, config.precision == "bfloat16"
    shares = rank > 0
    start = Model("start", given.policy, lora_rank=rank, shares=shares)
    yield Model("policy", given.policy, trained=True, lora_rank=rank)
    yield replace(start, narrow=narrow and not shares)
    if needs.moving_reference:
        yield replace(start, name="reference")
    if needs.critic:
        yield Model("critic", given.critic, trained=True, lora_rank=rank, shares=shares)
    for number, shape in enumerate(given.rewards, start=1):
        name = "reward model" if len(given.rewards) == 1 else f"reward model {number}"
        yield Model(name, shape, narrow=narrow)
    if given.teacher is not None:
        yield Model("teacher", given.teacher, narrow=narrow)


def _phases(config: RunFlags, given: Given, needs: Needs) -> Iterator[Phase]:
    """What a run does, on rows with a response of full length."""
    policy, scored, micro = given.policy, config.max_new_tokens, config.micro_batch_size
    tokens = min(given.prompt_tokens + scored, policy.context)
    teacher = () if given.teacher is None else (given.teacher,)

    def at_once(prompts: int, group_size: int) -> int:
        """Rows of a rank sampled together: whole groups, at most `sample_rows` but for one group."""
        limit = config.rows_sampled_at_once or prompts * group_size
        together = min(prompts, max(limit // group_size, 1))
        return math.ceil(together / given.ranks) * group_size

    if needs.prompts:
        readers = (policy, *(teacher if needs.teacher_samples else ()))
        rows = at_once(needs.prompts, needs.group_size)
        yield Phase("sampling", "sampling", readers, rows, tokens)
    # Log-probs of the reference, scores of the reward model: no gradients, one model at a time.
    largest = max((policy, *given.rewards, *teacher), key=lambda shape: shape.n_embd)
    yield Phase("scoring", "scoring", (largest,), micro, tokens, scored)
    rows, longest = needs.update_rows // given.ranks, (tokens, scored)
    if needs.answer_tokens:  # of recorded pairs
        answer = min(needs.answer_tokens, policy.context)
        longest = min(given.prompt_tokens + answer, policy.context), answer
    yield Phase(
        "update", "update", (policy, given.critic) if needs.critic else (policy,),
        min(micro, max(rows, 1)), *longest,
        chunks=FULL_KL_CHUNKS if needs.compares_vocabularies else 4, accumulates=rows > micro,
    )  # fmt: skip
    if needs.text_rows:
        rows, context = min(micro, needs.text_rows), policy.context
        yield Phase("text", "update", (policy,), rows, context, context)
    # Checked answers are drawn several times in the test, once the optimizer has gone.
    conditions = Conditions.of(config)
    if config.eval_prompts:
        rows = at_once(min(config.eval_prompts, conditions.prompts), 1)
        yield Phase("validation", "sampling", (policy,), rows, tokens)
    if config.test_prompts:
        rows = at_once(min(config.test_prompts, conditions.prompts), 1)
        if given.checked:
            drawn = at_once(min(config.test_prompts, conditions.prompts_of(PASS_K)), PASS_K)
            rows = max(rows, drawn)
        yield Phase("test", "sampling", (policy,), rows, tokens, finished=True)


def announce_run(engine: Engine, config: RunFlags, task: Task, device: torch.device) -> None:
    """Print what the run needs; UserError if its device has less."""
    texts = [record.prompt for record in task.prompts["train"]]
    made = [made_of(task.reward_fn), made_of(task.gold)]
    teacher = made[0].teacher
    given = Given(
        policy=task.policy.config,
        rewards=tuple(model.gpt.config for one in made for model in one.reward_models),
        teacher=None if teacher is None else teacher.config,
        prompt_tokens=longest_prompt(texts, task.tokenizer),
        checked=made[1].check is not None,
        device=device.type,
        ranks=world(),
    )
    announce(config, lambda changed: engine_forecast(engine, changed, given), device)
