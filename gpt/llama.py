"""Llama by hand (Touvron et al. 2023, arXiv:2302.13971): a GPT-2 with four changes.

    GPT-2                                         here
    LayerNorm: minus the mean, two weights        1. RMSNorm: over the root mean square, one weight
    wte + wpe: a learned vector a position        2. rotary positions: queries and keys are turned
    every query head has its own key and value    3. grouped queries: several share one key and value
    GELU(x W) V, 4 D wide                         4. SwiGLU: (silu(x G) * x U) V

And no biases. The rest is GPT-2's and inherited from it: pre-normalisation, the tied head, the mask,
the cache, whose heads are those of the keys. SmolLM2-135M (arXiv:2502.02737), for one: 30 layers, D 576,
9 query heads on 3 key heads.

What later ones changed, each a field of `LlamaConfig`:

    qkv_bias     queries, keys and values have a bias                  Qwen2, arXiv:2407.10671
    o_bias       what attention gives has one, too                     InternLM, arXiv:2403.17297
    qk_norm      RMSNorm of each query and each key before the turn    Qwen3, arXiv:2505.09388
    d_head       a head has this width, not D/H                        Qwen3
    rope_factor  slow turns are slower by this factor                  Llama 3.1, arXiv:2407.21783
    rope_linear  all turns are, not the slow ones alone                arXiv:2306.15595
    unturned     one of so many layers does not turn: it reads no      SmolLM3; arXiv:2501.18795
                 positions
    own_head     the head is a matrix of its own, not wte              TinyLlama, arXiv:2401.02385
    norms_after  RMSNorm after attention and MLP instead of before;    OLMo 2, arXiv:2501.00656
                 that of queries and keys is over all heads together

Shapes as in gpt/model.py: N rows, S columns, D embedding, H query heads, K key heads, d = D/H or d_head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpt.attention import Mask, fused_attention, masked_attention
from gpt.model import GPT, GPTConfig, KVCache
from harness.tensors import at_least_float32

Turn = tuple[Tensor, Tensor]  # cos and sin
SLOW, FAST, TRAINED = 1, 4, 8192  # of Llama 3.1's code: turns within so many positions


@dataclass(frozen=True)
class LlamaConfig(GPTConfig):
    """The shape of a Llama; the defaults are SmolLM2-135M's."""

    vocab_size: int = 49152
    context: int = 8192  # the positions that it was trained on
    n_layer: int = 30
    n_head: int = 9
    n_embd: int = 576
    n_key_head: int = 3
    n_inner: int = 1536  # the width of the MLP
    rope_base: float = 100_000.0
    norm_eps: float = 1e-5
    # Of later ones; off by default.
    qkv_bias: bool = False
    qk_norm: bool = False
    d_head: int = 0
    rope_factor: float = 0.0
    unturned: int = 0
    own_head: bool = False
    norms_after: bool = False
    o_bias: bool = False
    rope_linear: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_head % self.n_key_head or self.head_width % 2:
            raise ValueError(
                f"n_head={self.n_head} needs a multiple of n_key_head={self.n_key_head} and heads of an "
                f"even width: got {self.head_width}"
            )
        if self.dropout:
            raise ValueError(f"a Llama has no dropout: got {self.dropout}")

    @property
    def cached_heads(self) -> int:
        return self.n_key_head

    @property
    def head_width(self) -> int:
        return self.d_head or super().head_width


class Normed(torch.autograd.Function):
    """n w, n = x s, s = 1 / sqrt(mean(x^2) + eps): x (..., D), w (D,) -> (..., D).

    Autograd would keep n and the square's factors for the backward pass. This keeps x, which is there
    already, and s: the gradient of x is s (g - n mean(g n)) with g that of n.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """The mean in float32 at least, also of half precision."""
        wide = at_least_float32(x)
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)  # (..., 1)
        ctx.save_for_backward(x, scale, weight)
        return (wide * scale).to(x.dtype) * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x and of the weight, which may be frozen."""
        x, scale, weight = ctx.saved_tensors
        normed = at_least_float32(x) * scale
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = (grad * normed).flatten(0, -2).sum(0).to(weight.dtype)
        wide = at_least_float32(grad * weight)  # g
        grad_x = scale * (wide - normed * (wide * normed).mean(-1, keepdim=True))
        return grad_x.to(x.dtype), grad_weight, None


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019, arXiv:1910.07467, Eq. 4)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        """x (..., D) -> (..., D)."""
        return cast(Tensor, Normed.apply(x, self.weight, self.eps))


