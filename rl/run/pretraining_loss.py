"""L_PT: the language model's loss on pre-training text as a second loss of an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpt.corpus import Corpus, open_corpus
from gpt.log_probs import token_log_probs
from gpt.model import GPT
from harness.device import precision
from harness.flags import NotNegative
from harness.ranks.collectives import shard_chunks
from rl.run.config import EngineConfig
from rl.run.task import Task

TEXT_ROWS = 32  # of pre-training text per optimizer step


@dataclass(frozen=True)
class TextConfig(EngineConfig):
    """Pre-training text"""

    pretraining_coef: NotNegative = 0.0
    """The weight of the language model's loss on pre-training text; 0 needs no text."""


def open_text(config: TextConfig, task: Task) -> dict[str, Any]:
    """The text of the language model's loss as an engine's `train` wants it, if that has a weight."""
    if not config.pretraining_coef:
        return {}
    sizes = dict(batch_size=TEXT_ROWS, context=task.policy.config.context, seed=config.seed)
    return {"corpus": open_corpus(config.data, task.tokenizer, **sizes)}


def text_of(config: TextConfig, corpus: Corpus | None) -> Corpus | None:
    """The corpus, where its loss has a weight."""
    if config.pretraining_coef and corpus is None:
        raise ValueError("pretraining_coef needs a corpus: pass one, or set it to 0")
    return corpus if config.pretraining_coef else None


def text_gradient(
    config: TextConfig, policy: GPT, text: Corpus | None, step: int, update: int
) -> dict[str, float]:
    """Add the gradient of pretraining_coef * L_PT on fresh text; L_PT for the log, {} without text.

    L_PT is a mean over tokens, in nats; this rank logs its part. The gradient is divided by the
    corpus's mean token count, as in pre-training (gpt/corpus.py says why).
    """
    if text is None:
        return {}
    batch = text.batch(step * config.updates + update)
    parts: list[Tensor] = []
    for rows in shard_chunks(batch.totals, config.micro_batch_size):
        with precision(policy.device, config.precision):
            part = batch.rows(rows).to(policy.device)
            loss = -token_log_probs(policy, part).sum() / text.tokens_per_batch
        (config.pretraining_coef * loss).backward()
        parts.append(loss.detach())
    nats = sum(torch.stack(parts).tolist()) if parts else 0.0  # the device is waited for once
    tokens = max(int(batch.response_mask.sum()), 1)
    return {"pretraining_loss": nats * text.tokens_per_batch / tokens}
