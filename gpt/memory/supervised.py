"""The memory forecasts of pre-training, fine-tuning and distillation (gpt/memory/forecast.py has the parts)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gpt.memory.forecast import Model, Phase, Work
from gpt.model import GPTConfig
from gpt.tokenizer import Tokenizer

FULL_KL_CHUNKS = (
    8  # tensors of a chunk's size: logits of two models, and what their divergence keeps
)
MOST_PROMPTS_READ = 4096  # to find the longest one
SHOWN = 8  # answers that a fine-tuning run samples at its end
ANSWERED = 256  # prompts that an evaluation of distillation answers together


def supervised_work(
    config: Any, models: tuple[Model, ...], phases: tuple[Phase, ...], device: str
) -> Work:
    """A run of these models and phases with the config's precision and checkpointing."""
    return Work(
        models,
        phases,
        bfloat16=config.precision == "bfloat16",
        checkpoint=getattr(config, "checkpoint_blocks", False),
        device=device,
    )


def trained_model(config: Any, shape: GPTConfig, name: str = "model") -> Model:
    """The model in training, all of it or its adapters."""
    return Model(name, shape, trained=True, lora_rank=getattr(config, "lora_rank", 0))


def own_rows(config: Any, ranks: int) -> tuple[int, bool]:
    """Rows of one forward pass of a rank, and whether several make a step."""
    rows = math.ceil(config.batch_size / ranks)
    micro = getattr(config, "micro_batch_size", None) or rows
    return min(micro, rows), rows > micro or getattr(config, "accumulation", 1) > 1


def pretraining_work(
    config: Any, shape: GPTConfig, tokens: int | None = None, device: str = "cpu", ranks: int = 1
) -> Work:
    """One model on whole windows of text; every column is scored, which needs no entropy."""
    tokens = tokens or shape.context
    rows, several = own_rows(config, ranks)
    update = Phase(
        "update", "update", (shape,), rows, tokens, tokens, chunks=2, accumulates=several
    )
    held_out = Phase("evaluation", "scoring", (shape,), rows, tokens, tokens, chunks=2)
    return supervised_work(config, (trained_model(config, shape),), (update, held_out), device)


def finetuning_work(
    config: Any, shape: GPTConfig, tokens: int, scored: int, device: str = "cpu", ranks: int = 1
) -> Work:
    """As pre-training, on prompts with answers of up to `scored` tokens; some are answered at the end."""
    rows, several = own_rows(config, ranks)
    update = Phase(
        "update", "update", (shape,), rows, tokens, scored, chunks=2, accumulates=several
    )
    held_out = Phase("evaluation", "scoring", (shape,), rows, tokens, scored, chunks=2)
    answers = Phase("samples", "sampling", (shape,), SHOWN, tokens, finished=True)
    models = (trained_model(config, shape),)
    return supervised_work(config, models, (update, held_out, answers), device)


def distillation_work(
    config: Any,
    shape: GPTConfig,
    teacher: GPTConfig,
    prompt_tokens: int,
    device: str = "cpu",
    ranks: int = 1,
) -> Work:
    """A student, its start and a teacher, who writes the text or reads the student's."""
    rank, narrow = getattr(config, "lora_rank", 0), config.precision == "bfloat16"
    models = (
        trained_model(config, shape, "student"),
        Model("start", shape, lora_rank=rank, shares=rank > 0),
        Model("teacher", teacher, narrow=narrow),
    )
    tokens = min(prompt_tokens + config.max_new_tokens, shape.context)
    rows, several = own_rows(config, ranks)
    author = shape if config.author == "student" else teacher
    update = Phase(
        "update", "update", (shape,), rows, tokens, config.max_new_tokens,
        chunks=FULL_KL_CHUNKS, accumulates=several,
    )  # fmt: skip
    phases = [update]
    if config.author != "corpus":
        sampled = math.ceil(config.batch_size / ranks)
        phases.append(Phase("sampling", "sampling", (author,), sampled, tokens))
    largest = max(shape, teacher, key=lambda one: one.n_embd * one.n_layer)
    for name, prompts, finished in (
        ("validation", config.eval_prompts, False), ("test", config.test_prompts, True)
    ):  # fmt: skip
        answered = math.ceil(min(prompts, ANSWERED) / ranks)
        if prompts:
            phases.append(Phase(name, "sampling", (largest,), answered, tokens, finished=finished))
    return supervised_work(config, models, tuple(phases), device)


def longest_prompt(prompts: Sequence[str], tokenizer: Tokenizer) -> int:
    """Tokens of the longest of the first few thousand prompts."""
    return max(len(tokenizer.encode(prompt)) for prompt in prompts[:MOST_PROMPTS_READ])
