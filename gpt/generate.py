"""Sampling from a GPT: a preallocated KV cache, per-row stop at EOS, and the sampler's log-probs.

nano/gpt.py: sample is the same in ten lines, without cache, truncation and teacher.

Prompts are left-padded so that all rows write their next token into the same column. Random numbers
are drawn up front, one per row and step, and a token is found by inverting the cumulative
distribution: a row's sample depends on its own numbers alone, whichever rows are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from data.collate import first_eos_mask, left_pad
from gpt.model import GPT
from harness.device import on_device
from harness.tensors import at_least_float32

CHAT_TEMPERATURE = 0.7  # at 1 much of what a small chat model writes is noise


def temperature_of_use(is_chat: bool, trained: float = 1.0) -> float:
    """The tau of answers that people read, where none is named: that of training, less for a chat model."""
    return min(trained, CHAT_TEMPERATURE) if is_chat else trained


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn, shared by the sampler and the scorer (the same temperature in both).

    RL rollouts use the full distribution (top_k=0, top_p=1): a truncated sampler is not the
    policy that the ratios and the KL describe.
    """

    temperature: float = 1.0  # tau: logits are divided by it
    top_k: int = 0  # keep the k most likely tokens; 0 = all
    top_p: float = 1.0  # keep the likeliest, as few as have this probability (arXiv:1904.09751)
    greedy: bool = False
    max_new_tokens: int = 64

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(
                f"temperature={self.temperature} must be above 0; use greedy=True for the likeliest"
            )
        if not (0 < self.top_p <= 1 and self.top_k >= 0):
            raise ValueError(
                f"top_k={self.top_k}, top_p={self.top_p}: use top_k >= 0 and top_p in (0, 1]"
            )
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={self.max_new_tokens} must be at least 1")


@dataclass(frozen=True)
class Generation:
    """Sampled responses. N rows, T = the longest response in the batch.

    Tokens, mask and has_eos are on the CPU, log-probs on the model's device.
    """

    response_tokens: Tensor  # (N, T) int64; what stands at padding means nothing
    response_mask: Tensor  # (N, T) bool, True up to and including the first EOS
    has_eos: Tensor  # (N,) bool; False: cut off at max_new_tokens
    log_probs: Tensor  # (N, T) float32 at least, of each token as it was drawn
    # (N, T) under the model alone: another distribution only if a teacher took part in the drawing.
    model_log_probs: Tensor

    def token_lists(self) -> list[list[int]]:
        """Each row's tokens, the EOS included."""
        rows = zip(self.response_tokens, self.response_mask, strict=True)
        return [row[keep].tolist() for row, keep in rows]


@dataclass(frozen=True)
class Mixture:
    """A teacher that takes part in drawing each token (`mixed_logits`)."""

    teacher: GPT
    share: float  # alpha, in [0, 1); 0 is the model alone

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise ValueError(f"teacher_share={self.share} must be in [0, 1)")


