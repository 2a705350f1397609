"""Sampling responses for RL: one rollout holds everything that an engine reads of a batch.

Rows are grouped by prompt: rows b * G ... b * G + G - 1 are the G responses to prompt b. Consumers
use the named fields only. Inside, a row is stored contiguously as [prompt, response, padding]
(data/collate.py), which needs no attention mask when it is scored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from data.collate import ResponseBatch, epoch_shuffled_indices, join_responses
from data.records import PromptRecord
from gpt.generate import Mixture, SamplingParams
from gpt.log_probs import token_log_probs
from gpt.model import GPT
from gpt.ranks import sample, score_in_micro_batches
from gpt.tokenizer import Tokenizer
from harness.device import on_device, precision
from harness.ranks.collectives import scatter_rows, shard_chunks


@dataclass(frozen=True)
class Rollout:
    """N = prompts x group_size sampled responses; T = padded response length."""

    records: list[PromptRecord]  # (N,) the prompt of each row
    responses: list[str]  # (N,) decoded, without the EOS
    sequences: ResponseBatch  # the rows as they are scored
    log_probs: Tensor  # (N, T) of the policy that sampled, float32, 0 at padding
    group_size: int
    # What the reward has measured: counts as int, shares and means as float.
    reward_metrics: dict[str, float] = field(default_factory=dict)
    # What each of several rewards gave, (N,) by its name; NaN where it does not judge a row.
    reward_columns: dict[str, Tensor] = field(default_factory=dict)

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

    @property
    def tokens(self) -> int:
        """All response tokens together, without asking the device."""
        return int(self.sequences.sizes[:, 1].sum())

    def tokens_of(self, rows: Tensor) -> int:
        """The response tokens of these rows (int64 indices on the CPU) together."""
        return sum(self.sequences.sizes[rows, 1].tolist())


AnUpdate = TypeVar("AnUpdate", bound="Update")


@dataclass(frozen=True)
class Update:
    """What the policy learns from: constants during the updates, of a rollout or some of its rows."""

    old: Tensor  # (N, T), log pi_old
    ref: Tensor | None  # (N, T), log pi_ref; None: no KL is asked for
    advantages: Tensor  # (N, T) or (N, 1)
    mask: Tensor  # (N, T) bool, the tokens that take part

    def rows(self: AnUpdate, index: Tensor) -> AnUpdate:
        """The same of some rows."""
        tensors = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(self, **{name: x[index] for name, x in tensors.items() if x is not None})


@dataclass(frozen=True)
class CriticUpdate(Update):
    """What policy and critic learn from, (N, T) each."""

    old_values: Tensor
    returns: Tensor
    td_errors: Tensor  # delta_t = r_t + gamma V_old(t+1) - V_old(t), for the token log


def sample_rollout(
    policy: GPT,
    tokenizer: Tokenizer,
    records: Sequence[PromptRecord],
    params: SamplingParams,
    group_size: int,
    generator: torch.Generator | None = None,
    *,
    mixture: Mixture | None = None,
) -> Rollout:
    """Sample `group_size` responses to each prompt with the policy as it is now (no gradient).

    With a `mixture` the tokens are drawn from both models; the log-probs are the policy's own.
    """
    encoded = [tokenizer.encode_prompt(record.prompt) for record in records]
    sampled = sample(
        policy, tokenizer, encoded, params, generator,
        samples_per_prompt=group_size, mixture=mixture,
    )  # fmt: skip
    rows = [index for index in range(len(records)) for _ in range(group_size)]
    sequences = join_responses(
        [encoded[index] for index in rows],
        sampled.response_tokens,
        sampled.response_mask,
        sampled.has_eos,
    ).to(policy.device)
    return Rollout(
        records=[records[index] for index in rows],
        responses=[tokenizer.decode(tokens) for tokens in sampled.token_lists()],
        sequences=sequences,
        log_probs=sampled.model_log_probs,
        group_size=group_size,
    )


def select_rows(rollout: Rollout, rows: Tensor) -> Rollout:
    """These rows (int64 indices) of a rollout, groups whole."""
    chosen = rows.tolist()
    return Rollout(
        records=[rollout.records[row] for row in chosen],
        responses=[rollout.responses[row] for row in chosen],
        sequences=rollout.sequences.rows(rows),
        log_probs=rollout.log_probs[rows.to(rollout.log_probs.device)],
        group_size=rollout.group_size,
    )


def prompt_batch(
    prompts: Sequence[PromptRecord], step: int, batch_size: int, seed: int
) -> list[PromptRecord]:
    """The prompts of 0-based `step`, in shuffled epochs: a function of its arguments alone."""
    index = epoch_shuffled_indices(step, batch_size, len(prompts), seed)
    return [prompts[i] for i in index.tolist()]


def epoch_minibatches(
    rows: int, minibatches: int, epochs: int, generator: torch.Generator, group_size: int = 1
) -> list[Tensor]:
    """Row indices of every optimizer step of a batch, shuffled anew each epoch.

    Groups stay whole, and the sizes of an epoch's minibatches are at most one group apart.
    """
    within = torch.arange(group_size)
    steps: list[Tensor] = []
    for _ in range(epochs):
        groups = torch.randperm(rows // group_size, generator=generator)
        chunks = groups.tensor_split(min(minibatches, len(groups)))
        steps += [(chunk[:, None] * group_size + within).flatten() for chunk in chunks]
    return steps


def micro_batches(
    sequences: ResponseBatch, rows: Tensor, size: int, group_size: int = 1
) -> Iterator[tuple[Tensor, ResponseBatch]]:
    """The forwards of `row_chunks`: yields (row indices on the sequences' device, their sequences)."""
    for chunk in row_chunks(sequences, rows, size, group_size):
        yield on_device(chunk, sequences.tokens.device), sequences.rows(chunk)


def row_chunks(
    sequences: ResponseBatch, rows: Tensor, size: int, group_size: int = 1
) -> Iterator[Tensor]:
    """Split a minibatch's rows into parts of at most `size` rows of similar length, on the CPU.

    Of several ranks each gets rows of its own, or none. Rows of one prompt stay together where they
    fit, so that it is read once; groups stay whole, also above `size`, for a loss that compares.
    """
    prompts = sequences.groups if group_size == 1 else None
    prompts = None if prompts is None else prompts[rows]
    longest = sequences.totals[rows].view(-1, group_size).amax(1)
    within = torch.arange(group_size)
    for groups in shard_chunks(longest, max(size // group_size, 1), prompts):
        yield rows[(groups[:, None] * group_size + within).flatten()]


class ScoringConfig(Protocol):
    """The fields of an engine's config that decide how its models are scored."""

    @property
    def temperature(self) -> float: ...

    @property
    def micro_batch_size(self) -> int: ...

    @property
    def precision(self) -> str: ...


def rollout_log_probs(model: GPT, rollout: Rollout, config: ScoringConfig) -> Tensor:
    """log-probs (N, T) of the rollout's tokens under `model`, without a gradient."""
    with precision(model.device, config.precision):
        return score_in_micro_batches(
            lambda batch: token_log_probs(model, batch, config.temperature),
            rollout.sequences,
            config.micro_batch_size,
        )


@torch.no_grad()
def old_policy_log_probs(
    policy: GPT,
    rollout: Rollout,
    config: ScoringConfig,
    forwards: Iterable[tuple[Tensor, ResponseBatch]],
) -> Tensor:
    """log-probs (N, T) under the policy that sampled, before its first update.

    In float32 they are the sampler's own, equal to a new forward within 1e-5. In bfloat16 a product
    rounds differently where it has another number of rows, by up to 0.2 nats a token in 30 layers: so
    the rollout is scored in the `forwards` of its first pass (`micro_batches`): the first ratio is 1.
    """
    if config.precision == "float32":
        return rollout.log_probs
    with precision(policy.device, config.precision):
        pieces = [
            (part, token_log_probs(policy, batch, config.temperature)) for part, batch in forwards
        ]
    return scatter_rows(pieces, len(rollout), policy.device)
