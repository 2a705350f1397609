"""Two tensors: are they the same, and if not, what have they to do with each other?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    return torch.allclose(a, b.to(a.dtype), rtol=tolerance, atol=tolerance, equal_nan=True)


def pattern(name: str, mine: Tensor, wanted: Tensor, mask: Any, tolerance: float) -> str:
    """What two tensors have to do with each other, as far as that can be seen."""
    if not mine.isfinite().all():
        return f"{name} is not finite (NaN or inf) where numbers are wanted."
    if close(-mine, wanted, tolerance):
        return f"{name} has the wrong sign everywhere: it is -1 times what is wanted."
    if isinstance(mask, Tensor) and mask.shape == mine.shape:
        if close(mine * mask, wanted * mask, tolerance):
            return f"{name} is right where the mask is True, but not where it is False."
    if mine.numel() == 1:  # a multiple of any other number, and off by something from it
        return f"{name} is {float(mine):.4f}; {float(wanted):.4f} is wanted."
    factor = float((mine * wanted).sum() / (wanted * wanted).sum().clamp(min=1e-12))
    if abs(factor) > 1e-6 and close(mine / factor, wanted, tolerance):
        return f"{name} is {factor:.4g} times what is wanted, everywhere: a factor is wrong."
    shift = float((mine - wanted).mean())
    if close(mine - shift, wanted, tolerance):
        return f"{name} is off by {shift:.4g} everywhere."
    wrong = ~torch.isclose(mine, wanted.to(mine.dtype), rtol=tolerance, atol=tolerance)
    at = tuple(wrong.nonzero()[0].tolist())
    return (
        f"{name} differs at {int(wrong.sum())} of {wrong.numel()} places, first at {list(at)}: "
        f"{float(mine[at]):.4f}, and {float(wanted[at]):.4f} is wanted."
    )


def shape_sentence(mine: Tensor, wanted: Tensor) -> str:
    return f"your result has shape {tuple(mine.shape)}, and {tuple(wanted.shape)} is wanted."


def shown_arguments(arguments: Mapping[str, Any]) -> str:
    return "\n".join(f"  {name} = {rounded(value)}" for name, value in arguments.items())


def rounded(value: Any) -> str:
    """A tensor as nested lists with four digits; a large one as its shape."""
    if not isinstance(value, Tensor):
        return repr(value)
    if value.numel() > 24:
        return f"a tensor of shape {tuple(value.shape)}"
    shown = value.double().round(decimals=4) if value.is_floating_point() else value
    return str(shown.tolist())
