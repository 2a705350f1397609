"""Preference pairs in files: those that the user brings, and those that a run keeps."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data.sources import file_source
from gpt.lengths import AnswerFileFlags, check_fit
from gpt.tokenizer import Tokenizer
from harness.errors import UserError
from harness.files import append_jsonl, display_path, read_jsonl
from reward_model.pairs import (
    TokenPair,
    as_pair,
    encode_pairs,
    fitting_pairs,
    lengths_of,
    pair_as_text,
)
from reward_model.world_pairs import PairFlags

PAIR_FILES = ("pairs.jsonl", "held_out_pairs.jsonl")  # in a run folder
MOST_CHECKED = 4000


@dataclass(frozen=True)
class PairFileFlags(AnswerFileFlags, PairFlags):
    """A file of yours"""


def file_pairs(
    config: PairFileFlags, tokenizer: Tokenizer, context: int
) -> tuple[list[TokenPair], list[TokenPair]]:
    """Training and held-out pairs of a preference file that fit, split by prompt.

    Training chooses nothing by held-out pairs, so the test split is among them.
    """
    result = file_source(config.data, tokenizer.chat).pairs()
    result.say()
    parts = result.train_and_held_out(test=True)
    return fitting_pairs(config.data, parts, tokenizer, config.limits(context))


def check_file(config: PairFileFlags, tokenizer: Tokenizer, context: int) -> None:
    """Refuse a file that does not fit, by every nth pair of a large one."""
    records = file_source(config.data, tokenizer.chat).pairs().records
    some = encode_pairs(records[:: len(records) // MOST_CHECKED + 1], tokenizer)
    check_fit(config.data, lengths_of(some), config.limits(context), "pairs")


def keep_pairs(
    folder: Path, pairs: Sequence[TokenPair], held_out: Sequence[TokenPair], tokenizer: Tokenizer
) -> None:
    """Write training and held-out pairs into a run folder, as text to read and as tokens."""
    for name, kept in zip(PAIR_FILES, (pairs, held_out), strict=True):
        append_jsonl(folder / name, (pair_as_text(pair, tokenizer) for pair in kept))


def kept_pairs(folder: Path, tokenizer: Tokenizer) -> tuple[list[TokenPair], list[TokenPair]]:
    """Training and held-out pairs that a run has kept, token by token as they were."""
    paths = [folder / name for name in PAIR_FILES]
    pairs, held_out = ([as_pair(row, tokenizer) for row in read_jsonl(path)] for path in paths)
    for path in paths:  # they were whole before the first state was written
        if not path.read_bytes().endswith(b"\n"):
            raise UserError(f"{display_path(path)} is cut off: restore it, or leave --resume out")
    return pairs, held_out


class SamePairs:
    """In a state, which pairs it was trained on: a run whose files hold others is not resumed."""

    def __init__(self, pairs: Sequence[TokenPair]) -> None:
        tokens = [(pair.prompt, pair.chosen, pair.rejected) for pair in pairs]
        self.digest = hashlib.sha256(repr(tokens).encode()).hexdigest()

    def state_dict(self) -> dict[str, str]:
        return {"sha256": self.digest}

    def load_state_dict(self, state: Mapping[str, str]) -> None:
        if state != self.state_dict():
            raise ValueError(f"{PAIR_FILES[0]} holds other pairs than it was trained on")