def rotation(
    positions: Tensor, width: int, base: float, dtype: torch.dtype, factor: float = 0.0,
    linear: bool = False,
) -> Turn:  # fmt: skip
    """cos and sin of the angles p / base^(2i/d), i < d/2 (Su et al. 2021, arXiv:2104.09864, Eq. 15).

    positions (N or 1, S) -> two of (N or 1, 1, S, d/2). Angles are float32: at position 8000 a bfloat16
    one would be off by turns. With a `factor` a pair is slowed by it that turns less than `SLOW` times
    within `TRAINED` positions, one that does `FAST` times is not, and between them in part; `linear` slows
    all of them.
    """
    speed = speeds(width, base, factor, linear, positions.device)
    angle = positions[:, None, :, None].float() * speed
    return angle.cos().to(dtype), angle.sin().to(dtype)


def speeds(
    width: int, base: float, factor: float = 0.0, linear: bool = False,
    device: torch.device | None = None,
) -> Tensor:  # fmt: skip
    """By how much each position turns the pairs, (d/2,): slowed by a `factor` as in `rotation`."""
    pair = torch.arange(0, width, 2, device=device, dtype=torch.float32)  # 2i
    speed = base ** (-pair / width)
    if factor:
        turns = TRAINED * speed / (2 * math.pi)
        kept = ((turns - SLOW) / (FAST - SLOW)).clamp(0, 0 if linear else 1)
        speed = speed * (kept + (1 - kept) / factor)
    return speed


def rotated(x: Tensor, turn: Turn) -> Tensor:
    """Each pair (x_i, x_(i + d/2)) turned by its angle, (N, heads, S, d) -> the same.

    A query at p and a key at q, both turned, have the scalar product of the unturned ones with only
    p - q between them: attention sees distances. Published Llamas pair i with i + d/2, the paper
    2i with 2i + 1: another order of the same weights' rows.
    """
    cos, sin = turn
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class GroupedAttention(nn.Module):
    """Causal self-attention, H / K query heads on each key head (Ainslie et al. 2023, arXiv:2305.13245)."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.n_head, self.n_key_head, self.width = (
            config.n_head,
            config.n_key_head,
            config.head_width,
        )
        self.unturned, D = config.unturned, config.n_embd
        queries, keys = self.n_head * self.width, self.n_key_head * self.width  # H d, K d
        self.q_proj = nn.Linear(D, queries, bias=config.qkv_bias)
        self.k_proj = nn.Linear(D, keys, bias=config.qkv_bias)
        self.v_proj = nn.Linear(D, keys, bias=config.qkv_bias)
        self.o_proj = nn.Linear(queries, D, bias=config.o_bias)
        self.q_norm = self.k_norm = None
        if config.qk_norm:
            widths = (queries, keys) if config.norms_after else (self.width, self.width)
            self.q_norm, self.k_norm = (RMSNorm(width, config.norm_eps) for width in widths)

    def forward(
        self, x: Tensor, turn: Turn, mask: Mask, cache: KVCache | None, layer: int
    ) -> Tensor:
        """x (N, S, D) -> (N, S, D); `turn` from `rotation`, the others as in gpt.model.Attention."""
        query = self.heads(self.q_proj(x), self.q_norm)
        key = self.heads(self.k_proj(x), self.k_norm)
        value = self.heads(self.v_proj(x))
        if not self.unturned or (layer + 1) % self.unturned:
            query, key = rotated(query, turn), rotated(key, turn)
        query, key = query.to(value.dtype), key.to(value.dtype)  # under autocast they were wider
        if cache is not None:
            key, value = cache.extend(layer, key, value)  # turned: a column keeps its position
        merged = masked_attention(self.kernel, query, key, value, mask)
        return self.o_proj(merged.transpose(1, 2).flatten(2))

    def heads(self, x: Tensor, norm: RMSNorm | None = None) -> Tensor:
        """(N, S, heads d) -> (N, heads, S, d); the norm is over as many numbers as it has weights."""
        if norm is not None:
            x = norm(x.unflatten(-1, (-1, len(norm.weight)))).flatten(2)
        return x.unflatten(-1, (-1, self.width)).transpose(1, 2)

    def kernel(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """query (N, H, S, d), key and value (N, K, ., d) -> (N, H, S, d), as GPT-2's."""
        shared, S = self.n_head // self.n_key_head, query.shape[2]
        if S == 1 and not torch.is_grad_enabled():  # the heads of a group as the columns of one
            grouped = query.unflatten(1, (self.n_key_head, shared))[:, :, :, 0]  # (N, K, H / K, d)
            merged = F.scaled_dot_product_attention(grouped, key, value, mask)
            return merged.flatten(1, 2)[:, :, None]
        key, value = (x.repeat_interleave(shared, dim=1) for x in (key, value))  # (N, H, ., d)
        return fused_attention(query, key, value, mask)


