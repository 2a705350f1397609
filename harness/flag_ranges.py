"""What a flag may be, written beside the flag: `lr: NotNegative = 1e-3`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Annotated, get_args, get_type_hints

from harness.errors import UserError

LARGEST = 1e12  # what multiplies numbers in float32 must leave room for them
LARGEST_INTEGER = 2**63 - 1


@dataclass(frozen=True)
class Range:
    """An interval, as in "[0, 1)", and the words for a value outside of it."""

    interval: str
    words: str

    def holds(self, value: float) -> bool:
        """Whether the value lies inside, NaN never."""
        low, high = map(float, self.interval[1:-1].split(", "))
        above = value >= low if self.interval[0] == "[" else value > low
        return above and (value <= high if self.interval[-1] == "]" else value < high)


ANY = Range("(-inf, inf)", "")
AtLeastOne = Annotated[int, Range("[1, inf)", "must be at least 1")]
AtLeastTwo = Annotated[int, Range("[2, inf)", "must be at least 2")]
Count = Annotated[int, Range("[0, inf)", "must not be negative")]
NotNegative = Annotated[float, Range("[0, inf)", "must not be negative")]
AboveZero = Annotated[float, Range("(0, inf)", "must be above 0")]
Limit = Annotated[float, Range("(0, inf]", "must be above 0")]
KLLimit = Annotated[float, Range("(0, inf]", "must be above 0, any run would stop there")]
ZeroToOne = Annotated[float, Range("[0, 1]", "must be in 0..1")]


@cache
def ranges_of(config_class: type) -> dict[str, Range]:
    """The range of every field that has one, also as `AtLeastOne | None`."""
    return {
        name: found
        for name, hint in get_type_hints(config_class, include_extras=True).items()
        for part in (hint, *get_args(hint))
        for found in getattr(part, "__metadata__", ())
        if isinstance(found, Range)
    }


def check_ranges(config: object) -> None:
    """UserError for the first field of a script's config that no run can mean; None passes.

    NaN is one for every flag: each comparison with it is False, so it would switch off in silence what
    the flag controls. So is a number that float32 cannot calculate with.
    """
    ranges = ranges_of(type(config))  # type: ignore[arg-type]  # it is hashable
    for name, value in vars(config).items():
        if not isinstance(value, (int, float)):
            continue
        allowed = ranges.get(name, ANY)
        no_limit = value == math.inf and allowed.interval.endswith("inf]")
        largest = LARGEST_INTEGER if isinstance(value, int) else LARGEST
        if not (abs(value) <= largest or no_limit):
            raise UserError(f"{name} must be finite, and at most {largest:g} in size: got {value}")
        if not allowed.holds(value):
            raise UserError(f"{name} {allowed.words}: got {value}")
