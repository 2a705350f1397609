"""Positions of left-padded rows: they count real tokens."""

import torch

from course.exercises import Arguments, Case, Exercise, mistake
from data.collate import left_pad, right_pad


def position_ids(mask):
    return (mask.cumsum(1) - 1).clamp(min=0)


def by_counting(mask):
    """Row by row, token by token."""
    positions = torch.zeros(mask.shape, dtype=torch.long)
    for i, row in enumerate(mask.tolist()):
        for j in range(len(row)):
            positions[i, j] = max(sum(row[: j + 1]) - 1, 0)
    return positions


@mistake
def columns(mask):
    """you count columns. The first word of a prompt must get position 0 wherever it stands: count
    real tokens."""
    return torch.arange(mask.shape[1]).expand(mask.shape)


@mistake
def from_one(mask):
    """right, except that you count from 1. The first real token has position 0."""
    return mask.cumsum(1)


@mistake
def negative_at_padding(mask):
    """right at real tokens, but padding in front gets -1, and an embedding table has no row -1.
    Hold it at 0."""
    return mask.cumsum(1) - 1


@mistake
def shifted_by_the_first_row(mask):
    """you shift all rows by the padding of the first one. Every row has its own."""
    padding = int((~mask[0]).sum())
    return (torch.arange(mask.shape[1]) - padding).clamp(min=0).expand(mask.shape)


@mistake
def padding_counted(mask):
    """you count padding instead of real tokens: the mask is turned round."""
    return ((~mask).cumsum(1) - 1).clamp(min=0)


def ragged(generator: torch.Generator) -> Arguments:
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
)
