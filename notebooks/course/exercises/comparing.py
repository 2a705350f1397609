"""Numbers beside the wanted ones: what is wrong, of all cases, or of the first that is not right."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from conformance.comparing import relation


def difference(
    name: str,
    mine: Sequence[Tensor],
    wanted: Sequence[Tensor],
    first: int,
    mask: Tensor | None,
    tolerance: float,
) -> tuple[str, str]:
    """In a word and in a sentence what is wrong: one of relation's words, or "nothing" for zeros alone."""
    ours, right = (torch.cat([part.flatten() for part in parts]) for parts in (mine, wanted))
    told = int((right.abs() > tolerance).sum())
    if told and not ours.any():
        return "nothing", f"{name} is 0 everywhere."
    word, sentence = relation(name, ours, right, None, tolerance)  # what all cases share
    if word == "infinite" or (told > 1 and word in ("sign", "factor", "offset")):
        return word, sentence
    return relation(name, mine[first], wanted[first], mask, tolerance, whole=False)
