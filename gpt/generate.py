"""Sampling from a GPT: a preallocated KV cache, per-row stop at EOS, and the sampler's log-probs.

Prompts are left-padded so that all rows write their next token into the same column. Random numbers
are drawn up front, one per row and step, and a token is found by inverting the cumulative
distribution: a row's sample depends on its own numbers alone, whichever rows are dropped.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from data.collate import first_eos_mask, left_pad
from gpt.model import GPT, KVCache
from harness.equation_checks import at_least_float32
from harness.ranks.collectives import joined_blocks, on_device, shard_block


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn, shared by the sampler and the scorer (the same temperature in both).

    RL rollouts use the full distribution (top_k=0, top_p=1): a truncated sampler is not the
    policy that the ratios and the KL describe.
    """

    temperature: float = 1.0  # tau: logits are divided by it
    top_k: int = 0  # keep the k most likely tokens; 0 = all
    top_p: float = 1.0  # keep the smallest set with at least this probability (arXiv:1904.09751)
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

    @property
    def truncates(self) -> bool:
        """True if some tokens can never be drawn, so that the sampler is not the policy."""
        return self.greedy or self.top_k > 0 or self.top_p < 1


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


def where_passed(probs: Tensor, uniforms: Tensor) -> Tensor:
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
    if params.truncates and not params.greedy:
        logits = truncate_logits(logits, params)
    probs = logits.softmax(-1)  # (N, V)
    if params.greedy:
        tokens = logits.argmax(-1, keepdim=True)
    else:
        tokens = where_passed(probs, uniforms)
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


class Reader:
    """A model that reads along: its cache, and the hidden state (rows, D) behind the last column."""

    def __init__(
        self, model: GPT, tokens: Tensor, mask: Tensor | None, cache: KVCache, repeats: int
    ) -> None:
        self.model, self.cache = model, cache
        self.cache.rows = len(tokens)
        self.last = model.hidden(tokens, mask, self.cache)[:, -1]  # (B, D)
        if repeats > 1:
            rows = torch.arange(len(tokens), device=tokens.device).repeat_interleave(repeats)
            self.cache.keep(rows)
            self.last = self.last[rows]

    def logits(self) -> Tensor:
        """(rows, V) of the next token."""
        return self.model.logits(self.last)

    def read(self, chosen: Tensor, seen: Tensor | None) -> None:
        """Append one token (rows,) to each row; `seen` (rows, columns) masks the prompts' padding."""
        self.last = self.model.hidden(chosen[:, None], seen, self.cache)[:, 0]


