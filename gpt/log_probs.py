"""Scoring: log-probs, entropy and full-vocabulary KL of response tokens, and nothing else.

Logits are the largest tensor of a language model: (N, T, V). They are formed only at response
positions, in chunks, and recomputed in the backward pass if there is more than one: at no time is more
than one chunk's there. Everything after them is float32 at least, also under autocast (gpt/model.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from data.collate import ResponseBatch
from gpt.model import GPT, head_product
from harness.device import float32_heads, rounds_factors
from harness.tensors import at_least_float32

CHUNK_ELEMENTS = 2**24  # logits per chunk: 64 MiB of float32


def kl_from_logits(logits: Tensor, ref_logits: Tensor) -> Tensor:
    """sum_v pi(v) (log pi(v) - log pi_ref(v)) in nats, finite (..., V) and (..., V) -> (...)."""
    log_probs = logits.log_softmax(-1)
    return (log_probs.exp() * (log_probs - ref_logits.log_softmax(-1))).sum(-1)


class TokenScores(NamedTuple):
    """Per response token, 0 at padding."""

    log_probs: Tensor  # (N, T)
    entropy: Tensor  # (N, T), nats


def entropy_of(log_probs: Tensor) -> Tensor:
    """H = -sum_v p_v log p_v in nats, (..., V) -> (...); a log-prob of -inf counts as probability 0."""
    # exp(-1e4) is 0 in every dtype: a finite bound changes no value and keeps 0 * -inf out of both
    # passes, whatever factor the gradient arrives with.
    return -(log_probs.exp() * log_probs.clamp(min=-1e4)).sum(-1)


def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """The head: (M, D) and (V, D) -> (M, V), divided by the temperature."""
    logits = head_product(hidden, weight)
    return logits if temperature == 1 else logits / temperature


def _score(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float,
    entropy_gradient: bool = False,
) -> Tensor:
    """(M, D) hidden, (V, D) head, (M,) targets -> (M, 2): log-prob and entropy, with a graph if asked."""
    log_probs = _logits(hidden, weight, temperature).log_softmax(-1)  # (M, V)
    chosen = log_probs.gather(1, targets[:, None])[:, 0]
    entropy = entropy_of(log_probs if entropy_gradient else log_probs.detach())
    return torch.stack([chosen, entropy], dim=1)


def _chosen(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """As `_score`, the log-prob alone: (M, 1)."""
    log_probs = _logits(hidden, weight, temperature).log_softmax(-1)  # (M, V)
    return log_probs.gather(1, targets[:, None])


def rows_of_chunk(weight: Tensor) -> int:
    """How many positions' logits, by a head (V, D), are formed at once."""
    return max(CHUNK_ELEMENTS // len(weight), 1)


def in_chunks(function: Callable[..., Tensor], rows: int, *inputs: Tensor) -> Tensor:
    """Apply `function` to pieces of at most `rows` rows of the inputs and join the results.

    With several pieces and gradients each is recomputed in the backward pass, which frees its logits.
    """
    pieces = list(zip(*(tensor.split(rows) for tensor in inputs), strict=True))
    if len(pieces) == 1:
        return function(*pieces[0])
    if torch.is_grad_enabled():
        return torch.cat([checkpoint(function, *piece, use_reentrant=False) for piece in pieces])
    return torch.cat([function(*piece) for piece in pieces])


Score = Callable[[Tensor, Tensor, Tensor, float], Tensor]


class ChunkedScore(torch.autograd.Function):
    """`score` (`_score` or `_chosen`) in chunks of `rows` rows, its gradient written out.

    Only the log-prob, its first column, has one. The backward pass forms each chunk's logits z once
    more and keeps no graph of them: d log pi(y) / dz = onehot(y) - softmax(z).
    """

    @staticmethod
    def forward(
        ctx: Any,
        score: Score,
        rows: int,
        temperature: float,
        hidden: Tensor,  # (M, D)
        weight: Tensor,  # (V, D)
        targets: Tensor,  # (M,)
    ) -> Tensor:
        """`score` of all rows, (M, 1) or (M, 2)."""
        ctx.save_for_backward(hidden, weight, targets)
        ctx.rows, ctx.temperature = rows, temperature
        ctx.rounded = rounds_factors(hidden.device)
        pieces = zip(hidden.split(rows), targets.split(rows), strict=True)
        return torch.cat([score(piece, weight, target, temperature) for piece, target in pieces])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of hidden and weight from that of the scores, (M, 1) or (M, 2)."""
        hidden, weight, targets = ctx.saved_tensors  # float32 at least, as in the forward pass
        grad = grad[:, :1] / ctx.temperature  # (M, 1)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = None  # of a frozen head, under adapters
        if ctx.needs_input_grad[4]:
            grad_weight = torch.zeros_like(weight)  # a sum of many chunks
        with float32_heads(hidden.device, ctx.rounded):
            for start in range(0, len(hidden), ctx.rows):
                chunk = slice(start, start + ctx.rows)
                logits = _logits(hidden[chunk], weight, ctx.temperature)
                change = logits.softmax(-1).mul_(-grad[chunk])
                change.scatter_add_(1, targets[chunk, None], grad[chunk])
                grad_hidden[chunk] = change @ weight
                if grad_weight is not None:
                    grad_weight.addmm_(change.T, hidden[chunk])  # no third matrix of this size
        return None, None, None, grad_hidden, grad_weight, None


def score_in_chunks(
    score: Score, temperature: float, hidden: Tensor, weight: Tensor, targets: Tensor
) -> Tensor:
    """`_score` or `_chosen` of all rows, with at most `CHUNK_ELEMENTS` logits at a time."""
    rows = rows_of_chunk(weight)
    if len(hidden) <= rows or not torch.is_grad_enabled():
        return in_chunks(lambda h, y: score(h, weight, y, temperature), rows, hidden, targets)
    hidden, weight = at_least_float32(hidden), at_least_float32(weight)
    return cast(Tensor, ChunkedScore.apply(score, rows, temperature, hidden, weight, targets))


def response_hidden(model: GPT, batch: ResponseBatch, columns: Tensor) -> Tensor:
    """Hidden states at `columns` (N, T) of the valid response tokens only: (M, D), M = mask.sum().

    `hidden_of_rows`, but a prompt that rows share is read once, but for dropout: rows draw their own.
    """
    shared = batch.shared
    if shared is None or (model.training and model.config.dropout):
        return hidden_of_rows(model, batch, columns)
    hidden = model.hidden(shared.tokens, shared)[0]
    return hidden.index_select(0, batch.of_valid(shared.places.gather(1, columns)))


def hidden_of_rows(model: GPT, batch: ResponseBatch, columns: Tensor) -> Tensor:
    """The plain twin of `response_hidden`, which reads each row's prompt."""
    hidden = model.hidden(batch.tokens)  # (N, S, D); right padding needs no mask
    N, S, D = hidden.shape
    flat = torch.arange(N, device=columns.device)[:, None] * S + columns  # (N, T) into N * S
    return hidden.reshape(N * S, D).index_select(0, batch.of_valid(flat))


def scatter_responses(values: Tensor, batch: ResponseBatch) -> Tensor:
    """(M,) values of the valid positions -> (N, T), 0 elsewhere; masked_scatter would wait for a GPU."""
    flat = values.new_zeros(batch.response_mask.numel()).index_copy(0, batch.valid, values)
    return flat.view(batch.response_mask.shape)


def token_log_probs(model: GPT, batch: ResponseBatch, temperature: float = 1.0) -> Tensor:
    """log pi(y_t | x, y_<t) of each response token, (N, T), 0 at padding.

    Logits are divided by `temperature`, as the sampler's were. Column p_i - 1 + t predicts response
    token t: the first is scored by the last prompt token.
    """
    hidden = response_hidden(model, batch, batch.predicting_columns)  # (M, D)
    targets = batch.of_valid(batch.response_tokens)  # (M,)
    weight = model.head_weight
    chosen = score_in_chunks(_chosen, temperature, hidden, weight, targets)
    return scatter_responses(chosen[:, 0], batch)


def token_scores(
    model: GPT, batch: ResponseBatch, temperature: float = 1.0, *, entropy_gradient: bool = False
) -> TokenScores:
    """`token_log_probs` and the entropy of the full distribution, (N, T), with a graph if asked."""
    hidden = response_hidden(model, batch, batch.predicting_columns)
    targets = batch.of_valid(batch.response_tokens)
    weight = model.head_weight

    def score(hidden: Tensor, targets: Tensor) -> Tensor:
        return _score(hidden, weight, targets, temperature, entropy_gradient=True)

    if entropy_gradient:
        both = in_chunks(score, rows_of_chunk(weight), hidden, targets)
    else:
        both = score_in_chunks(_score, temperature, hidden, weight, targets)
    return TokenScores(*(scatter_responses(both[:, i], batch) for i in range(2)))


def compare_logits(
    compare: Callable[..., Tensor],
    model: GPT,
    other: GPT,
    batch: ResponseBatch,
    temperature: float,
    *more: Tensor,
    other_batch: ResponseBatch | None = None,
) -> Tensor:
    """`compare` of both models' logits (m, V) and of `more` (m,), in chunks: (M, k).

    `other` gets no gradient. It may read the same responses behind other prompts, `other_batch`.
    """
    hidden = response_hidden(model, batch, batch.predicting_columns)
    read = batch if other_batch is None else other_batch
    with torch.no_grad():
        other_hidden = response_hidden(other, read, read.predicting_columns)
    weight, other_weight = model.head_weight, other.head_weight.detach()

    def of_piece(hidden: Tensor, other_hidden: Tensor, *more: Tensor) -> Tensor:
        logits = _logits(hidden, weight, temperature)
        return compare(logits, _logits(other_hidden, other_weight, temperature), *more)

    return in_chunks(of_piece, rows_of_chunk(weight), hidden, other_hidden, *more)


def full_kl(model: GPT, other: GPT, batch: ResponseBatch, temperature: float = 1.0) -> Tensor:
    """KL(model || other) over the whole vocabulary at each response position, (N, T), 0 at padding.

    sum_v pi(v) (log pi(v) - log pi_other(v)), exact given the prefix. `other` gets no gradient.
    """

    def divergence(logits: Tensor, other_logits: Tensor) -> Tensor:
        return kl_from_logits(logits, other_logits)[:, None]

    kl = compare_logits(divergence, model, other, batch, temperature)
    return scatter_responses(kl[:, 0], batch)


def forward_kl(model: GPT, other: GPT, batch: ResponseBatch, temperature: float = 1.0) -> Tensor:
    """KL(other || model) at each response position, (N, T), 0 at padding; `other` gets no gradient.

    Of distillation (Hinton et al. 2015, arXiv:1503.02531), `other` being the teacher: on responses
    that it wrote, the sum over a response is the KL of whole responses in expectation, and so is its
    gradient, because the text does not depend on the model.
    """

    def divergence(logits: Tensor, other_logits: Tensor) -> Tensor:
        return kl_from_logits(other_logits, logits)[:, None]

    kl = compare_logits(divergence, model, other, batch, temperature)
    return scatter_responses(kl[:, 0], batch)


def token_scores_and_kl(
    model: GPT,
    other: GPT,
    batch: ResponseBatch,
    temperature: float = 1.0,
    *,
    other_batch: ResponseBatch | None = None,
) -> tuple[TokenScores, Tensor]:
    """`token_scores` and `full_kl` from one forward of `model`: scores (N, T) each, KL (N, T).

    `other` may read the same responses behind other prompts, `other_batch`.
    """

    def score(logits: Tensor, other_logits: Tensor, targets: Tensor) -> Tensor:
        chosen = -F.cross_entropy(logits, targets, reduction="none")
        entropy = entropy_of(logits.detach().log_softmax(-1))
        return torch.stack([chosen, entropy, kl_from_logits(logits, other_logits)], dim=1)

    targets = batch.of_valid(batch.response_tokens)
    all_three = compare_logits(
        score, model, other, batch, temperature, targets, other_batch=other_batch
    )
    log_probs, entropy, kl = (scatter_responses(all_three[:, i], batch) for i in range(3))
    return TokenScores(log_probs, entropy), kl
