"""GPT-2 by hand (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners").

nano/gpt.py is the same model in 50 lines, without cache, dropout, left padding and half precision.

    tokens -> wte + wpe -> n_layer x [x + attention(LN(x)); x + MLP(LN(x))] -> LN -> logits with wte

Pre-LayerNorm, learned positions, tanh-GELU, biases everywhere, the head tied to the token embedding.
Modules have OpenAI's names (wte, wpe, h, ln_1, c_attn, ...), so published weights map one to one.
Shapes: N rows, S columns, D embedding, H heads, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gpt.attention import (
    Mask,
    fused_attention,
    kernel_mask,
    masked_attention,
    plain_attention,
    row_positions,
)
from harness.device import float32_heads, rounds_factors
from harness.tensors import at_least_float32


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT-2; the defaults are the 124M model."""

    vocab_size: int = 50257
    context: int = 1024  # n_ctx: the number of learned positions
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0  # GPT-2 used 0.1; every RL forward runs with dropout off

    def __post_init__(self) -> None:
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd={self.n_embd} is not divisible by n_head={self.n_head}")

    @property
    def cached_heads(self) -> int:
        """The heads of keys and values that a cache holds."""
        return self.n_head

    @property
    def head_width(self) -> int:
        """d, the numbers of one head."""
        return self.n_embd // self.n_head


