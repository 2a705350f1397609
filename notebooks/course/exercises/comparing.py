"""Numbers beside the wanted ones: are they the same, and if not, what have they to do with each other?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, tolerance, tolerance, equal_nan=True)


def difference(
    name: str,
    mine: Sequence[Tensor],
    wanted: Sequence[Tensor],
    first: int,
    mask: Tensor | None,
    tolerance: float,
) -> tuple[str, str]:
    """In a word and in a sentence what is wrong, of all cases, or of the first that is not right.

    The words: "infinite", "sign", "factor", "offset", "padding", "number", "place".
    """
    if not all(part.isfinite().all() for part in mine):
        return "infinite", f"{name} is not finite (NaN or inf) where numbers are wanted."
    found = of_all_numbers(name, mine, wanted, tolerance)
    return found or of_one_case(name, mine[first], wanted[first], mask, tolerance)


def of_all_numbers(
    name: str, mine: Sequence[Tensor], wanted: Sequence[Tensor], tolerance: float
) -> tuple[str, str] | None:
    """A sign, a factor or an offset that all cases share. (Any number is a multiple of another one.)"""
    ours, right = (torch.cat([part.flatten() for part in parts]) for parts in (mine, wanted))
    if (right.abs() > tolerance).sum() < 2:
        return None
    if close(-ours, right, tolerance):
        return "sign", f"{name} has the wrong sign everywhere: it is -1 times what is wanted."
    factor = float((ours * right).sum() / (right * right).sum())
    if abs(factor) > 1e-6 and close(ours / factor, right, tolerance):
        return "factor", f"{name} is {factor:.4g} times what is wanted, everywhere."
    offset = float((ours - right).mean())
    if close(ours - offset, right, tolerance):
        return "offset", f"{name} is off by {offset:.4g} everywhere."
    return None


def of_one_case(
    name: str, mine: Tensor, wanted: Tensor, mask: Tensor | None, tolerance: float
) -> tuple[str, str]:
    """Where the numbers of one case differ."""
    if mask is not None and mask.shape == mine.shape:
        if close(mine * mask, wanted * mask, tolerance):
            return "padding", f"{name} is right where the mask is True, but not where it is False."
    if mine.numel() == 1:
        return "number", f"{name} is {mine.item():.4f}; {wanted.item():.4f} is wanted."
    wrong = ~torch.isclose(mine, wanted, rtol=tolerance, atol=tolerance)
    at = tuple(wrong.nonzero()[0].tolist())
    return "place", (
        f"{name} differs at {int(wrong.sum())} of {wrong.numel()} places, first at {list(at)}: "
        f"{float(mine[at]):.4f}, and {float(wanted[at]):.4f} is wanted."
    )


def shape_sentence(mine: Tensor, wanted: torch.Size) -> str:
    hint = ""
    if mine.numel() == wanted.numel() > 1:  # of one number it may as well be the mean
        hint = " It has as many numbers, so a reshape or a keepdim=True may be all that is missing."
    return f"your result has shape {tuple(mine.shape)}, and {tuple(wanted)} is wanted.{hint}"


def rounded(value: Any) -> str:
    """A tensor as nested lists with four digits; a large one as its shape."""
    if not isinstance(value, Tensor):
        return repr(value)
    if value.numel() > 24:
        return f"a tensor of shape {tuple(value.shape)}"
    exact = value.double().round(decimals=4) if value.is_floating_point() else value
    return str(exact.tolist())
