"""Padding and every mask, in one place.

nano/gpt.py: collate is the second of the two layouts below, in ten lines.

GPT-2 has one special token, so its padding id is its EOS id and `ids != pad` would drop the EOS from
every loss: the policy would never learn to stop. Masks here come from lengths and from the first-EOS
rule, never from comparing ids with the padding. All masks are bool; True means "takes part".

Three layouts. Prompts to sample from are left-padded, so that all rows write their next token into one
column. Whole sequences to score are contiguous and right-padded: [prompt, response, padding] from
column 0. No token attends to the padding after it, so scoring needs no attention mask. Where rows share
their prompts, `SharedPrompts` puts every prompt once and all responses into one row without padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from torch import Tensor

from harness.device import on_device


def left_pad(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Token lists -> (tokens (N, P) int64, mask (N, P) bool) with padding before the tokens."""
    tokens, mask = right_pad([row[::-1] for row in rows], pad_id)
    return tokens.flip(1), mask.flip(1)


def right_pad(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Token lists -> (tokens (N, S) int64, mask (N, S) bool) with padding after the tokens."""
    width = max((len(row) for row in rows), default=0)
    tokens = torch.full((len(rows), width), pad_id, dtype=torch.long)
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = torch.as_tensor(row, dtype=torch.long)
    return tokens, torch.arange(width)[None, :] < lengths[:, None]


def first_eos_mask(response_tokens: Tensor, eos_id: int) -> tuple[Tensor, Tensor]:
    """The response mask of sampled tokens: every token up to and including the first EOS.

    response_tokens (N, T) int64 -> (response_mask (N, T) bool, has_eos (N,) bool). A row without EOS
    was cut off at T tokens; all of it takes part.
    """
    is_eos = response_tokens == eos_id
    before = is_eos.cumsum(1) - is_eos.long()  # EOS tokens strictly before column t
    mask = before == 0
    return mask, (is_eos & mask).any(1)


WORTH_SHARING = 0.1  # least share of a batch's tokens that `SharedPrompts` must save


@dataclass(frozen=True)
class SharedPrompts:
    """A batch as one row of M tokens without padding: each of U prompts once, and N responses.

    A response attends to its own prompt and to itself. Values at padding mean nothing.
    """

    tokens: Tensor  # (1, M) int64
    positions: Tensor  # (1, M) int64: the columns that they have in `ResponseBatch.tokens`
    places: Tensor  # (N, S) int64: where in the one row the token of each of those columns stands
    prompts: Tensor  # (U, P) int64: where the prompts' tokens stand
    responses: Tensor  # (N, T) int64: where the responses' tokens stand
    mask: Tensor  # (N, 1, T, S) bool: the columns that each response token sees
    order: Tensor  # (M,) int64: where in the flattened (U, P) and (N, T) behind it each token is


@dataclass(frozen=True)
class ResponseBatch:
    """Rows of [prompt, response] ready to be scored. N rows, T = padded response length.

    Every RL tensor has only the response's T columns; `tokens` is how the rows are stored.
    """

    tokens: Tensor  # (N, S) int64: prompt, response and padding, contiguous from column 0
    prompt_lengths: Tensor  # (N,) int64, at least 1
    response_tokens: Tensor  # (N, T) int64, padded
    response_mask: Tensor  # (N, T) bool, True up to and including the first EOS
    has_eos: Tensor  # (N,) bool; False: the response was cut off

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def lengths(self) -> Tensor:
        """(N,) int64: response tokens, the EOS included."""
        return self.response_mask.sum(1)

    @property
    def response_columns(self) -> Tensor:
        """(N, T) int64: the column of `tokens` that holds response token t (clamped at padding)."""
        steps = torch.arange(self.response_tokens.shape[1], device=self.tokens.device)
        columns = self.prompt_lengths[:, None] + steps[None, :]
        return columns.clamp(max=self.tokens.shape[1] - 1)

    @property
    def predicting_columns(self) -> Tensor:
        """(N, T) int64: the column whose logits predict response token t, one before it."""
        steps = torch.arange(self.response_tokens.shape[1], device=self.tokens.device)
        columns = self.prompt_lengths[:, None] - 1 + steps[None, :]
        return columns.clamp(max=self.tokens.shape[1] - 1)

    @cached_property
    def sizes(self) -> Tensor:
        """(N, 2) int64 on the CPU: the tokens of each row's prompt and response.

        They are read from a GPU once: `rows` and `to` hand them on.
        """
        return torch.stack([self.prompt_lengths, self.lengths], dim=1).cpu()

    @property
    def totals(self) -> Tensor:
        """(N,) int64 on the CPU: all tokens of each row."""
        return self.sizes.sum(1)

    @cached_property
    def prompts(self) -> Tensor:
        """(N,) int64 on the CPU: the number of each row's prompt; equal prompts have equal numbers."""
        numbers: dict[tuple[int, ...], int] = {}
        rows = zip(self.tokens.tolist(), self.sizes[:, 0].tolist(), strict=True)
        keys = [tuple(row[:length]) for row, length in rows]
        return torch.tensor([numbers.setdefault(key, len(numbers)) for key in keys])

    @property
    def first_rows(self) -> Tensor:
        """(N,) int64 on the CPU: the first row with the same prompt."""
        rows: dict[int, int] = {}
        return torch.tensor([rows.setdefault(n, i) for i, n in enumerate(self.prompts.tolist())])

    @property
    def groups(self) -> Tensor | None:
        """`prompts`, if reading each prompt only once saves enough (`WORTH_SHARING`), else None."""
        again = self.first_rows != torch.arange(len(self))
        saved = self.sizes[again, 0].sum()
        return self.prompts if saved > WORTH_SHARING * self.totals.sum() else None

    @cached_property
    def shared(self) -> SharedPrompts | None:
        """The layout that reads every prompt only once, or None where that saves too little."""
        if self.groups is None:
            return None
        prompt, response = self.sizes.T
        first = self.first_rows
        is_first = first == torch.arange(len(self))
        columns = torch.arange(self.tokens.shape[1])  # (S,)
        in_prompt = columns < prompt[:, None]  # (N, S)
        kept = (columns < self.totals[:, None]) & (is_first[:, None] | ~in_prompt)
        places = (kept.flatten().cumsum(0) - 1).view(kept.shape)
        prompts = places[is_first, : int(prompt.max())]  # (U, P)
        steps = torch.arange(int(response.max()))
        at = prompt[:, None] + steps  # (N, T), the columns of the responses
        responses = places.gather(1, at.clamp(max=len(columns) - 1))
        order = torch.empty(int(kept.sum()), dtype=torch.long)
        real = [in_prompt[is_first, : prompts.shape[1]], steps < response[:, None]]
        flat = torch.cat([x.flatten() for x in real]).nonzero()[:, 0]
        order[torch.cat([prompts.flatten(), responses.flatten()])[flat]] = flat
        layout = (
            columns.expand(kept.shape)[kept][None],
            torch.where(in_prompt, places[first], places),
            prompts,
            responses,
            (columns <= at[:, :, None])[:, None],
            order,
        )
        device = self.tokens.device
        index = on_device(kept.flatten().nonzero()[:, 0], device)
        tokens = self.tokens.flatten().index_select(0, index)[None]
        return SharedPrompts(tokens, *(on_device(x, device) for x in layout))

    @cached_property
    def valid(self) -> Tensor:
        """(M,) int64: the positions of the M response tokens in the flattened (N, T)."""
        lengths = self.sizes[:, 1]
        row = torch.arange(len(lengths)).repeat_interleave(lengths)
        before = (lengths.cumsum(0) - lengths)[row]  # tokens of earlier rows
        width = self.response_mask.shape[1]
        return on_device(row * width + torch.arange(len(row)) - before, self.tokens.device)

    def of_valid(self, values: Tensor) -> Tensor:
        """`values` (N, T) of the response tokens, (M,)."""
        return values.flatten().index_select(0, self.valid)

    def rows(self, index: Tensor) -> ResponseBatch:
        """These rows only (an index, best on the CPU), without columns of padding alone; T is kept."""
        here = index.cpu()
        sizes, prompts = self.sizes[here], self.prompts[here]
        index = on_device(index, self.tokens.device)
        batch = replace(self, **{f.name: getattr(self, f.name)[index] for f in fields(self)})
        longest = max(sizes.sum(1).tolist(), default=1)
        return replace(batch, tokens=batch.tokens[:, :longest])._knowing(sizes, prompts)

    def to(self, device: torch.device | str) -> ResponseBatch:
        """The same batch on this device."""
        device = torch.device(device)
        parts = {f.name: on_device(getattr(self, f.name), device) for f in fields(self)}
        copy = replace(self, **parts)
        return copy._knowing(self.sizes, self.prompts)

    def _knowing(self, sizes: Tensor, prompts: Tensor) -> ResponseBatch:
        self.__dict__.update(sizes=sizes, prompts=prompts)
        return self


def join_responses(
    prompts: Sequence[Sequence[int]],
    response_tokens: Tensor,
    response_mask: Tensor,
    has_eos: Tensor,
) -> ResponseBatch:
    """Put each row's prompt and response next to each other (right-padded with 0).

    response_tokens, response_mask: (N, T); has_eos: (N,). Values at padding are never read.
    """
    if len(prompts) != len(response_tokens):
        raise ValueError(
            f"{len(prompts)} prompts but {len(response_tokens)} responses: give one prompt per row"
        )
    if any(len(prompt) == 0 for prompt in prompts):
        raise ValueError("an empty prompt has no token that predicts the response: give it one")
    device = response_tokens.device
    prompt_lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    prompt_tokens = torch.tensor([token for prompt in prompts for token in prompt], device=device)
    totals = prompt_lengths + response_mask.sum(1)
    tokens = torch.zeros(len(prompts), int(totals.max()), dtype=torch.long, device=device)
    columns = torch.arange(tokens.shape[1], device=device)[None, :]
    tokens[columns < prompt_lengths[:, None]] = prompt_tokens
    in_response = (columns >= prompt_lengths[:, None]) & (columns < totals[:, None])
    tokens[in_response] = response_tokens[response_mask]
    return ResponseBatch(tokens, prompt_lengths, response_tokens, response_mask, has_eos)


def collate_responses(
    prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], eos_id: int
) -> ResponseBatch:
    """Token lists of prompts and given responses, up to their first EOS -> ResponseBatch on the CPU."""
    response_tokens, present = right_pad(responses, 0)
    up_to_eos, _ = first_eos_mask(response_tokens, eos_id)
    mask = present & up_to_eos  # an EOS that is only padding stands behind all that is present
    has_eos = ((response_tokens == eos_id) & mask).any(1)
    return join_responses(prompts, response_tokens, mask, has_eos)


def collate_documents(rows: Sequence[Sequence[int]]) -> ResponseBatch:
    """Token lists to be modelled whole: the first token is given, all others are predicted."""
    tokens, mask = right_pad([row[1:] for row in rows], 0)
    return join_responses(
        [row[:1] for row in rows], tokens, mask, torch.zeros(len(rows), dtype=torch.bool)
    )


def epoch_shuffled_indices(step: int, batch_size: int, count: int, seed: int) -> Tensor:
    """The `batch_size` indices below `count` that 0-based `step` visits, (batch_size,) int64.

    Every epoch visits each index once, in another order, so a resumed run needs no iterator state.
    """
    positions = torch.arange(step * batch_size, (step + 1) * batch_size)
    epochs = positions // count
    indices = torch.empty_like(positions)
    for epoch in epochs.unique().tolist():
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        order = torch.randperm(count, generator=generator)
        here = epochs == epoch
        indices[here] = order[positions[here] % count]
    return indices