def draw(
    readers: Sequence[Reader],
    teacher_share: float,
    params: SamplingParams,
    uniforms: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The next token of each row, its log-prob as it was drawn and under the first model; (rows,)."""
    logits = readers[0].logits()
    if len(readers) == 1:
        tokens, log_probs = choose_tokens(logits, params, uniforms)
        return tokens, log_probs, log_probs
    mixture = mixed_logits(logits, readers[1].logits(), teacher_share, params.temperature)
    tokens, log_probs = choose_tokens(mixture, params, uniforms)
    own = (at_least_float32(logits) / params.temperature).log_softmax(-1)
    return tokens, log_probs, own.gather(1, tokens[:, None]).squeeze(1)


def _sampling_models(
    model: GPT,
    teacher: GPT | None,
    teacher_share: float,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
) -> list[GPT]:
    """The model, and the teacher if it has a share; ValueError unless every response has room."""
    models = [model, teacher] if teacher is not None and teacher_share else [model]
    if not 0 <= teacher_share < 1 or (teacher is None and teacher_share > 0):
        raise ValueError(
            f"teacher_share={teacher_share} must be in [0, 1), and 0 without a teacher"
        )
    if models[-1].config.vocab_size != model.config.vocab_size:
        raise ValueError(
            f"the teacher knows {models[-1].config.vocab_size} tokens, the model "
            f"{model.config.vocab_size}: both need one tokenizer"
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


def read_prompts(
    models: Sequence[GPT],
    prompts: Sequence[Sequence[int]],
    eos_id: int,
    columns: int,
    samples_per_prompt: int,
) -> tuple[list[Reader], Tensor]:
    """A reader of every model with the prompts in its cache, and which columns hold tokens (N, columns).

    The columns of the responses to come count as tokens.
    """
    device = models[0].device
    tokens, prompt_mask = left_pad(prompts, eos_id)
    given = None if prompt_mask.all() else on_device(prompt_mask, device)  # None: none is padded
    tokens, prompt_mask = on_device(tokens, device), on_device(prompt_mask, device)
    rows = len(prompts) * samples_per_prompt
    readers = [
        Reader(one, tokens, given, one.new_cache(rows, columns), samples_per_prompt)
        for one in models
    ]
    mask = F.pad(prompt_mask, (0, columns - tokens.shape[1]), value=True)
    return readers, mask.repeat_interleave(samples_per_prompt, 0)


@torch.no_grad()
def decode(
    models: Sequence[GPT],
    prompts: Sequence[Sequence[int]],
    uniforms: Tensor,
    params: SamplingParams,
    *,
    eos_id: int,
    teacher_share: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """One response for each row of `uniforms` (N, max_new_tokens), the random numbers of its tokens.

    Rows of a prompt are adjacent, N / len(prompts) of each. `models` is the model, with a teacher
    behind it if one takes part. Returns the tokens (N, max_new_tokens), padded with `eos_id`, their
    log-probs as they were drawn and their log-probs under the model alone, 0 behind the first EOS.
    """
    device, (N, steps) = models[0].device, uniforms.shape
    longest = max(len(prompt) for prompt in prompts)
    readers, mask = read_prompts(models, prompts, eos_id, longest + steps, N // len(prompts))
    ragged = len({len(prompt) for prompt in prompts}) > 1
    uniforms = uniforms.to(device)
    out_tokens, out_log_probs, own_log_probs = empty_answers(models[0], N, steps, eos_id)
    rows = torch.arange(N, device=device)  # the output row of each cache row
    running = torch.ones(N, dtype=torch.bool, device=device)  # per cache row
    for step in range(steps):
        chosen, log_probs, own = draw(readers, teacher_share, params, uniforms[rows, step])
        running = running & (chosen != eos_id)
        out_tokens[rows, step] = chosen
        out_log_probs[rows, step] = log_probs
        own_log_probs[rows, step] = own
        alive = int(running.sum())
        if alive == 0 or step + 1 == steps:
            break
        if alive <= len(rows) * 2 // 3:
            keep = running.nonzero().squeeze(1)
            for reader in readers:
                reader.cache.keep(keep)
            rows, running, chosen, mask = rows[keep], running[keep], chosen[keep], mask[keep]
        seen = mask[:, : longest + step + 1] if ragged else None
        for reader in readers:
            reader.read(chosen, seen)
    return cut_at_eos(out_tokens, out_log_probs, own_log_probs, eos_id)


def empty_answers(model: GPT, rows: int, steps: int, eos_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (rows, steps) that are all EOS, and zeros for their two kinds of log-probs."""
    tokens = torch.full((rows, steps), eos_id, dtype=torch.long, device=model.device)
    dtype = torch.promote_types(model.wte.weight.dtype, torch.float32)
    log_probs, own_log_probs = torch.zeros(2, rows, steps, dtype=dtype, device=model.device)
    return tokens, log_probs, own_log_probs


def cut_at_eos(
    tokens: Tensor, log_probs: Tensor, own_log_probs: Tensor, eos_id: int
) -> tuple[Tensor, Tensor, Tensor]:
    """All three with nothing behind a row's first EOS: it was sampled on for a while."""
    valid, _ = first_eos_mask(tokens, eos_id)
    return (
        torch.where(valid, tokens, eos_id),
        torch.where(valid, log_probs, 0.0),
        torch.where(valid, own_log_probs, 0.0),
    )


def is_compiled(model: nn.Module) -> bool:
    """Whether harness/compile_blocks.py has been at work on it."""
    return any(module._compiled_call_impl is not None for module in model.modules())


def as_sampled(model: GPT) -> GPT:
    """The model as the loops call it: not compiled, and its weights cast once instead of at every step.

    Under autocast the linear layers are copied in its dtype. Everything else is shared with `model`.
    """
    kind = model.device.type
    cast = torch.is_autocast_enabled(kind)
    if not (cast or is_compiled(model)):
        return model
    dtype = torch.get_autocast_dtype(kind)
    shared: dict[int, object] = {id(x): x for x in (*model.parameters(), *model.buffers())}
    for layer in model.modules():
        if cast and isinstance(layer, nn.Linear):
            for weight in layer.parameters(recurse=False):
                if weight.dtype == torch.float32:
                    shared[id(weight)] = nn.Parameter(weight.detach().to(dtype), False)
    return copy.deepcopy(model, shared)  # whose memo says what takes the place of what


@contextmanager
def evaluation_mode(models: Sequence[nn.Module]) -> Iterator[None]:
    """Dropout is off inside; afterwards every model is as it was."""
    was_training = [model.training for model in models]
    for model in models:
        model.eval()
    yield
    for model, training in zip(models, was_training, strict=True):
        model.train(training)


def generate(
    model: GPT,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    generator: torch.Generator | None = None,
    *,
    eos_id: int,
    samples_per_prompt: int = 1,
    teacher: GPT | None = None,
    teacher_share: float = 0.0,
) -> Generation:
    """Sample `samples_per_prompt` responses for each prompt (token lists), rows of a prompt adjacent.

    The prompts are read once and their cache rows repeated. A row stops at its first EOS, and is
    dropped once a third of the rows has stopped. `generator` lives on the CPU, so that a seed gives
    the same numbers on every device. With a teacher each token is drawn from `mixed_logits` of both
    models. Raises ValueError for an empty prompt or one that leaves no room for max_new_tokens.
    """
    models = _sampling_models(model, teacher, teacher_share, prompts, params.max_new_tokens)
    uniforms = torch.rand(
        len(prompts) * samples_per_prompt, params.max_new_tokens, generator=generator
    )
    mine = shard_block(len(prompts))  # of several ranks each answers prompts of its own
    rows = slice(mine.start * samples_per_prompt, mine.stop * samples_per_prompt)
    with evaluation_mode(models):
        models = [as_sampled(one) for one in models]
        answered = None
        if prompts[mine]:
            answered = decode(
                models, prompts[mine], uniforms[rows], params,
                eos_id=eos_id, teacher_share=teacher_share,
            )  # fmt: skip
        tokens, log_probs, own_log_probs = joined_blocks(answered, model.device)
    tokens = tokens.cpu()
    mask, has_eos = first_eos_mask(tokens, eos_id)
    T = int(mask.sum(1).max())  # the longest response
    return Generation(tokens[:, :T], mask[:, :T], has_eos, log_probs[:, :T], own_log_probs[:, :T])
