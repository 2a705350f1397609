"""Sampling and scoring shared out between the ranks: each does its own rows, and all get the whole.

gpt/generate.py, gpt/log_probs.py and data/collate.py know of no ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from data.collate import ResponseBatch
from gpt.generate import Generation, Mixture, SamplingParams, generate_from, uniform_numbers
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from harness.ranks.collectives import (
    gather,
    scatter_rows,
    shard,
    shard_block,
    shard_chunks,
    world,
)


def sample(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    generator: torch.Generator | None = None,
    *,
    samples_per_prompt: int = 1,
    mixture: Mixture | None = None,
) -> Generation:
    """`generate` for prompts of this tokenizer: every rank answers prompts of its own, and gets all rows.

    The random numbers of all rows are drawn on every rank: a row's tokens do not depend on how many
    ranks there are.
    """
    rows = len(prompts) * samples_per_prompt
    uniforms = uniform_numbers(rows, params.max_new_tokens, generator)
    mine = shard_block(len(prompts))
    own = None
    if prompts[mine] or world() == 1:
        own = generate_from(
            model, prompts[mine], params,
            uniforms[mine.start * samples_per_prompt : mine.stop * samples_per_prompt],
            eos_id=tokenizer.eos_id, other_ends=tokenizer.other_ends, mixture=mixture,
        )  # fmt: skip
    if own is not None and world() == 1:
        return own
    parts = gather(None if own is None else [tensor.cpu() for tensor in vars(own).values()])
    return _below_each_other([part for part in parts if part], tokenizer.eos_id, model.device)


def _below_each_other(
    blocks: Sequence[Sequence[Tensor]], eos_id: int, device: torch.device
) -> Generation:
    """Blocks of rows (the tensors of a Generation) as one, padded to the longest response of all."""
    tokens, masks, has_eos, *log_probs = zip(*blocks, strict=True)
    T = max(mask.shape[1] for mask in masks)

    def joined(tensors: Sequence[Tensor], padding: float) -> Tensor:
        return torch.cat([F.pad(x, (0, T - x.shape[1]), value=padding) for x in tensors])

    drawn, own = (joined(tensors, 0.0).to(device) for tensors in log_probs)
    return Generation(joined(tokens, eos_id), joined(masks, 0), torch.cat(has_eos), drawn, own)


@torch.no_grad()
def score_in_micro_batches(
    score: Callable[[ResponseBatch], Tensor], batch: ResponseBatch, micro_batch_size: int
) -> Tensor:
    """A no-gradient scorer, (n, ...) per call, on rows of similar length: (N, ...) on every rank."""
    order = shard_chunks(batch.totals, micro_batch_size, batch.groups)
    pieces = [(index, score(batch.rows(index))) for index in order]
    return scatter_rows(pieces, len(batch), batch.tokens.device)


def shard_batch(batch: ResponseBatch, size: int | None = None) -> list[ResponseBatch]:
    """This rank's rows of a batch: in one piece, or in pieces of at most `size` rows of similar length."""
    if size is not None:
        return [batch.rows(rows) for rows in shard_chunks(batch.totals, size)]
    if world() == 1:
        return [batch]
    rows = shard(torch.arange(len(batch)))
    return [batch.rows(rows)] if len(rows) else []
