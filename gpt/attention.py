"""Attention beside the architecture: the kernel, who may see whom, and prompts that rows share.

Shapes: N rows, S new columns, K columns in all, H heads of width d.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from data.collate import SharedPrompts

SHORT = 256  # columns


def plain_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(Q K^T / sqrt(d)) V, written out (Vaswani et al. 2017, arXiv:1706.03762, Eq. 1).

    query (N, H, S, d), key and value (N, H, K, d), mask bool broadcastable to (N, H, S, K), True =
    may be attended to, None = everything may. The readable twin of the fused kernel.
    """
    scores = query / math.sqrt(query.shape[-1]) @ key.transpose(-2, -1)  # (N, H, S, K)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(dim=-1) @ value  # (N, H, S, d)


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float = 0.0
) -> Tensor:
    """`plain_attention`, but without a mask a column sees its own past alone, and with dropout.

    By PyTorch's kernel, whose backward pass in bfloat16 takes a CPU three times as long as the lines
    above: there they serve rows that are short enough to keep all scores.
    """
    S, K = query.shape[2], key.shape[2]
    slow = query.dtype == torch.bfloat16 and query.device.type == "cpu" and not dropout
    if slow and 1 < S and K <= SHORT:
        mask = causal_mask(S, K, query.device) if mask is None else mask
        return plain_attention(query, key, value, mask)
    return F.scaled_dot_product_attention(
        query, key, value, mask, dropout_p=dropout,
        is_causal=mask is None and S > 1,  # one new column without a mask sees all the past
    )  # fmt: skip


Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]  # as `plain_attention`
Mask = Tensor | SharedPrompts | None


def masked_attention(
    kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, mask: Mask
) -> Tensor:
    """The kernel's result, (N, H, S, d); of `SharedPrompts` on its prompts, and on its responses.

    The latter's one row, (1, H, M, d), is taken apart for it and put together again.
    """
    if not isinstance(mask, SharedPrompts):
        return kernel(query, key, value, mask)

    def at(x: Tensor, places: Tensor) -> Tensor:  # (1, H, M, d), (n, s) -> (n, H, s, d)
        tokens = x[0].transpose(0, 1).index_select(0, places.flatten())
        return tokens.unflatten(0, places.shape).transpose(1, 2)

    prompts, columns = mask.prompts, mask.places  # (U, P), (N, S): a response sees its prompt too
    of_prompts = kernel(at(query, prompts), at(key, prompts), at(value, prompts), None)
    behind = at(query, mask.responses)
    of_responses = kernel(behind, at(key, columns), at(value, columns), mask.mask)
    both = torch.cat([x.transpose(1, 2).flatten(0, 1) for x in (of_prompts, of_responses)])
    return both.index_select(0, mask.order).transpose(0, 1)[None]


def causal_mask(new: int, total: int, device: torch.device) -> Tensor:
    """(new, total) bool: the new columns are the last of `total`; each sees itself and the past."""
    return torch.ones(new, total, dtype=torch.bool, device=device).tril(total - new)


def row_positions(tokens: Tensor, attention_mask: Mask, past: int, context: int) -> Tensor:
    """The positions of new columns (N, S) behind `past`, (N or 1, S): they count a row's real tokens.

    attention_mask as in `GPT.hidden`. Raises ValueError for a row of more than `context` tokens.
    """
    longest = past + tokens.shape[1]
    if isinstance(attention_mask, SharedPrompts):
        positions, longest = attention_mask.positions, attention_mask.places.shape[1]
    elif attention_mask is None:
        positions = torch.arange(past, longest, device=tokens.device)[None]
    else:
        positions = (attention_mask.cumsum(1) - 1).clamp(min=0)[:, past:]
        if longest > context:  # perhaps of padding: only then the device is asked
            longest = int(attention_mask.sum(1).max())
    if longest > context:
        raise ValueError(
            f"a row of {longest} tokens does not fit the model's {context} positions: shorten it, or "
            "use longer tokens or a model with more positions"
        )
    return positions


def kernel_mask(attention_mask: Mask, past: int, new: int, device: torch.device) -> Mask:
    """The (N or 1, 1, new, past + new) mask for the kernel; None keeps its fast causal path."""
    if isinstance(attention_mask, SharedPrompts):
        return attention_mask
    if attention_mask is None:
        if past == 0 or new == 1:
            return None
        return causal_mask(new, past + new, device)[None, None]
    mask = causal_mask(new, past + new, device) & attention_mask[:, None, :]  # (N, new, K)
    # A padding column sees nothing real; it sees itself, because a softmax over nothing is NaN.
    itself = torch.arange(past, past + new, device=device)
    mask[:, torch.arange(new, device=device), itself] = True
    return mask[:, None]
