"""Files of preference pairs, split so that no question has a near-duplicate on another side.

A question's group is its template: questions are in one group where their words overlap by three fifths
(Jaccard), directly or through others, or where one instruction has several inputs. A group is in one part
alone: that of the payer, that of the judge, or the held-out one. The pairs that people made (`people`) are
split in three by instruction, and every third is held out once.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from data.records import SPLIT_KEY, Split, split_of
from data.templates import ChatForm, instruction_prompt, instruction_text
from data.worlds.instructions import words as words_in
from harness.files import read_json, read_jsonl, write_text

Row = dict[str, Any]
ALIKE = 0.6  # overlap of words from which two questions are near-duplicates
HELD_OUT = 0.2  # share of the polite pairs
FOLDS = 3  # of the pairs that people made


def rows_of(path: Path, chat: ChatForm | None) -> list[Row]:
    """The pairs of a file of instruction, input, chosen and rejected, in a fixed order without theme."""
    found = []
    for row in read_jsonl(path) if path.suffix == ".jsonl" else read_json(path):
        asked = instruction_text(row["instruction"], row["input"])
        texts = {key: row[key].strip() for key in ("output", "chosen", "rejected") if key in row}
        if texts["chosen"] != texts["rejected"]:
            about = {
                key: row[key]
                for key in ("instruction", "input", "annotators_for_chosen")
                if key in row
            }
            found.append(
                {"prompt": instruction_prompt(asked, chat), "asked": asked} | about | texts
            )
    return sorted(found, key=lambda row: zlib.crc32(json.dumps(row).encode()))


def groups_of(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows by group, the largest group first."""
    questions = sorted({(row["instruction"], row["input"]) for row in rows})
    parent = {question: question for question in questions}

    def root(question: tuple[str, str]) -> tuple[str, str]:
        while parent[question] != question:
            question = parent[question]
        return question

    first_with: dict[str, tuple[str, str]] = {}
    said = {question: frozenset(words_in(" ".join(question))) for question in questions}
    for at, question in enumerate(questions):
        if question[1]:
            same = first_with.setdefault(question[0].lower(), question)
            parent[root(question)] = root(same)
        for other in questions[:at]:
            both, all_words = said[question] & said[other], said[question] | said[other]
            if len(both) >= ALIKE * len(all_words):
                parent[root(question)] = root(other)
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault(root((row["instruction"], row["input"])), []).append(row)
    return sorted(groups.values(), key=len, reverse=True)


def dealt(groups: Sequence[list[Row]], shares: Sequence[float]) -> list[list[Row]]:
    """The groups in parts of about these shares: each goes where most is missing."""
    total, parts = sum(map(len, groups)), [list[Row]() for _ in shares]
    for group in groups:
        missing = [share * total - len(part) for share, part in zip(shares, parts, strict=True)]
        parts[missing.index(max(missing))].extend(group)
    return parts


def marked(rows: Sequence[Row], split: Split) -> list[Row]:
    """Rows with a key by which every command puts them into this split; one prompt has one key."""
    keys: dict[str, str] = {}
    for row in rows:
        tries = (f"{row['asked']} {n}" for n in count())
        keys.setdefault(row["prompt"], next(key for key in tries if split_of(key) == split))
    return [row | {SPLIT_KEY: keys[row["prompt"]]} for row in rows]


def parts_of_polite(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The payer's half `a`, the judge's half `b`, and what is held out of both."""
    half = (1 - HELD_OUT) / 2
    a, b, validation, test = dealt(groups_of(rows), (half, half, HELD_OUT / 4, HELD_OUT * 3 / 4))
    return {"a": a, "b": b, "validation": validation, "test": test}


def parts_of_people(rows: Sequence[Row]) -> list[list[Row]]:
    """The thirds, each with other instructions."""
    return dealt(groups_of(rows), [1 / FOLDS] * FOLDS)


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write them where they are not so already: jobs may be reading the file."""
    kept = [{k: row[k] for k in row if k not in ("instruction", "input")} for row in rows]
    text = "".join(f"{json.dumps(row)}\n" for row in kept)
    if not path.exists() or path.read_text("utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
