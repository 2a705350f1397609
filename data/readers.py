"""Read preference pairs, answers, prompts and plain text from files on disk.

    read_preferences   reward models, DPO      PreferenceRecord
    read_responses     supervised fine-tuning  ResponseRecord
    read_prompts       what a policy is asked  PromptRecord
    read_text          pre-training            list of documents

rows.py reads the file, and the first row's keys say what kind of rows it has (formats.py). What cannot be
used is dropped whole and counted by reason; what breaks its format is a UserError with file and line. No
text is ever cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from data.formats import FORMATS, OWN_PAIRS, Answered, DropRow, Format, recorded_sides
from data.records import PreferenceRecord, PromptRecord, ResponseRecord
from data.rows import BadRow, Row, bad_row, holds_rows, listed, rows_of, text_in, text_of
from data.splits import Split, split_of
from harness.errors import UserError

Record = TypeVar("Record", PreferenceRecord, ResponseRecord, PromptRecord)


@dataclass(frozen=True)
class ReadResult(Generic[Record]):
    """The records of one file, what was dropped (rows by reason) and the format recognised."""

    records: list[Record]
    dropped: dict[str, int]
    format: str
    source: str

    def summary(self) -> str:
        """One sentence about the file: kept, dropped, and answers that touch their prompt."""
        kept, dropped = len(self.records), self.dropped
        parts = [
            f"{self.source} ({self.format}): {kept:,} of {kept + sum(dropped.values()):,} rows kept"
        ]
        if dropped:
            parts.append(f"dropped: {_reasons(dropped)}")
        touching = sum(_touches(record) for record in self.records)
        if touching:
            parts.append(
                f"no space or line break between prompt and answer in {touching:,}: end the prompt with one"
            )
        return "; ".join(parts)


def _reasons(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in dropped.items())


def read_preferences(path: str | Path) -> ReadResult[PreferenceRecord]:
    """Read (prompt, chosen, rejected) records.

    Dropped: rows whose two sides answer different prompts, empty prompts or answers, identical
    answers, equal scores. `meta` has recorded tokens, by which pairs are then compared.
    """
    return _read(path, _preference)


def read_responses(path: str | Path) -> ReadResult[ResponseRecord]:
    """Read (prompt, response) records to learn from; preference data gives its chosen answers.

    Alpaca files with `chosen` use that and not `output`, which often equals `rejected`. Dropped: empty
    prompts or answers.
    """
    return _read(path, _response)


def read_prompts(path: str | Path, *, limit: int | None = None) -> ReadResult[PromptRecord]:
    """Read the prompts of any file that are not empty, at most `limit`; `answer` is the ground truth.

    GSM8K's answer is its final number, without thousands commas.
    """
    return _read(path, _prompt, limit)


def read_text(path: str | Path) -> list[str]:
    """Read documents: the `text` of every row of a file of rows, or one whole text file.

    A folder gives one document per .txt file in it, by name.
    """
    if Path(path).is_dir():
        documents = [text_in(file) for file in sorted(Path(path).glob("*.txt"))]
    elif holds_rows(path):
        documents = [_document(path, place, row) for place, row in rows_of(path)]
    else:
        documents = [text_in(path)]
    kept = [document for document in documents if document.strip()]
    if not kept:
        raise UserError(f"{path}: there is no text in it; give a file with at least one document")
    return kept


def _document(path: str | Path, place: str, row: Row) -> str:
    try:
        return text_of(row, "text")
    except BadRow as error:
        raise bad_row(path, place, error) from None


def split_records(records: Iterable[Record]) -> dict[Split, list[Record]]:
    """Records by a hash of their prompt: train, validation and test (80, 10 and 10 %)."""
    splits: dict[Split, list[Record]] = {"train": [], "validation": [], "test": []}
    for record in records:
        splits[split_of(record.prompt)].append(record)
    return splits


def _touches(record: PreferenceRecord | ResponseRecord | PromptRecord) -> bool:
    """Whether a word of the prompt runs into a word of an answer: nothing is put between them."""
    answers = [getattr(record, name, " ") for name in ("chosen", "rejected", "response")]
    ends_open = not record.prompt[-1:].isspace()
    return ends_open and any(not answer[:1].isspace() for answer in answers)


# From one row to one record.


def _texts(kind: Format, answered: Answered | None, what: str) -> tuple[str, str]:
    """Prompt and answer; BadRow where such rows have none."""
    if answered is None or answered.response is None:
        raise BadRow(f"{kind.name} rows hold no {what} (data/README.md has those that do)")
    return answered.prompt, answered.response


def _require_text(prompt: str, response: str) -> None:
    if not prompt.strip():
        raise DropRow("empty prompt")
    if not response.strip():
        raise DropRow("empty answer")


def _preference(kind: Format, row: Row) -> PreferenceRecord:
    content = kind.read(row)
    rejected = _texts(kind, content.rejected, "preference pairs")
    chosen = _texts(kind, content.chosen, "preference pairs")
    if chosen[0] != rejected[0]:
        raise DropRow("prompts differ")
    meta = recorded_sides(row) if kind is OWN_PAIRS else {}
    if {"chosen_tokens", "rejected_tokens"} <= meta.keys():  # two of them may read alike
        alike = meta["chosen_tokens"] == meta["rejected_tokens"]
    else:
        for side in (chosen, rejected):
            _require_text(*side)
        alike = chosen == rejected
    if alike:
        raise DropRow("chosen equals rejected")
    if row.get("score_chosen") is not None and row["score_chosen"] == row.get("score_rejected"):
        raise DropRow("equal scores")
    return PreferenceRecord(*chosen, rejected[1], meta)


def _response(kind: Format, row: Row) -> ResponseRecord:
    texts = _texts(kind, kind.read(row).chosen, "answers")
    _require_text(*texts)
    return ResponseRecord(*texts)


def _prompt(kind: Format, row: Row) -> PromptRecord:
    content = kind.read(row)
    if not content.chosen.prompt.strip():
        raise DropRow("empty prompt")
    return PromptRecord(content.chosen.prompt, content.answer)


def _read(
    path: str | Path,
    convert: Callable[[Format, Row], Record],
    limit: int | None = None,
) -> ReadResult[Record]:
    """Convert the rows of a file; the module's docstring says what stops and what is counted."""
    records: list[Record] = []
    dropped: Counter[str] = Counter()
    kind = None
    for place, row in rows_of(path):
        kind = kind or _recognise(path, place, row)
        try:
            records.append(convert(kind, row))
        except BadRow as error:
            raise bad_row(path, place, error) from None
        except DropRow as reason:
            dropped[str(reason)] += 1
        if len(records) == limit:
            break
    if kind is None:
        raise UserError(f"{path}: there are no rows in it; give a file with at least one")
    if not records:
        raise UserError(f"{path}: no row can be used ({_reasons(dropped)}); correct the file")
    return ReadResult(records, dict(dropped), kind.name, str(path))


def _recognise(path: str | Path, place: str, row: Row) -> Format:
    for kind in FORMATS:
        if kind.matches(row):
            return kind
    known = "; ".join(kind.keys for kind in FORMATS)
    raise UserError(
        f"{path}:{place}: keys {listed(row)} fit no format: give (CSV: in line 1) the keys of one, {known}"
    )
