"""Weights in the order in which a CPU's products of few rows read them, for sampling from wide models.

A decoding step multiplies a handful of rows by every weight, and nine tenths of its time go into these
products. oneDNN's own order makes them faster (docs/benchmarks.md says how much). A packed copy takes
as much memory again as the weights, and about 0.3 s for GPT-2's 124M shape.
"""

from __future__ import annotations

import copy

import torch
import torch.nn as nn
from torch import Tensor

from gpt import generate
from gpt.model import GPT

LONG = 32  # tokens of a response from which on it pays


def pays(model: GPT, steps: int) -> bool:
    """Whether a copy of this model is worth its making for `steps` tokens, and can be made."""
    exact = model.wte.weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    there = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    wide = model.config.n_embd >= generate.WIDE and steps >= LONG
    return wide and exact and there and model.device.type == "cpu"


class PackedLinear(nn.Module):
    """F.linear(x, weight, bias) with a packed copy of the weight; without a gradient."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.order = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
        self.biased = bias

    def forward(self, x: Tensor) -> Tensor:
        """x (..., in) -> (..., out)."""
        return torch.ops.mkldnn._linear_pointwise(x, self.order, self.biased, "none", [], "")


def packed(model: GPT) -> GPT:
    """A copy that samples: linear layers and head are packed, everything else is shared."""
    shared: dict[int, object] = {id(x): x for x in (*model.parameters(), *model.buffers())}
    for layer in model.modules():
        if type(layer) is nn.Linear:  # not an adapter's
            shared[id(layer)] = PackedLinear(layer.weight, layer.bias)
    sampled = copy.deepcopy(model, shared)
    sampled.head = PackedLinear(model.wte.weight, None)
    return sampled
