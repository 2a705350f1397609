"""The memory forecast of reward-model training (gpt/memory/forecast.py has the parts)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gpt.memory.forecast import Model, Phase, Work
from gpt.memory.supervised import supervised_work
from gpt.model import GPTConfig
from reward_model.pairs import TokenPair

SAMPLED_TOGETHER = 512  # rows from which a world's pairs are made


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
    if config.data == "reviews":
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
