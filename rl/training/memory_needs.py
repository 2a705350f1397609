"""The memory forecast of an engine: which models it holds, and on how many rows each phase works.

The arithmetic is gpt/memory/forecast.py's. What differs between engines stands in their entries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from gpt.memory.announce import announce
from gpt.memory.forecast import Forecast, Model, Phase, Work, forecast
from gpt.memory.supervised import FULL_KL_CHUNKS, longest_prompt
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


def engine_forecast(engine: Engine, config: RunFlags, given: Given) -> Forecast:
    """What a run with these flags needs."""
    return forecast(engine_work(engine, config, given))


def engine_work(engine: Engine, config: RunFlags, given: Given) -> Work:
    """The models and the phases of a run with these flags."""
    needs = engine.needs(config)
    phases = [*_scoring(config, given), *_update(config, given, needs), *_answering(config, given)]
    if needs.prompts:
        phases = [_rollout(config, given, needs), *phases]
    return Work(
        held_models(config, given, needs),
        tuple(phases),
        bfloat16=config.precision == "bfloat16",
        checkpoint=config.checkpoint_blocks,
        device=given.device,
    )


def held_models(config: RunFlags, given: Given, needs: Needs) -> tuple[Model, ...]:
    """Every model in memory. A reference that stays is the start; under adapters both share tensors."""
    rank, narrow = config.lora_rank, config.precision == "bfloat16"
    shares = rank > 0
    models = [
        Model("policy", given.policy, trained=True, lora_rank=rank),
        Model("start", given.policy, lora_rank=rank, shares=shares, narrow=narrow and not shares),
    ]
    if needs.moving_reference:
        models.append(replace(models[1], name="reference", narrow=False))
    if needs.critic:
        trunk = given.rewards[0] if given.rewards and given.teacher is None else given.policy
        models.append(Model("critic", trunk, trained=True, lora_rank=rank, shares=shares))
    for number, shape in enumerate(given.rewards, start=1):
        name = "reward model" if len(given.rewards) == 1 else f"reward model {number}"
        models.append(Model(name, shape, narrow=narrow))
    if given.teacher is not None:
        models.append(Model("teacher", given.teacher, narrow=narrow))
    return tuple(models)


# --- phases -------------------------------------------------------------------------------------


def _row(config: RunFlags, given: Given) -> tuple[int, int]:
    """Columns of a row with its response, and those of the response."""
    responses = config.max_new_tokens
    return min(given.prompt_tokens + responses, given.policy.context), responses


def _rollout(config: RunFlags, given: Given, needs: Needs) -> Phase:
    """All rows of a batch are sampled together; of several ranks each samples its own."""
    tokens, _ = _row(config, given)
    readers: tuple[GPTConfig, ...] = (given.policy,)
    if needs.teacher_samples and given.teacher is not None:
        readers += (given.teacher,)
    rows = _at_once(config, needs.prompts, needs.group_size, given.ranks)
    return Phase("sampling", "sampling", readers, rows, tokens)


def _at_once(config: RunFlags, prompts: int, group_size: int, ranks: int) -> int:
    """Rows that are sampled together: whole groups, at most `sample_rows` but for one group."""
    limit = config.rows_sampled_at_once or prompts * group_size
    together = min(prompts, max(limit // group_size, 1))
    return math.ceil(together / ranks) * group_size


def _scoring(config: RunFlags, given: Given) -> Iterator[Phase]:
    """Log-probs of the reference, scores of the reward model: no gradients, one model at a time."""
    tokens, scored = _row(config, given)
    largest = max((given.policy, *given.rewards, *filter(None, [given.teacher])), key=_width)
    yield Phase("scoring", "scoring", (largest,), config.micro_batch_size, tokens, scored)


def _width(config: GPTConfig) -> int:
    return config.n_embd


def _update(config: RunFlags, given: Given, needs: Needs) -> Iterator[Phase]:
    """Micro-batches of the rollout, or of recorded pairs; and of text where there is any."""
    tokens, scored = _row(config, given)
    if needs.answer_tokens:
        scored = min(needs.answer_tokens, given.policy.context)
        tokens = min(given.prompt_tokens + scored, given.policy.context)
    trained: tuple[GPTConfig, ...] = (given.policy,)
    if needs.critic:
        trunk = given.rewards[0] if given.rewards and given.teacher is None else given.policy
        trained += (trunk,)
    micro, rows = config.micro_batch_size, needs.update_rows // given.ranks
    yield Phase(
        "update", "update", trained, min(micro, max(rows, 1)), tokens, scored,
        chunks=FULL_KL_CHUNKS if needs.compares_vocabularies else 4, accumulates=rows > micro,
    )  # fmt: skip
    if needs.text_rows:
        context = given.policy.context
        rows = min(micro, needs.text_rows)
        yield Phase("text", "update", (given.policy,), rows, context, context)


def _answering(config: RunFlags, given: Given) -> Iterator[Phase]:
    """Validations, and the test once the optimizer has gone; checked answers are drawn several times."""
    tokens, _ = _row(config, given)
    conditions = Conditions.of(config)
    for name, prompts, finished in (
        ("validation", config.eval_prompts, False), ("test", config.test_prompts, True)
    ):  # fmt: skip
        rows = _at_once(config, min(prompts, conditions.prompts), 1, given.ranks)
        if finished and given.checked:
            several = _at_once(
                config, min(prompts, conditions.prompts_of(PASS_K)), PASS_K, given.ranks
            )
            rows = max(rows, several)
        if prompts:
            yield Phase(name, "sampling", (given.policy,), rows, tokens, finished=finished)


# --- a run --------------------------------------------------------------------------------------


def announce_run(engine: Engine, config: RunFlags, task: Task, device: torch.device) -> None:
    """Print what the run needs; UserError if its device has less."""
    given = given_by(task, device)
    announce(config, lambda changed: engine_forecast(engine, changed, given), device)


def given_by(task: Task, device: torch.device) -> Given:
    """The shapes of a task's models and its longest prompt."""
    texts = [record.prompt for record in task.prompts["train"]]
    teacher = made_of(task.reward_fn).teacher
    return Given(
        policy=task.policy.config,
        rewards=tuple(
            model.gpt.config
            for made in (made_of(task.reward_fn), made_of(task.gold))
            for model in made.reward_models
        ),
        teacher=None if teacher is None else teacher.config,
        prompt_tokens=longest_prompt(texts, task.tokenizer),
        checked=made_of(task.gold).check is not None,
        device=device.type,
        ranks=world(),
    )
