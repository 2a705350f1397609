"""Preference pairs in files: those that the user brings, and those that a run keeps."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from data.readers import read_preferences, split_records
from data.records import PreferenceRecord
from gpt.tokenizer import Tokenizer
from harness.errors import UserError
from harness.files import append_jsonl, display_path, read_jsonl
from reward_model.pairs import (
    TokenPair,
    as_pair,
    encode_pairs,
    keep_fitting,
    pair_as_text,
    preference_strength,
)

PAIR_FILES = ("pairs.jsonl", "held_out_pairs.jsonl")  # in a run folder


class FileConfig(Protocol):
    """The fields of a config that say which file is read, and what of it is used."""

    @property
    def data(self) -> str: ...

    @property
    def margin_from(self) -> str: ...

    @property
    def max_prompt_tokens(self) -> int: ...

    @property
    def max_response_tokens(self) -> int: ...


def file_pairs(
    config: FileConfig, tokenizer: Tokenizer, context: int
) -> tuple[list[TokenPair], list[TokenPair]]:
    """Training and held-out pairs of a preference file that fit, split by prompt."""
    result = read_preferences(Path(config.data))
    print(result.summary())
    require_strengths(result.records, config)
    splits = split_records(result.records)
    limits = (config.max_prompt_tokens, config.max_response_tokens, context)
    fitting, dropped = dict[str, list[TokenPair]](), Counter[str]()
    for name, part in splits.items():
        fitting[name], too_long = keep_fitting(encode_pairs(part, tokenizer), *limits)
        dropped += too_long
    for reason, count in dropped.items():
        print(f"left out {count} pairs: {reason}")
    if not fitting["train"] or not fitting["validation"]:
        usable = sum(map(len, fitting.values()))
        prompts = len({tuple(pair.prompt) for part in fitting.values() for pair in part})
        raise UserError(
            f"{config.data}: {usable} usable pairs are too few to train and validate on, which takes "
            f"several prompts (these have {prompts}): give more"
        )
    return fitting["train"], fitting["validation"]


def check_file(config: FileConfig) -> None:
    """Refuse a file whose first pair lacks what the flags need, before a base is pre-trained."""
    require_strengths(read_preferences(Path(config.data), limit=1).records, config)


def require_strengths(records: Sequence[PreferenceRecord], config: FileConfig) -> None:
    """UserError if the margins are to come from strengths and a record has none."""
    if config.margin_from != "strength":
        return
    for record in records:
        if preference_strength(record.meta) is None:
            raise UserError(
                f"{config.data}: the pair of {record.prompt[:60]!r} does not say how strongly its "
                "answer is preferred: --margin-from strength needs rows with `margin`, or with "
                "score_chosen and a score_rejected that is no higher; else use --margin-from constant"
            )


def keep_pairs(
    folder: Path, pairs: Sequence[TokenPair], held_out: Sequence[TokenPair], tokenizer: Tokenizer
) -> None:
    """Write training and held-out pairs into a run folder, as text to read and as tokens."""
    for name, kept in zip(PAIR_FILES, (pairs, held_out), strict=True):
        append_jsonl(folder / name, (pair_as_text(pair, tokenizer) for pair in kept))


def kept_pairs(folder: Path, tokenizer: Tokenizer) -> tuple[list[TokenPair], list[TokenPair]]:
    """Training and held-out pairs that a run has kept, token by token as they were."""
    pairs, held_out = (
        [as_pair(row, tokenizer) for row in read_jsonl(folder / name)] for name in PAIR_FILES
    )
    for name in PAIR_FILES:  # they were whole before the first state was written
        if not (folder / name).read_bytes().endswith(b"\n"):
            raise UserError(
                f"{display_path(folder / name)} is cut off: restore it, or leave --resume out"
            )
    return pairs, held_out


class SamePairs:
    """In a state, which pairs it was trained on: a run whose files hold others is not resumed."""

    def __init__(self, pairs: Sequence[TokenPair]) -> None:
        tokens = [(pair.prompt, pair.chosen, pair.rejected) for pair in pairs]
        self.digest = hashlib.sha256(repr(tokens).encode()).hexdigest()

    def state_dict(self) -> dict[str, str]:
        """Their hash."""
        return {"sha256": self.digest}

    def load_state_dict(self, state: Mapping[str, str]) -> None:
        """ValueError for those of other pairs."""
        if state != self.state_dict():
            raise ValueError(f"{PAIR_FILES[0]} holds other pairs than it was trained on")
