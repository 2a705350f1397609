"""Sampling responses for RL: one rollout holds everything that an engine reads of a batch.

Rows are grouped by prompt: rows b * G ... b * G + G - 1 are the G responses to prompt b. Consumers
use the named fields only. Inside, a row is stored contiguously as [prompt, response, padding]
(data/collate.py), which needs no attention mask when it is scored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from data.collate import (
    ResponseBatch,
    epoch_shuffled_indices,
    join_responses,
    length_sorted_chunks,
)
from data.records import PromptRecord
from gpt.common import precision
from gpt.generate import SamplingParams, generate
from gpt.log_probs import score_in_micro_batches, token_log_probs
from gpt.model import GPT
from gpt.tokenizer import Tokenizer


@dataclass(frozen=True)
class Rollout:
    """N = prompts x group_size sampled responses; T = padded response length."""

    records: list[PromptRecord]  # (N,) the prompt of each row
    responses: list[str]  # (N,) decoded, without the EOS
    sequences: ResponseBatch  # the rows as they are scored
    log_probs: Tensor  # (N, T) of the sampler, float32, 0 at padding
    group_size: int

    def __len__(self) -> int:
        return len(self.records)

    @property
    def response_tokens(self) -> Tensor:
        """(N, T) int64."""
        return self.sequences.response_tokens

    @property
    def response_mask(self) -> Tensor:
        """(N, T) bool, True up to and including the first EOS."""
        return self.sequences.response_mask

    @property
    def has_eos(self) -> Tensor:
        """(N,) bool; False: cut off at max_new_tokens."""
        return self.sequences.has_eos

    @property
    def lengths(self) -> Tensor:
        """(N,) int64, response tokens with the EOS."""
        return self.sequences.lengths


def sample_rollout(
    policy: GPT,
    tokenizer: Tokenizer,
    records: Sequence[PromptRecord],
    params: SamplingParams,
    group_size: int,
    generator: torch.Generator | None = None,
) -> Rollout:
    """Sample `group_size` responses to each prompt with the policy as it is now (no gradient)."""
    encoded = [tokenizer.encode(record.prompt) for record in records]
    sampled = generate(
        policy,
        encoded,
        params,
        generator,
        eos_id=tokenizer.eos_id,
        samples_per_prompt=group_size,
    )
    rows = [index for index in range(len(records)) for _ in range(group_size)]
    sequences = join_responses(
        [encoded[index] for index in rows],
        sampled.response_tokens,
        sampled.response_mask,
        sampled.has_eos,
    )
    return Rollout(
        records=[records[index] for index in rows],
        responses=[tokenizer.decode(tokens) for tokens in sampled.token_lists()],
        sequences=sequences,
        log_probs=sampled.log_probs,
        group_size=group_size,
    )


def prompt_batch(
    prompts: Sequence[PromptRecord], step: int, batch_size: int, seed: int
) -> list[PromptRecord]:
    """The prompts of 0-based `step`, in shuffled epochs: a function of its arguments alone."""
    index = epoch_shuffled_indices(step, batch_size, len(prompts), seed)
    return [prompts[i] for i in index.tolist()]


def minibatches(
    rows: int, count: int, generator: torch.Generator, group_size: int = 1
) -> list[Tensor]:
    """Shuffle the row indices into `count` minibatches, groups of `group_size` kept together.

    Sizes differ by at most one group when the groups do not divide evenly.
    """
    groups = torch.randperm(rows // group_size, generator=generator)
    within = torch.arange(group_size)
    return [
        (chunk[:, None] * group_size + within).flatten()
        for chunk in groups.tensor_split(min(count, len(groups)))
    ]


def micro_batches(
    sequences: ResponseBatch, rows: Tensor, size: int
) -> Iterator[tuple[Tensor, ResponseBatch]]:
    """Split a minibatch's rows into forwards of at most `size` rows of similar length.

    Yields (row indices, their sequences). With losses divided by the whole minibatch's denominator
    the accumulated gradient is the minibatch's.
    """
    totals = sequences.prompt_lengths.cpu() + sequences.lengths.cpu()
    for chunk in length_sorted_chunks(totals[rows], size):
        yield rows[chunk], sequences.rows(rows[chunk])


class ScoringConfig(Protocol):
    """The fields of an engine's config that decide how its models are scored."""

    @property
    def temperature(self) -> float: ...

    @property
    def micro_batch_size(self) -> int: ...

    @property
    def precision(self) -> str: ...


@torch.no_grad()
def rollout_log_probs(model: GPT, rollout: Rollout, config: ScoringConfig) -> Tensor:
    """log-probs (N, T) of the rollout's tokens under `model`, at the sampler's temperature."""
    with precision(model.device, config.precision):
        return score_in_micro_batches(
            lambda batch: token_log_probs(model, batch, config.temperature),
            rollout.sequences,
            config.micro_batch_size,
        )


def old_policy_log_probs(policy: GPT, rollout: Rollout, config: ScoringConfig) -> Tensor:
    """log-probs (N, T) under the policy that sampled, before its first update.

    In float32 they are the sampler's own (equal to a new forward within 1e-5, which a test
    checks); in bfloat16 the cached decode and a whole forward round differently, so the rollout is
    scored again.
    """
    if config.precision == "float32":
        return rollout.log_probs
    return rollout_log_probs(policy, rollout, config)
