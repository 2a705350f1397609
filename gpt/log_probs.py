"""Scoring: log-probs, entropy and full-vocabulary KL of response tokens, and nothing else.

Logits are the largest tensor of a language model: (N, T, V). They are formed only at response
positions, in chunks, and when there is more than one chunk each is recomputed in the backward pass,
so that at no time more than one chunk's logits exist. Everything after the logits is float32 at
least, also under autocast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from data.collate import ResponseBatch
from gpt.border import at_least_float32
from gpt.model import GPT
from gpt.ranks import own_chunks, placed

CHUNK_ELEMENTS = 2**24  # logits per chunk: 64 MiB of float32


def kl_from_logits(logits: Tensor, ref_logits: Tensor) -> Tensor:
    """sum_v pi(v) (log pi(v) - log pi_ref(v)) in nats, finite (..., V) and (..., V) -> (...)."""
    log_probs = logits.log_softmax(-1)
    return (log_probs.exp() * (log_probs - ref_logits.log_softmax(-1))).sum(-1)


class TokenScores(NamedTuple):
    """Per response token, 0 at padding."""

    log_probs: Tensor  # (N, T)
    entropy: Tensor  # (N, T), nats


def entropy_from_logits(logits: Tensor) -> Tensor:
    """H = -sum_v p_v log p_v in nats, (..., V) -> (...). Logits of -inf count as probability 0."""
    log_probs = logits.log_softmax(-1)
    # exp(-1e4) is 0 in every dtype: a finite bound changes no value and keeps 0 * -inf out of both
    # passes, whatever factor the gradient arrives with.
    return -(log_probs.exp() * log_probs.clamp(min=-1e4)).sum(-1)


def _score(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, entropy_gradient: bool
) -> Tensor:
    """(M, D) hidden, (V, D) head, (M,) targets -> (M, 2): log-prob and entropy, stacked.

    Unless `entropy_gradient`, no graph is kept for the entropy.
    """
    logits = at_least_float32(F.linear(hidden, weight)) / temperature
    chosen = -F.cross_entropy(logits, targets, reduction="none")
    entropy = entropy_from_logits(logits if entropy_gradient else logits.detach())
    return torch.stack([chosen, entropy], dim=1)


def _chosen(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """As `_score`, the log-prob alone: (M, 1)."""
    logits = at_least_float32(F.linear(hidden, weight)) / temperature
    return -F.cross_entropy(logits, targets, reduction="none")[:, None]


def in_chunks(function: Callable[..., Tensor], rows: int, *inputs: Tensor) -> Tensor:
    """Apply `function` to pieces of at most `rows` rows of the inputs and join the results.

    With several pieces and gradients each is recomputed in the backward pass: its logits are freed
    as soon as its result is known.
    """
    pieces = list(zip(*(tensor.split(max(rows, 1)) for tensor in inputs), strict=True))
    if len(pieces) == 1:
        return function(*pieces[0])
    if torch.is_grad_enabled():
        return torch.cat([checkpoint(function, *piece, use_reentrant=False) for piece in pieces])
    return torch.cat([function(*piece) for piece in pieces])


def response_hidden(model: GPT, batch: ResponseBatch, columns: Tensor) -> Tensor:
    """Hidden states at `columns` (N, T) of the valid response tokens only: (M, D), M = mask.sum()."""
    hidden = model.hidden(batch.tokens)  # (N, S, D); right padding needs no mask
    N, S, D = hidden.shape
    flat = torch.arange(N, device=columns.device)[:, None] * S + columns  # (N, T) into N * S
    return hidden.reshape(N * S, D).index_select(0, flat[batch.response_mask])


def scatter_responses(values: Tensor, mask: Tensor) -> Tensor:
    """(M,) values of the True positions -> (N, T), 0 elsewhere."""
    return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(
        mask, values
    )


def token_log_probs(
    model: GPT,
    batch: ResponseBatch,
    temperature: float = 1.0,
    *,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> Tensor:
    """log pi(y_t | x, y_<t) of each response token, (N, T), 0 at padding.

    Logits are divided by `temperature`, as the sampler's were. Column p_i - 1 + t predicts response
    token t: the first is scored by the last prompt token.
    """
    hidden = response_hidden(model, batch, batch.predicting_columns)  # (M, D)
    targets = batch.response_tokens[batch.response_mask]  # (M,)
    weight = model.wte.weight

    def score(hidden: Tensor, targets: Tensor) -> Tensor:
        return _chosen(hidden, weight, targets, temperature)

    chosen = in_chunks(score, chunk_elements // len(weight), hidden, targets)
    return scatter_responses(chosen[:, 0], batch.response_mask)


def token_scores(
    model: GPT,
    batch: ResponseBatch,
    temperature: float = 1.0,
    *,
    entropy_gradient: bool = False,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> TokenScores:
    """`token_log_probs` and the entropy of the full distribution at each position, both (N, T).

    The entropy is only for the log, unless an entropy bonus asks for its gradient.
    """
    hidden = response_hidden(model, batch, batch.predicting_columns)
    targets = batch.response_tokens[batch.response_mask]
    weight = model.wte.weight

    def score(hidden: Tensor, targets: Tensor) -> Tensor:
        return _score(hidden, weight, targets, temperature, entropy_gradient)

    both = in_chunks(score, chunk_elements // len(weight), hidden, targets)
    return TokenScores(*(scatter_responses(both[:, i], batch.response_mask) for i in range(2)))


def full_kl(
    model: GPT,
    other: GPT,
    batch: ResponseBatch,
    temperature: float = 1.0,
    *,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> Tensor:
    """KL(model || other) over the whole vocabulary at each response position, (N, T), 0 at padding.

    sum_v pi(v) (log pi(v) - log pi_other(v)), exact given the prefix. `other` gets no gradient.
    """
    columns = batch.predicting_columns
    hidden = response_hidden(model, batch, columns)
    with torch.no_grad():
        other_hidden = response_hidden(other, batch, columns)
    weight, other_weight = model.wte.weight, other.wte.weight.detach()

    def divergence(hidden: Tensor, other_hidden: Tensor) -> Tensor:
        logits = at_least_float32(F.linear(hidden, weight)) / temperature
        other_logits = at_least_float32(F.linear(other_hidden, other_weight)) / temperature
        return kl_from_logits(logits, other_logits)[:, None]

    kl = in_chunks(divergence, chunk_elements // len(weight), hidden, other_hidden)
    return scatter_responses(kl[:, 0], batch.response_mask)


def token_scores_and_kl(
    model: GPT,
    other: GPT,
    batch: ResponseBatch,
    temperature: float = 1.0,
    *,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> tuple[TokenScores, Tensor]:
    """`token_scores` and `full_kl` from one forward of `model`: scores (N, T) each, KL (N, T)."""
    columns = batch.predicting_columns
    hidden = response_hidden(model, batch, columns)
    with torch.no_grad():
        other_hidden = response_hidden(other, batch, columns)
    targets = batch.response_tokens[batch.response_mask]
    weight, other_weight = model.wte.weight, other.wte.weight.detach()

    def score(hidden: Tensor, other_hidden: Tensor, targets: Tensor) -> Tensor:
        logits = at_least_float32(F.linear(hidden, weight)) / temperature
        other_logits = at_least_float32(F.linear(other_hidden, other_weight)) / temperature
        chosen = -F.cross_entropy(logits, targets, reduction="none")
        entropy = entropy_from_logits(logits.detach())
        return torch.stack([chosen, entropy, kl_from_logits(logits, other_logits)], dim=1)

    all_three = in_chunks(score, chunk_elements // len(weight), hidden, other_hidden, targets)
    log_probs, entropy, kl = (
        scatter_responses(all_three[:, i], batch.response_mask) for i in range(3)
    )
    return TokenScores(log_probs, entropy), kl


@torch.no_grad()
def score_in_micro_batches(
    score: Callable[[ResponseBatch], Tensor], batch: ResponseBatch, micro_batch_size: int
) -> Tensor:
    """Apply a no-gradient scorer, (n, ...) per call, to rows of similar length and restore the order.

    Of several ranks each scores rows of its own, and all get the whole (N, ...).
    """
    order = own_chunks(batch.prompt_lengths + batch.lengths, micro_batch_size)
    pieces = [(index, score(batch.rows(index))) for index in order]
    return placed(pieces, len(batch), batch.tokens.device)