def truncate_logits(logits: Tensor, params: SamplingParams) -> Tensor:
    """Set the logits of tokens that top-k or top-p exclude to -inf. (N, V) -> (N, V)."""
    if params.top_k > 0:
        kth = logits.topk(min(params.top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < kth, float("-inf"))
    if params.top_p < 1:
        ordered, order = logits.sort(descending=True)
        probs = ordered.softmax(-1)
        before = probs.cumsum(1) - probs  # probability of strictly likelier tokens
        ordered = ordered.masked_fill(before >= params.top_p, float("-inf"))
        logits = torch.empty_like(logits).scatter_(1, order, ordered)
    return logits


def inverse_cdf(probs: Tensor, uniforms: Tensor) -> Tensor:
    """(N, 1): where the running sum of probs (N, V) passes the uniform (N,), scaled by the total."""
    cumulative = probs.cumsum(1)  # (N, V)
    # Scaled by the total, because a float32 sum of many probabilities is not exactly 1.
    target = uniforms[:, None] * cumulative[:, -1:]
    passed = torch.searchsorted(cumulative, target, right=True)
    return passed.clamp(max=probs.shape[-1] - 1)


def choose_tokens(
    logits: Tensor, params: SamplingParams, uniforms: Tensor
) -> tuple[Tensor, Tensor]:
    """Draw one token per row: logits (N, V), uniforms (N,) in [0, 1) -> tokens (N,), log_probs (N,).

    Inverse-transform sampling: the token at which the cumulative probability passes the uniform.
    """
    logits = at_least_float32(logits)
    if params.temperature != 1:
        logits = logits / params.temperature
    if not params.greedy:
        logits = truncate_logits(logits, params)
    likeliest = logits.argmax(-1, keepdim=True) if params.greedy else None
    probs = logits.softmax(-1)  # (N, V)
    del logits  # of 150,000 tokens each copy counts
    tokens = inverse_cdf(probs, uniforms) if likeliest is None else likeliest
    return tokens.squeeze(1), probs.gather(1, tokens).log().squeeze(1)


def mixed_logits(
    logits: Tensor, teacher_logits: Tensor, teacher_share: float, temperature: float
) -> Tensor:
    """Logits (N, V) of alpha * p + (1 - alpha) * q, alpha = `teacher_share`, at this temperature.

    p = softmax(teacher_logits / temperature), q = softmax(logits / temperature): the teacher-mixed
    sampling of MiniLLM (Gu et al. 2024, arXiv:2306.08543, Eq. 4).
    """
    student, teacher = (
        (at_least_float32(x) / temperature).log_softmax(-1) for x in (logits, teacher_logits)
    )
    mixture = torch.logaddexp(
        student + math.log(1 - teacher_share), teacher + math.log(teacher_share)
    )
    return mixture * temperature


class DecodeState:
    """A model with its KV cache and the hidden state (rows, D) of the last column."""

    def __init__(
        self, model: GPT, tokens: Tensor, mask: Tensor | None, samples: int, columns: int
    ) -> None:
        """Read the prompts, tokens (B, P), once; then there are `samples` rows of each."""
        B = len(tokens)
        self.model, self.cache = model, model.new_cache(B * samples, columns)
        self.cache.rows = B
        self.last = model.hidden(tokens, mask, self.cache)[:, -1]  # (B, D)
        if samples > 1:
            rows = torch.arange(B, device=tokens.device).repeat_interleave(samples)
            self.cache.keep(rows)
            self.last = self.last[rows]

    def read(self, chosen: Tensor, seen: Tensor | None) -> None:
        """Append one token (rows,) to each row; `seen` (rows, columns) masks the prompts' padding."""
        self.last = self.model.hidden(chosen[:, None], seen, self.cache)[:, 0]


def next_token(
    states: Sequence[DecodeState], teacher_share: float, params: SamplingParams, uniforms: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The next token of each row, its log-prob as it was drawn and under the first model; (rows,)."""
    reader, *teachers = states
    if not teachers:  # the logits have no name here, so that they go when they are used
        tokens, log_probs = choose_tokens(reader.model.logits(reader.last), params, uniforms)
        return tokens, log_probs, log_probs
    logits, of_teacher = (each.model.logits(each.last) for each in states)  # (rows, V)
    mixture = mixed_logits(logits, of_teacher, teacher_share, params.temperature)
    tokens, log_probs = choose_tokens(mixture, params, uniforms)
    own = (at_least_float32(logits) / params.temperature).log_softmax(-1)
    return tokens, log_probs, own.gather(1, tokens[:, None]).squeeze(1)


def _sampling_models(
    model: GPT, mixture: Mixture | None, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> list[GPT]:
    """The model, and the teacher if it has a share; ValueError unless every response has room."""
    models = [model, mixture.teacher] if mixture and mixture.share else [model]
    known, needed = (len(each.head_weight) for each in (models[-1], model))
    if known != needed:
        raise ValueError(
            f"the teacher knows {known} tokens, the model {needed}: both need one tokenizer"
        )
    if not prompts or any(len(prompt) == 0 for prompt in prompts):
        raise ValueError("there is no prompt, or an empty one: a response needs a token to follow")
    longest = max(len(prompt) for prompt in prompts)
    context = min(model.config.context for model in models)
    if longest + max_new_tokens > context:
        raise ValueError(
            f"a prompt of {longest} tokens and max_new_tokens={max_new_tokens} do not fit the "
            f"model's {context} positions: lower max_new_tokens or drop long prompts"
        )
    return models


@torch.no_grad()
def decode(
    models: Sequence[GPT],
    prompts: Sequence[Sequence[int]],
    uniforms: Tensor,
    params: SamplingParams,
    *,
    eos_id: int,
    other_ends: Sequence[int] = (),
    teacher_share: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """One response for each row of `uniforms` (N, max_new_tokens), the random numbers of its tokens.

    Rows of a prompt are adjacent, N / len(prompts) of each. `models` is the model, with a teacher
    behind it if one takes part. Returns the tokens (N, max_new_tokens), their log-probs as they were
    drawn and under the model alone; what stands behind the first EOS, or other end, means nothing.
    """
    device, (N, steps), samples = models[0].device, uniforms.shape, len(uniforms) // len(prompts)
    tokens, real = left_pad(prompts, eos_id)
    P, ragged = tokens.shape[1], not real.all()
    tokens, real, uniforms = (on_device(x, device) for x in (tokens, real, uniforms))
    given = real if ragged else None
    states = [DecodeState(model, tokens, given, samples, P + steps) for model in models]
    # (N, P + steps): the columns of the responses to come count as real.
    mask = F.pad(real, (0, steps), value=True).repeat_interleave(samples, 0)

    out_tokens = torch.full((N, steps), eos_id, device=device)
    dtype = torch.promote_types(models[0].wte.weight.dtype, torch.float32)
    out_log_probs, own_log_probs = torch.zeros(2, N, steps, dtype=dtype, device=device)
    rows = torch.arange(N, device=device)  # the output row of each cache row
    running = torch.ones(N, dtype=torch.bool, device=device)  # per cache row
    for step in range(steps):
        chosen, log_probs, own = next_token(states, teacher_share, params, uniforms[rows, step])
        for end in (eos_id, *other_ends):
            running = running & (chosen != end)
        out_tokens[rows, step] = chosen
        out_log_probs[rows, step] = log_probs
        own_log_probs[rows, step] = own
        alive = int(running.sum())
        if alive == 0 or step + 1 == steps:
            break
        if alive <= len(rows) * 2 // 3:
            keep = running.nonzero().squeeze(1)
            for reader in states:
                reader.cache.keep(keep)
            rows, running, chosen, mask = rows[keep], running[keep], chosen[keep], mask[keep]
        seen = mask[:, : P + step + 1] if ragged else None
        for reader in states:
            reader.read(chosen, seen)
    return out_tokens, out_log_probs, own_log_probs


@contextmanager
def evaluation_mode(models: Sequence[nn.Module]) -> Iterator[None]:
    """Dropout is off inside; afterwards every model is as it was."""
    was_training = [model.training for model in models]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for model, training in zip(models, was_training, strict=True):
            model.train(training)


def generate(
    model: GPT,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    generator: torch.Generator | None = None,
    *,
    eos_id: int,
    other_ends: Sequence[int] = (),
    samples_per_prompt: int = 1,
    mixture: Mixture | None = None,
) -> Generation:
    """Sample `samples_per_prompt` responses for each prompt (token lists), rows of a prompt adjacent.

    `generate_from` with random numbers of `generator`, which lives on the CPU, so that a seed gives the
    same numbers on every device.
    """
    rows = len(prompts) * samples_per_prompt
    uniforms = uniform_numbers(rows, params.max_new_tokens, generator)
    return generate_from(
        model, prompts, params, uniforms, eos_id=eos_id, other_ends=other_ends, mixture=mixture
    )


def uniform_numbers(rows: int, columns: int, generator: torch.Generator | None) -> Tensor:
    """Random numbers in [0, 1) for `generate_from`, (rows, columns) float32 whatever PyTorch's default is.

    Those of a bfloat16 have 8 bits, which is not the policy's distribution any more.
    """
    return torch.rand(rows, columns, generator=generator, dtype=torch.float32, device="cpu")


def generate_from(
    model: GPT,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    uniforms: Tensor,  # (N, max_new_tokens) in [0, 1): N / len(prompts) responses to each prompt
    *,
    eos_id: int,
    other_ends: Sequence[int] = (),
    mixture: Mixture | None = None,
) -> Generation:
    """Sample a response with each row of random numbers, rows of a prompt adjacent.

    The prompts are read once and their cache rows repeated. A row stops at its first EOS, or at one of
    `other_ends`, which counts as one, and is dropped once a third of the rows has stopped. With a
    `mixture` each token is drawn from `mixed_logits` of both models. Raises ValueError for an empty
    prompt or one that leaves no room for max_new_tokens.
    """
    models = _sampling_models(model, mixture, prompts, params.max_new_tokens)
    share = mixture.share if mixture else 0.0
    with evaluation_mode(models):
        tokens, log_probs, own_log_probs = decode(
            models, prompts, uniforms, params,
            eos_id=eos_id, other_ends=other_ends, teacher_share=share,
        )  # fmt: skip
    tokens = tokens.cpu()
    ends = torch.tensor(other_ends, dtype=tokens.dtype)
    mask, has_eos = first_eos_mask(tokens.masked_fill(torch.isin(tokens, ends), eos_id), eos_id)
    T = int(mask.sum(1).max())  # the longest response
    tokens, mask = torch.where(mask, tokens, eos_id)[:, :T], mask[:, :T]
    drawn = on_device(mask, model.device)
    log_probs, own_log_probs = (
        torch.where(drawn, x[:, :T], 0.0) for x in (log_probs, own_log_probs)
    )
    return Generation(tokens, mask, has_eos, log_probs, own_log_probs)
