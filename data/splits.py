"""Deterministic splits and draws shared by the generated worlds.

A split is decided by a real hash of the text. One that is linear in the numbers leaks structure: for
the sum of a and b, (a * 1000003 + b) % 10 equals (3a + b) % 10, so one pair of unit digits always
lands in one split.

Draws use `random.Random.random` alone, whose sequence Python promises to keep.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from typing import Literal, TypeVar, get_args

Split = Literal["train", "validation", "test"]
SPLITS: tuple[str, ...] = get_args(Split)
Item = TypeVar("Item")


def split_of(key: str) -> Split:
    """Return the split of `key`: crc32(key) % 100 below 10 is test, below 20 validation."""
    bucket = zlib.crc32(key.encode("utf-8")) % 100
    if bucket < 10:
        return "test"
    return "validation" if bucket < 20 else "train"


def pick(rng: random.Random, choices: Sequence[Item]) -> Item:
    return choices[int(rng.random() * len(choices))]


def shuffled(items: Sequence[Item], rng: random.Random) -> list[Item]:
    """Return a copy of `items` in a random order (a sort by random keys)."""
    keys = [rng.random() for _ in items]
    return [items[index] for index in sorted(range(len(items)), key=keys.__getitem__)]
