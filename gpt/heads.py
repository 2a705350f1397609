"""The one product behind every head: logits, values and reward scores.

The trunk may run in bfloat16 (`harness.device.precision`), a head never does. The logits of published
GPT-2 weights lie between -120 and -70, where neighbouring bfloat16 numbers are 0.5 apart: rounded so,
log-probabilities are off by 0.1 nats per token, and one ratio in a hundred leaves PPO's clip range
although nothing was learned.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.equation_checks import at_least_float32


def head_product(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """hidden (..., D) times weight (V, D), plus bias (V,): (..., V), float32 at least.

    Whatever autocast says: half precision is widened before the product, float64 stays.
    """
    with without_autocast(hidden.device):
        bias = None if bias is None else at_least_float32(bias)
        return F.linear(at_least_float32(hidden), at_least_float32(weight), bias)


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Inside, products are computed in the dtype of their inputs."""
    if device.type == "meta":  # shapes alone: autocast does not know this device
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