class Gated(torch.autograd.Function):
    """silu(z) u, which keeps z and u alone for its backward pass: silu(z) is computed again."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        """Of one shape, which the result has too."""
        ctx.save_for_backward(gate, up)
        return F.silu(gate) * up

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of z and u."""
        gate, up = ctx.saved_tensors
        return torch.ops.aten.silu_backward(grad * up, gate), grad * F.silu(gate)


class SwiGLU(nn.Module):
    """(silu(x G) * x U) V, silu(z) = z sigmoid(z) (Shazeer 2020, arXiv:2002.05202, Eq. 6)."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.n_embd, config.n_inner, bias=False)  # G
        self.up_proj = nn.Linear(config.n_embd, config.n_inner, bias=False)  # U
        self.down_proj = nn.Linear(config.n_inner, config.n_embd, bias=False)  # V

    def forward(self, x: Tensor) -> Tensor:
        """x (N, S, D) -> (N, S, D)."""
        return self.down_proj(Gated.apply(self.gate_proj(x), self.up_proj(x)))


class LlamaBlock(nn.Module):
    """One block: GPT-2's, with the other norm, attention and MLP; in OLMo 2 the norms come after these."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.ln_1 = RMSNorm(config.n_embd, config.norm_eps)
        self.attn = GroupedAttention(config)
        self.ln_2 = RMSNorm(config.n_embd, config.norm_eps)
        self.mlp = SwiGLU(config)
        self.norms_after = config.norms_after

    def forward(
        self, x: Tensor, turn: Turn, mask: Mask, cache: KVCache | None, layer: int
    ) -> Tensor:
        """x (N, S, D) -> (N, S, D); arguments as in `GroupedAttention`."""
        if self.norms_after:
            x = x + self.ln_1(self.attn(x, turn, mask, cache, layer))
            return x + self.ln_2(self.mlp(x))
        x = x + self.attn(self.ln_1(x), turn, mask, cache, layer)
        return x + self.mlp(self.ln_2(x))


class Llama(GPT):
    """A GPT whose blocks are a Llama's, with no table of positions. All else is inherited."""

    config: LlamaConfig
    projections = (
        "attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.o_proj",
        "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
    )  # fmt: skip

    def __init__(self, config: LlamaConfig) -> None:
        nn.Module.__init__(self)  # GPT's own would build a GPT-2
        self.config = config
        self.gradient_checkpointing = False
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.h = nn.ModuleList(LlamaBlock(config) for _ in range(config.n_layer))
        self.ln_f = RMSNorm(config.n_embd, config.norm_eps)
        if config.own_head:  # a table like wte: linear layers are rounded where the head is not
            self.lm_head = nn.Embedding(config.vocab_size, config.n_embd)

    @property
    def whole_head(self) -> Tensor:
        return self.lm_head.weight if self.config.own_head else self.wte.weight

    def embedded(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Turn]:
        """The embedding, (N, S, D), without positions: they are the turn of queries and keys."""
        x, c = self.wte(tokens), self.config
        slower = c.rope_factor, c.rope_linear
        return x, rotation(positions, c.head_width, c.rope_base, x.dtype, *slower)


MODEL, SHAPE = Llama, LlamaConfig  # of a checkpoint whose header says llama (gpt/checkpoint.py)
