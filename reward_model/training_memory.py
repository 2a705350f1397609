"""The memory forecast of reward-model training (gpt/memory/forecast.py has the parts)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gpt.memory.announce import announce
from gpt.memory.forecast import Forecast, Model, Phase, Work, forecast
from gpt.memory.supervised import supervised_work
from gpt.model import GPT, GPTConfig
from harness.ranks.collectives import world
from reward_model.pairs import TokenPair
from reward_model.world_pairs import SAMPLED_TOGETHER, has_annotator


def reward_model_work(
    config: Any,
    shape: GPTConfig,
    tokens: int,
    responses: float = 2,
    device: str = "cpu",
    ranks: int = 1,
) -> Work:
    """The base stays beside the model in training; there are no logits, a score has one number.

    Rows: the prompts of a step, each with its `responses`.
    """
    rank = getattr(config, "lora_rank", 0)
    whole = math.ceil(config.batch_size * responses / ranks)
    rows = min(getattr(config, "micro_batch_size", None) or whole, whole)
    models = (
        Model("base", shape, lora_rank=rank),
        Model("reward model", shape, trained=True, lora_rank=rank, shares=rank > 0),
    )
    phases = [
        Phase("update", "update", (shape,), rows, tokens, accumulates=rows < whole),
        Phase("report", "scoring", (shape,), 64, tokens),
    ]
    if has_annotator(config.data):
        sampled = math.ceil(SAMPLED_TOGETHER / ranks)
        phases.append(Phase("pairs", "sampling", (shape,), sampled, tokens, finished=True))
    return supervised_work(config, models, tuple(phases), device)


def longest_pair(pairs: Sequence[TokenPair]) -> int:
    """Tokens of the longest prompt with its answer."""
    return max(len(p.prompt) + max(len(p.chosen), len(p.rejected)) for p in pairs)


def most_responses(groups: Sequence[Sequence[TokenPair]]) -> int:
    """Different answers of the prompt that has most of them."""
    return max(
        len({tuple(side) for pair in group for side in (pair.chosen, pair.rejected)})
        for group in groups
    )


def announce_memory(config: Any, base: GPT, tokens: int, responses: int) -> Forecast:
    """Print what training needs; UserError if the base's device has less."""

    def memory_of(changed: Any) -> Forecast:
        return forecast(
            reward_model_work(changed, base.config, tokens, responses, base.device.type, world())
        )

    return announce(config, memory_of, base.device)
