"""Llama by hand (Touvron et al. 2023, arXiv:2302.13971): a GPT-2 with four changes.

    GPT-2                                         here
    LayerNorm: minus the mean, two weights        1. RMSNorm: over the root mean square, one weight
    wte + wpe: a learned vector a position        2. rotary positions: queries and keys are turned
    every query head has its own key and value    3. grouped queries: several share one key and value
    GELU(x W) V, 4 D wide                         4. SwiGLU: (silu(x G) * x U) V

And no biases. The rest is GPT-2's and inherited from it: pre-normalisation, the tied head, the mask,
the cache, whose heads are those of the keys. SmolLM2-135M (arXiv:2502.02737), for one: 30 layers, D 576,
9 query heads on 3 key heads.
Shapes as in gpt/model.py: N rows, S columns, D embedding, H query heads, K key heads, d = D/H.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from gpt.attention import Mask, fused_attention, masked_attention
from gpt.model import GPT, GPTConfig, KVCache

Turn = tuple[Tensor, Tensor]  # cos and sin
PUBLISHED = (  # our names and those of published files
    ("wte.", "model.embed_tokens."), ("ln_f.", "model.norm."), ("h.", "model.layers."),
    ("ln_1.", "input_layernorm."), ("ln_2.", "post_attention_layernorm."), ("attn.", "self_attn."),
)  # fmt: skip


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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_head % self.n_key_head or self.n_embd // self.n_head % 2:
            raise ValueError(
                f"n_head={self.n_head} needs a multiple of n_key_head={self.n_key_head} and heads of an "
                f"even width: got {self.n_embd // self.n_head}"
            )
        if self.dropout:
            raise ValueError(f"a Llama has no dropout: got {self.dropout}")

    @property
    def cached_heads(self) -> int:
        return self.n_key_head


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019, arXiv:1910.07467, Eq. 4)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        """x (..., D) -> (..., D); the mean in float32 at least, also of half precision."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)  # (..., 1)
        return (wide * scale).to(x.dtype) * self.weight


def rotation(positions: Tensor, width: int, base: float, dtype: torch.dtype) -> Turn:
    """cos and sin of the angles p / base^(2i/d), i < d/2 (Su et al. 2021, arXiv:2104.09864, Eq. 15).

    positions (N or 1, S) -> two of (N or 1, 1, S, d/2). Angles are float32: at position 8000 a bfloat16
    one would be off by turns.
    """
    pair = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)  # 2i
    angle = positions[:, None, :, None].float() * base ** (-pair / width)
    return angle.cos().to(dtype), angle.sin().to(dtype)


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
        self.n_head, self.n_key_head = config.n_head, config.n_key_head
        keys = config.n_embd // config.n_head * config.n_key_head  # K d
        self.q_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)
        self.k_proj = nn.Linear(config.n_embd, keys, bias=False)
        self.v_proj = nn.Linear(config.n_embd, keys, bias=False)
        self.o_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def forward(
        self, x: Tensor, turn: Turn, mask: Mask, cache: KVCache | None, layer: int
    ) -> Tensor:
        """x (N, S, D) -> (N, S, D); `turn` from `rotation`, the others as in gpt.model.Attention."""
        N, S, D = x.shape
        heads = [
            part.view(N, S, -1, D // self.n_head).transpose(1, 2)  # (N, heads, S, d)
            for part in (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        ]
        value = heads[2]  # under autocast narrower than what has been turned
        query, key = (rotated(part, turn).to(value.dtype) for part in heads[:2])
        if cache is not None:
            key, value = cache.extend(layer, key, value)  # turned: a column keeps its position
        merged = masked_attention(self.kernel, query, key, value, mask)
        return self.o_proj(merged.transpose(1, 2).reshape(N, S, D))

    def kernel(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """query (N, H, S, d), key and value (N, K, ., d) -> (N, H, S, d), as GPT-2's."""
        shared, S = self.n_head // self.n_key_head, query.shape[2]
        if S == 1 and not torch.is_grad_enabled():  # the heads of a group as the columns of one
            grouped = query.unflatten(1, (self.n_key_head, shared))[:, :, :, 0]  # (N, K, H / K, d)
            merged = F.scaled_dot_product_attention(grouped, key, value, mask)
            return merged.flatten(1, 2)[:, :, None]
        key, value = (x.repeat_interleave(shared, dim=1) for x in (key, value))  # (N, H, ., d)
        return fused_attention(query, key, value, mask)


class SwiGLU(nn.Module):
    """(silu(x G) * x U) V, silu(z) = z sigmoid(z) (Shazeer 2020, arXiv:2002.05202, Eq. 6)."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.n_embd, config.n_inner, bias=False)  # G
        self.up_proj = nn.Linear(config.n_embd, config.n_inner, bias=False)  # U
        self.down_proj = nn.Linear(config.n_inner, config.n_embd, bias=False)  # V

    def forward(self, x: Tensor) -> Tensor:
        """x (N, S, D) -> (N, S, D)."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaBlock(nn.Module):
    """One block: GPT-2's, with the other norm, attention and MLP."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.ln_1 = RMSNorm(config.n_embd, config.norm_eps)
        self.attn = GroupedAttention(config)
        self.ln_2 = RMSNorm(config.n_embd, config.norm_eps)
        self.mlp = SwiGLU(config)

    def forward(
        self, x: Tensor, turn: Turn, mask: Mask, cache: KVCache | None, layer: int
    ) -> Tensor:
        """x (N, S, D) -> (N, S, D); arguments as in `GroupedAttention`."""
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
        self.checkpoint_blocks = False
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.h = nn.ModuleList(LlamaBlock(config) for _ in range(config.n_layer))
        self.ln_f = RMSNorm(config.n_embd, config.norm_eps)

    @staticmethod
    def published_name(name: str) -> str:
        for ours, theirs in PUBLISHED:
            name = name.replace(ours, theirs)
        return name

    def embedded(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Turn]:
        """The embedding, (N, S, D), without positions: they are the turn of queries and keys."""
        x = self.wte(tokens)
        width = self.config.n_embd // self.config.n_head
        return x, rotation(positions, width, self.config.rope_base, x.dtype)


MODEL, SHAPE = Llama, LlamaConfig  # of a checkpoint whose header says llama (gpt/checkpoint.py)
