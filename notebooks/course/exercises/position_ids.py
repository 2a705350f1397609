"""Positions of left-padded rows: they count real tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course.exercises import Case, Exercise, Mistake
from data.collate import left_pad, right_pad


def position_ids(mask: Tensor) -> Tensor:
    return (mask.cumsum(1) - 1).clamp(min=0)


def by_counting(mask: Tensor) -> Tensor:
    """Row by row, token by token."""
    positions = torch.zeros(mask.shape, dtype=torch.long)
    for i, row in enumerate(mask.tolist()):
        for j in range(len(row)):
            positions[i, j] = max(sum(row[: j + 1]) - 1, 0)
    return positions


def columns(mask: Tensor) -> Tensor:
    return torch.arange(mask.shape[1]).expand(mask.shape)


def from_one(mask: Tensor) -> Tensor:
    return mask.cumsum(1)


def negative_at_padding(mask: Tensor) -> Tensor:
    return mask.cumsum(1) - 1


def shifted_by_the_first_row(mask: Tensor) -> Tensor:
    padding = int((~mask[0]).sum())
    return (torch.arange(mask.shape[1]) - padding).clamp(min=0).expand(mask.shape)


def padding_counted(mask: Tensor) -> Tensor:
    return ((~mask).cumsum(1) - 1).clamp(min=0)


def ragged(generator: torch.Generator) -> Mapping[str, Any]:
    lengths = torch.randint(1, 8, (int(torch.randint(2, 6, (1,), generator=generator)),),
                            generator=generator)  # fmt: skip
    rows = [[5] * length for length in [*lengths.tolist(), 3, 8]]
    pad = left_pad if torch.rand((), generator=generator) < 0.7 else right_pad
    return {"mask": pad(rows, 0)[1]}


def case(about: str, mask: list[int], wanted: list[int]) -> Case:
    return Case(about, {"mask": torch.tensor([mask], dtype=torch.bool)}, [wanted])


EXERCISE = Exercise(
    statement=(
        "mask (N, S) is True at real tokens. Return each column's position: real tokens count "
        "0, 1, 2, ...; padding in front of a row has position 0."
    ),
    solution=position_ids,
    library=by_counting,
    cases=(
        case("three tokens with two columns of padding in front", [0, 0, 1, 1, 1], [0, 0, 0, 1, 2]),
        case("no padding", [1, 1, 1, 1, 1], [0, 1, 2, 3, 4]),
        case("padding after the row: the count stands still", [1, 1, 0, 0], [0, 1, 1, 1]),
    ),
    random=ragged,
    mistakes=(
        Mistake(
            "columns",
            "you count columns. The first word of a prompt must get position 0 wherever it stands: "
            "count real tokens.",
            columns,
        ),
        Mistake(
            "from_one",
            "right, except that you count from 1. The first real token has position 0.",
            from_one,
        ),
        Mistake(
            "negative_at_padding",
            "right at real tokens, but padding in front gets -1, and an embedding table has no row "
            "-1. Hold it at 0.",
            negative_at_padding,
        ),
        Mistake(
            "shifted_by_the_first_row",
            "you shift all rows by the padding of the first one. Every row has its own.",
            shifted_by_the_first_row,
        ),
        Mistake(
            "padding_counted",
            "you count padding instead of real tokens: the mask is turned round.",
            padding_counted,
        ),
    ),
)
