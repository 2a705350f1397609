"""Two tensors: are they the same, and if not, what have they to do with each other?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    alike = a.shape == b.shape  # allclose alone would broadcast
    return alike and torch.allclose(a, b.to(a.dtype), tolerance, tolerance, equal_nan=True)


def relation(
    name: str, mine: Tensor, wanted: Tensor, mask: Any, tolerance: float, *, whole: bool = True
) -> tuple[str, str]:
    """In a word and in a sentence what two tensors have to do with each other.

    The words: "infinite", "sign", "padding", "number", "factor", "offset", "place". Without `whole` the
    numbers are too few for a sign, a factor or an offset to say anything.
    """
    if not mine.isfinite().all():
        return "infinite", f"{name} is not finite (NaN or inf) where numbers are wanted."
    if whole and close(-mine, wanted, tolerance):
        return "sign", f"{name} has the wrong sign everywhere: it is -1 times what is wanted."
    if isinstance(mask, Tensor) and mask.shape == mine.shape:
        if close(mine * mask, wanted * mask, tolerance):
            return "padding", f"{name} is right where the mask is True, but not where it is False."
    if mine.numel() == 1:  # a multiple of any other number, and off by something from it
        return "number", f"{name} is {float(mine):.4f}; {float(wanted):.4f} is wanted."
    factor = float((mine * wanted).sum() / (wanted * wanted).sum().clamp(min=1e-12))
    if whole and abs(factor) > 1e-6 and close(mine / factor, wanted, tolerance):
        return "factor", f"{name} is {factor:.4g} times what is wanted, everywhere."
    offset = float((mine - wanted).mean())
    if whole and close(mine - offset, wanted, tolerance):
        return "offset", f"{name} is off by {offset:.4g} everywhere."
    wrong = ~torch.isclose(mine, wanted.to(mine.dtype), rtol=tolerance, atol=tolerance)
    at = tuple(wrong.nonzero()[0].tolist())
    return "place", (
        f"{name} differs at {int(wrong.sum())} of {wrong.numel()} places, first at {list(at)}: "
        f"{float(mine[at]):.4f}, and {float(wanted[at]):.4f} is wanted."
    )


def difference(
    name: str,
    mine: Sequence[Tensor],
    wanted: Sequence[Tensor],
    first: int,
    mask: Any,
    tolerance: float,
) -> tuple[str, str]:
    """One of relation's words, or "nothing" for zeros alone, and the sentence: of all cases, or of one.

    `first` is the first case that is not right.
    """
    ours, right = (torch.cat([part.flatten() for part in parts]) for parts in (mine, wanted))
    told = int((right.abs() > tolerance).sum())
    if told and not ours.any():
        return "nothing", f"{name} is 0 everywhere."
    word, sentence = relation(name, ours, right, None, tolerance)  # what all cases share
    if word == "infinite" or (told > 1 and word in ("sign", "factor", "offset")):
        return word, sentence
    return relation(name, mine[first], wanted[first], mask, tolerance, whole=False)


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
