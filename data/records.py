"""The three record types that every reader, world and engine shares, and how they are split and drawn.

The text in a record is exactly what is tokenized: tokens(prompt) + tokens(response) + EOS. Nothing
adds a separator later, so a space or a newline between the two belongs to one of the strings.

A split is decided by a real hash of the text. A hash that is linear in the numbers leaks structure: for
the sum of a and b, (a * 1000003 + b) % 10 equals (3a + b) % 10, so one pair of unit digits always
lands in one split. Draws use `random.Random.random` alone, whose sequence Python promises to keep.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

Split = Literal["train", "validation", "test"]
SPLITS: tuple[str, ...] = get_args(Split)
Item = TypeVar("Item")


@dataclass(frozen=True)
class PromptRecord:
    """What a policy is asked. `answer` is the ground truth where a rule or a reward can check it."""

    prompt: str
    answer: Any = None  # a JSON value, but a number is text
    meta: Mapping[str, Any] = field(default_factory=dict)  # the other columns of a file's row


@dataclass(frozen=True)
class ResponseRecord:
    """A prompt with one answer to learn from (supervised fine-tuning, pre-training documents)."""

    prompt: str
    response: str
    meta: Mapping[str, Any] = field(default_factory=dict)


# What a reward model's run records beside the text of a pair (reward_model/pairs.py): whether an answer
# ended, and its token ids.
RECORDED = ("chosen_ended", "rejected_ended", "chosen_tokens", "rejected_tokens")


@dataclass(frozen=True)
class PreferenceRecord:
    """A prompt with a preferred and a rejected answer (reward models, DPO)."""

    prompt: str
    chosen: str
    rejected: str
    meta: Mapping[str, Any] = field(default_factory=dict)


# Splits and draws ---------------------------------------------------------------------------------


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
