"""Whether two tensors are the same, and tensors as a reader sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    alike = a.shape == b.shape  # allclose alone would broadcast
    return alike and torch.allclose(a, b.to(a.dtype), tolerance, tolerance, equal_nan=True)


def shape_sentence(mine: Tensor, wanted: torch.Size) -> str:
    hint = ""
    if mine.numel() == wanted.numel() > 1:  # of one number it may as well be the mean
        hint = ". It has as many numbers, so a reshape or a keepdim=True may be all that is missing"
    return f"your result has shape {tuple(mine.shape)}, and {tuple(wanted)} is wanted{hint}"


def shown_arguments(arguments: Mapping[str, Any]) -> str:
    return "\n".join(f"  {name} = {rounded(value)}" for name, value in arguments.items())


def rounded(value: Any) -> str:
    """A tensor as nested lists with four digits, a large one as its shape; a number likewise."""
    if not isinstance(value, Tensor):
        return f"{value:.4g}" if isinstance(value, float) else repr(value)
    if value.numel() > 24:
        return f"a tensor of shape {tuple(value.shape)}"
    shown = value.double().round(decimals=4) if value.is_floating_point() else value
    return str(shown.tolist())