Preset = Literal["tiny", "own", "small", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"]
# Shapes with the vocabulary of the tokenizer that they have by default.
PRESETS: dict[str, GPTConfig] = {
    "tiny": GPTConfig(624, 128, n_layer=4, n_head=4, n_embd=128),
    "teacher": GPTConfig(624, 128, n_layer=6, n_head=6, n_embd=192),  # what tiny learns from
    "own": GPTConfig(4096, 1024, n_layer=4, n_head=5, n_embd=160),  # your dialogues
    "small": GPTConfig(context=256, n_layer=4, n_head=6, n_embd=192),
    "gpt2": GPTConfig(),
    "gpt2-medium": GPTConfig(n_layer=24, n_head=16, n_embd=1024),
    "gpt2-large": GPTConfig(n_layer=36, n_head=20, n_embd=1280),
    "gpt2-xl": GPTConfig(n_layer=48, n_head=25, n_embd=1600),
}


def preset_config(name: str, vocab_size: int, dropout: float = 0.0) -> GPTConfig:
    """The named shape with a tokenizer's vocabulary. Raises ValueError for an unknown name."""
    if name not in PRESETS:
        raise ValueError(f"there is no model preset {name!r}: choose one of {', '.join(PRESETS)}")
    return replace(PRESETS[name], vocab_size=vocab_size, dropout=dropout)


class KVCache:
    """Keys and values of every layer for `rows` rows and up to `columns` columns, allocated once.

    `length` columns are filled, and a forward appends its own.
    """

    def __init__(
        self, config: GPTConfig, rows: int, columns: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (config.n_layer, rows, config.cached_heads, columns, config.head_width)
        self.keys = torch.empty(shape, device=device, dtype=dtype)
        self.values = torch.empty(shape, device=device, dtype=dtype)
        self.length, self.rows = 0, rows

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write one layer's new columns behind the filled ones; return all of them, (N, H, S, D/H)."""
        end = self.length + keys.shape[2]
        self.keys[layer, : self.rows, :, self.length : end] = keys
        self.values[layer, : self.rows, :, self.length : end] = values
        return self.keys[layer, : self.rows, :, :end], self.values[layer, : self.rows, :, :end]

    def keep(self, rows: Tensor) -> None:
        """From now on the rows are these of the current ones (indices; one may come several times)."""
        for store in (self.keys, self.values):
            for layer in range(len(store)):  # one at a time: the copy is small
                store[layer, : len(rows), :, : self.length] = store[layer, rows, :, : self.length]
        self.rows = len(rows)


class Attention(nn.Module):
    """Causal multi-head self-attention with one fused projection for query, key and value."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.dropout = config.dropout
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x: Tensor, mask: Mask, cache: KVCache | None, layer: int) -> Tensor:
        """x (N, S, D) -> (N, S, D). Without a mask (N or 1, 1, S, K) a column sees all its past.

        With a cache the columns of x come behind its filled ones: K of them together.
        """
        N, S, D = x.shape
        qkv = self.c_attn(x).view(N, S, 3, self.n_head, D // self.n_head)  # (N, S, 3, H, d)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each (N, H, S, d)
        if cache is not None:
            key, value = cache.extend(layer, key, value)
        merged = masked_attention(self.kernel, query, key, value, mask)
        merged = merged.transpose(1, 2).reshape(N, S, D)
        return F.dropout(self.c_proj(merged), self.dropout, self.training)

    def kernel(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """As `plain_attention`, (N, H, S, d); without a mask a column sees all its past."""
        S, exact = query.shape[2], query.dtype in (torch.float32, torch.float64)
        if S == 1 and exact and query.device.type == "cpu" and not self.training:
            return plain_attention(query, key, value, mask)  # faster than the kernel there
        return fused_attention(query, key, value, mask, self.dropout if self.training else 0.0)


class MLP(nn.Module):
    """D -> 4D -> D with GPT-2's tanh approximation of GELU."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        """x (N, S, D) -> (N, S, D)."""
        x = F.gelu(self.c_fc(x), approximate="tanh")
        return F.dropout(self.c_proj(x), self.dropout, self.training)


class Block(nn.Module):
    """One pre-LayerNorm transformer block."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=1e-5)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, eps=1e-5)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, mask: Mask, cache: KVCache | None, layer: int) -> Tensor:
        """x (N, S, D) -> (N, S, D); arguments as in `Attention`."""
        x = x + self.attn(self.ln_1(x), mask, cache, layer)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """GPT-2. `hidden` is what every head reads; `forward` adds the tied language-model head.

    With `gradient_checkpointing` a block's activations are computed again in the backward pass (Chen et al.
    2016, arXiv:1604.06174): less memory, a third more work, the same gradients.
    """

    # Where LoRA puts its adapters, in each block (gpt/lora.py).
    projections: ClassVar[tuple[str, ...]] = (
        "attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj",
    )  # fmt: skip
    # How many ids the tokenizer has, as whoever opens a model with one says: a padded embedding has
    # more rows. They are in no distribution, sampled or scored, as if their logits were -inf.
    n_text: int | None = None

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.gradient_checkpointing = False
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.context, config.n_embd)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f: nn.Module = nn.LayerNorm(config.n_embd, eps=1e-5)

    @torch.no_grad()
    def initialize(self, generator: torch.Generator | None = None) -> GPT:
        """GPT-2's initialisation; residual projections are scaled by 1/sqrt(2 n_layer). Returns self."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.ndim == 1:  # LayerNorm gain
                parameter.fill_(1.0)
            else:
                std = 0.01 if name == "wpe.weight" else 0.02  # OpenAI's gpt-2/src/model.py
                if name.endswith("c_proj.weight"):
                    std /= math.sqrt(2 * self.config.n_layer)
                parameter.copy_(torch.empty(parameter.shape).normal_(0.0, std, generator=generator))
        return self

    @property
    def device(self) -> torch.device:
        return self.wte.weight.device

    @property
    def whole_head(self) -> Tensor:
        """The matrix of the head, (V, D): the token embedding, to which it is tied."""
        return self.wte.weight

    def unchanging_names(self) -> set[str]:
        """The tensors frozen under adapters (gpt/lora.py), which a run's checkpoint leaves out."""
        names = set(self.state_dict())
        trained = {name for name in names if name.endswith(("lora_A", "lora_B"))}
        return names - trained if trained else set()

    def hidden(
        self, tokens: Tensor, attention_mask: Mask = None, cache: KVCache | None = None
    ) -> Tensor:
        """Hidden states after the final LayerNorm, (N, S, D).

        tokens: (N, S) int64. attention_mask: (N, past + S) bool, True = real token, or None if no row
        has padding before its end: none looks ahead; or the `SharedPrompts` of these tokens. With a
        `cache` the tokens are the new columns behind its `length` filled ones. Positions count real
        tokens, so rows agree however padded.
        """
        S, past = tokens.shape[1], 0 if cache is None else cache.length
        positions = row_positions(tokens, attention_mask, past, self.config.context)
        x, *more = self.embedded(tokens, positions)  # (N, S, D)
        mask = kernel_mask(attention_mask, past, S, tokens.device)
        again = self.gradient_checkpointing and cache is None and torch.is_grad_enabled()
        for layer, block in enumerate(self.h):
            if again:
                x = checkpoint(block, x, *more, mask, cache, layer, use_reentrant=False)
            else:
                x = block(x, *more, mask, cache, layer)
        if cache is not None:
            cache.length += S
        return self.ln_f(x)

    def embedded(self, tokens: Tensor, positions: Tensor) -> tuple[Any, ...]:
        """The sum of both embeddings, (N, S, D); behind it a model may give more that its blocks read."""
        x = self.wte(tokens) + self.wpe(positions)
        return (F.dropout(x, self.config.dropout, self.training),)

    @property
    def head_weight(self) -> Tensor:
        """The head without rows that stand for no text."""
        weight = self.whole_head
        return weight if self.n_text in (None, len(weight)) else weight[: self.n_text]

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V), float32 at least, also under autocast."""
        return head_product(hidden, self.head_weight)

    def forward(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Logits (N, S, V); column j predicts token j + 1. Arguments as in `hidden`."""
        return self.logits(self.hidden(tokens, attention_mask))

    def new_cache(self, rows: int, columns: int) -> KVCache:
        """An empty cache in the projections' dtype."""
        kind, dtype = self.device.type, self.wte.weight.dtype
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
        return KVCache(self.config, rows, columns, self.device, dtype)

    def parameter_count(self) -> int:
        """Number of weights; the tied head counts once."""
        return sum(parameter.numel() for parameter in self.parameters())


def head_product(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """hidden (..., D) times weight (V, D), plus bias (V,): (..., V), float32 at least.

    The one product behind every head, in float32 whatever autocast says. The logits of published GPT-2
    weights lie between -120 and -70, where neighbouring bfloat16 numbers are 0.5 apart: log-probs would
    be off by 0.1 nats per token, and one ratio in a hundred would leave PPO's clip range at once. Its
    factors may be rounded (`float32_heads`), which is the same for sampler and scorer.
    """
    with float32_heads(hidden.device, rounds_factors(hidden.device)):
        bias = None if bias is None else at_least_float32(bias)
        return F.linear(at_least_float32(hidden), at_least_float32(weight), bias)


MODEL, SHAPE = GPT, GPTConfig  # of a checkpoint whose header says gpt (gpt/checkpoint.py)
