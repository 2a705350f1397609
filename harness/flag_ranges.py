"""What a flag may be, written beside the flag: `lr: NotNegative = 1e-3`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, get_args, get_type_hints

from harness.errors import UserError

LARGEST = 1e12  # what multiplies numbers in float32 must leave room for them
LARGEST_INTEGER = 2**63 - 1


@dataclass(frozen=True)
class Range:
    """An interval, as in "[0, 1)", and the words for a value outside of it."""

    interval: str
    words: str = ""

    def holds(self, value: float, ends: Mapping[str, float] = MappingProxyType({})) -> bool:
        """Whether the value lies inside, NaN never; `ends` are those that the interval names."""
        low, high = (
            ends[end] if end in ends else float(end) for end in self.interval[1:-1].split(", ")
        )
        above = value >= low if self.interval[0] == "[" else value > low
        return above and (value <= high if self.interval[-1] == "]" else value < high)

    @property
    def unlimited(self) -> bool:
        """Whether infinity is one of its values, which then means that there is no limit."""
        return self.interval.endswith("inf]")


@dataclass(frozen=True)
class NotEmpty:
    """A text that must say something, and the words for one that does not."""

    words: str


AtLeastOne = Annotated[int, Range("[1, inf)", "must be at least 1")]
AtLeastTwo = Annotated[int, Range("[2, inf)", "must be at least 2")]
Count = Annotated[int, Range("[0, inf)", "must not be negative")]
NotNegative = Annotated[float, Range("[0, inf)", "must not be negative")]
AboveZero = Annotated[float, Range("(0, inf)", "must be above 0")]
Limit = Annotated[float, Range("(0, inf]", "must be above 0")]
KLLimit = Annotated[float, Range("(0, inf]", "must be above 0, any run would stop there")]
ZeroToOne = Annotated[float, Range("[0, 1]", "must be in 0..1")]
Share = Annotated[float, Range("(0, 1]", "is a share, above 0 and at most 1")]
Seed = Annotated[
    int,
    Range(f"[{-LARGEST_INTEGER}, {LARGEST_INTEGER}]", f"must be at most {LARGEST_INTEGER} in size"),
]


@cache
def ranges_of(config_class: type) -> dict[str, Range | NotEmpty]:
    """The range of every field that has one. A class that gives only a new default keeps its base's."""
    ranges: dict[str, Range | NotEmpty] = {}
    for base in reversed(config_class.__mro__[:-1]):
        for name, hint in get_type_hints(base, include_extras=True).items():
            if name not in vars(base).get("__annotations__", {}):
                continue
            for part in (hint, *get_args(hint)):
                found = getattr(part, "__metadata__", ())
                ranges.update((name, r) for r in found if isinstance(r, (Range, NotEmpty)))
    return ranges


def check_ranges(config: object) -> None:
    """UserError for the first field of a script's config that no run can mean; None passes.

    NaN is one for every flag: each comparison with it is False, so it would switch off in silence what
    the flag controls. So is a number that float32 cannot calculate with.
    """
    values, ranges = vars(config), ranges_of(type(config))  # type: ignore[arg-type]  # it is hashable
    for name, value in values.items():
        if isinstance(value, float) and math.isnan(value) and name not in ranges:
            raise UserError(f"{name} must be a number: got nan")
    for name, allowed in ranges.items():
        for value in values[name] if isinstance(values[name], tuple) else (values[name],):
            if not _inside(value, allowed):
                raise UserError(
                    f"{name} {allowed.words}" + (f": got {value}" if value != "" else "")
                )
    for name, value in values.items():
        if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            raise UserError(f"{name} must be at most {LARGEST_INTEGER} in size: got {value}")
        limit = ranges.get(name)
        unlimited = isinstance(limit, Range) and limit.unlimited and value == math.inf
        if isinstance(value, float) and abs(value) > LARGEST and not unlimited:
            raise UserError(f"{name} must be finite, and at most {LARGEST:g} in size: got {value}")


def _inside(value: Any, allowed: Range | NotEmpty) -> bool:
    """Whether a value is in its range; infinity is told with words of its own, below."""
    if isinstance(allowed, NotEmpty):
        return value != ""
    if not isinstance(value, (int, float)):
        return True
    return math.isinf(value) or allowed.holds(value)
