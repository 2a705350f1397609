"""The three record types that every reader, world and engine shares, and how they are split and drawn.

The text in a record is exactly what is tokenized: tokens(prompt) + tokens(response) + EOS. Nothing
adds a separator later, so a space or a newline between the two belongs to one of the strings.

A split is decided by a real hash of the text. A hash that is linear in the numbers leaks structure: for
the sum of a and b, (a * 1000003 + b) % 10 equals (3a + b) % 10, so one pair of unit digits always
lands in one split. The rows of a file are split by their question as it is meant (`question_of`):
spelled in two ways, or rendered on two days, it has one split. Draws use `random.Random.random` alone,
whose sequence Python promises to keep.
"""

from __future__ import annotations

import random
import unicodedata
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

from data.templates import Turn
from harness.files import split_rule

BY_PROMPT = 1  # the first rule by which files were split (harness/files.py)
Split = Literal["train", "validation", "test"]
SPLITS: tuple[str, ...] = get_args(Split)
Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the records of a file's rows have in common."""

    question: str = field(default="", compare=False, repr=False)  # what splits it; "": its prompt
    # The conversation that the prompt was written of, for who reads it in another form; None of plain text.
    turns: tuple[Turn, ...] | None = field(default=None, compare=False, repr=False)
    in_messages: bool = field(default=False, compare=False, repr=False)  # and the file has them so


@dataclass(frozen=True)
class PromptRecord(Asked):
    """What a policy is asked. `answer` is the ground truth where a rule or a reward can check it."""

    prompt: str
    answer: Any = None  # a JSON value, but a number is text
    meta: Mapping[str, Any] = field(default_factory=dict)  # the other columns of a file's row


@dataclass(frozen=True)
class ResponseRecord(Asked):
    """A prompt with one answer to learn from (supervised fine-tuning, pre-training documents)."""

    prompt: str
    response: str
    meta: Mapping[str, Any] = field(default_factory=dict)


# What a reward model's run records beside the text of a pair (reward_model/pairs.py): whether an answer
# ended, and its token ids.
SPLIT_KEY = "split_key"  # a column that says by what a row is split, beside recorded tokens
LABEL = "label"  # in the meta of a pair of which one answer is there: whether it is the chosen one
TURNS = "turns"  # one with the messages of its conversation, there too
RECORDED = ("chosen_ended", "rejected_ended", "chosen_tokens", "rejected_tokens")


@dataclass(frozen=True)
class PreferenceRecord(Asked):
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


class _Letters(dict[int, int | None]):
    """For str.translate: letters, marks, digits and signs stay, all other characters go."""

    def __missing__(self, code: int) -> int | None:
        self[code] = code if unicodedata.category(chr(code))[0] in "LMNS" else None
        return self[code]


LETTERS = _Letters()


def question_of(turns: Iterable[str]) -> str:
    """The texts of a conversation's turns without what makes them no other question.

    That is case, white space, punctuation, and how Unicode writes a letter or a sign.
    """
    folded = unicodedata.normalize("NFKC", "".join(turns)).casefold()
    return unicodedata.normalize("NFKC", folded).translate(LETTERS) or folded


def key_of(record: Asked) -> str:
    """What decides the split of a record: its question, where it is a row of a file, else its prompt.

    The prompt, too, in a run that began when that split files.
    """
    prompt: str = record.prompt  # type: ignore[attr-defined]  # each of the three has one
    return prompt if split_rule() == BY_PROMPT else record.question or prompt


def pick(rng: random.Random, choices: Sequence[Item]) -> Item:
    return choices[int(rng.random() * len(choices))]


def shuffled(items: Sequence[Item], rng: random.Random) -> list[Item]:
    """Return a copy of `items` in a random order (a sort by random keys)."""
    keys = [rng.random() for _ in items]
    return [items[index] for index in sorted(range(len(items)), key=keys.__getitem__)]
