"""Read preference pairs, answers, prompts and plain text from files on disk.

    read_preferences   reward models, DPO      PreferenceRecord
    read_responses     supervised fine-tuning  ResponseRecord
    read_prompts       what a policy is asked  PromptRecord
    read_text          pre-training            list of documents

JSON lines, a JSON array and gzipped files are told apart by content, CSV by name, the
kind of rows by the first row's keys (formats.py). What cannot be used is dropped whole and counted by
reason; what breaks its format is a DataError with file and line. No text is ever cut.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import stat
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Generic, TypeVar, cast

from data.formats import (
    FORMATS,
    OWN_PAIRS,
    Answered,
    BadRow,
    DropRow,
    Format,
    Row,
    listed,
    recorded_sides,
    text_of,
)
from data.records import PreferenceRecord, PromptRecord, ResponseRecord
from data.splits import Split, split_of
from data.templates import HEADINGS, instruction_prompt
from harness.errors import UserError

Record = TypeVar("Record", PreferenceRecord, ResponseRecord, PromptRecord)
LONGEST_LINE = 2**26  # bytes, or characters of a cell, for which Python's own limit is 131,072
MOST_AT_ONCE = 2**30  # bytes: a gzipped file of 1 MB can hold as much


class DataError(UserError):
    """A file cannot be used; the message says where, what is wrong and what to do."""


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
                f"no space or line break between prompt and answer in {touching:,}: --template puts the "
                "project's headings there"
            )
        return "; ".join(parts)


def _reasons(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in dropped.items())


def read_preferences(
    path: str | Path, *, limit: int | None = None, template: bool = False
) -> ReadResult[PreferenceRecord]:
    """Read (prompt, chosen, rejected) records, at most `limit` of them.

    Dropped: rows whose two sides answer different prompts, empty prompts or answers, identical
    answers, equal scores. `meta` has recorded tokens, by which pairs are then compared. Raises
    DataError for a file that is unreadable or holds no pairs.
    """
    return _read(path, _preference, limit, template)


def read_responses(
    path: str | Path, *, limit: int | None = None, template: bool = False
) -> ReadResult[ResponseRecord]:
    """Read (prompt, response) records to learn from; preference data gives its chosen answers.

    Alpaca files with `chosen` use that and not `output`, which often equals `rejected`. Dropped: empty
    prompts or answers.
    """
    return _read(path, _response, limit, template)


def read_prompts(
    path: str | Path, *, limit: int | None = None, template: bool = False
) -> ReadResult[PromptRecord]:
    """Read the prompts of any file that are not empty, with the ground truth as `answer`.

    GSM8K's answer is its final number, without thousands commas.
    """
    return _read(path, _prompt, limit, template)


def read_text(path: str | Path) -> list[str]:
    """Read documents: the `text` of every row of a .json or .jsonl file, or one whole text file.

    A folder gives one document per .txt file in it, by name.
    """
    if Path(path).is_dir():
        documents = [_whole_text(file) for file in sorted(Path(path).glob("*.txt"))]
    elif holds_rows(path):
        documents = []
        for place, row in rows_of(path):
            with row_errors(path, place):
                documents.append(text_of(row, "text"))
    else:
        documents = [_whole_text(path)]
    kept = [document for document in documents if document.strip()]
    if not kept:
        raise DataError(f"{path}: there is no text in it; give a file with at least one document")
    return kept


def holds_rows(path: str | Path) -> bool:
    """Whether a file's name promises rows and no plain text."""
    return is_table(path) or _plain_name(path).endswith((".json", ".jsonl"))


def is_table(path: str | Path) -> bool:
    """Whether a name ends as that of a CSV file does, gzipped or not."""
    return _plain_name(path).endswith(".csv")


def _plain_name(path: str | Path) -> str:
    return Path(path).name.lower().removesuffix(".gz")


def split_records(records: Iterable[Record]) -> dict[Split, list[Record]]:
    """Records by a hash of their prompt: train, validation and test (80, 10 and 10 %)."""
    splits: dict[Split, list[Record]] = {"train": [], "validation": [], "test": []}
    for record in records:
        splits[split_of(record.prompt)].append(record)
    return splits


def _answers(record: PreferenceRecord | ResponseRecord | PromptRecord) -> dict[str, Any]:
    """The record's answers, by their names."""
    names = [name for name in ("chosen", "rejected", "response") if hasattr(record, name)]
    return {name: getattr(record, name) for name in names}


def _touches(record: PreferenceRecord | ResponseRecord | PromptRecord) -> bool:
    """Whether a word of the prompt runs into a word of an answer: nothing is put between them."""
    ends_open = not record.prompt[-1:].isspace()
    return ends_open and any(not answer[:1].isspace() for answer in _answers(record).values())


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
        if meta["chosen_tokens"] == meta["rejected_tokens"]:
            raise DropRow("chosen equals rejected")
    else:
        for side in (chosen, rejected):
            _require_text(*side)
        if chosen == rejected:
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


def templated(record: Record) -> Record:
    """The record with its prompt as an instruction (templates.py), if it is none yet."""
    if record.prompt.endswith(HEADINGS["assistant"]):
        return record
    answers = {name: answer.strip() for name, answer in _answers(record).items()}
    if len(answers) == 2 and answers["chosen"] == answers["rejected"]:
        raise DropRow("chosen equals rejected")
    return replace(record, prompt=instruction_prompt(record.prompt), **answers)


@contextmanager
def row_errors(path: str | Path, place: str) -> Iterator[None]:
    """Inside, what is wrong with a row becomes a DataError with its place."""
    try:
        yield
    except BadRow as error:
        raise DataError(f"{path}:{place}: {error}; correct the row or remove it") from None


def _read(
    path: str | Path,
    convert: Callable[[Format, Row], Record],
    limit: int | None,
    template: bool,
) -> ReadResult[Record]:
    """Convert the rows of a file; the module's docstring says what stops and what is counted."""
    records: list[Record] = []
    dropped: Counter[str] = Counter()
    kind = None
    for place, row in rows_of(path):
        kind = kind or _recognise(path, place, row)
        try:
            with row_errors(path, place):
                record = convert(kind, row)
                records.append(templated(record) if template else record)
        except DropRow as reason:
            dropped[str(reason)] += 1
        if len(records) == limit:
            break
    if kind is None:
        raise DataError(f"{path}: there are no rows in it; give a file with at least one")
    if not records:
        raise DataError(f"{path}: no row can be used ({_reasons(dropped)}); correct the file")
    return ReadResult(records, dict(dropped), kind.name, str(path))


def _recognise(path: str | Path, place: str, row: Row) -> Format:
    for kind in FORMATS:
        if kind.matches(row):
            return kind
    known = "; ".join(kind.keys for kind in FORMATS)
    raise DataError(
        f"{path}:{place}: keys {listed(row)} fit no format: give (CSV: in line 1) the keys of one, {known}"
    )


# From a file to rows. `place` is the line, in an array the number of the record.


def rows_of(path: str | Path) -> Iterator[tuple[str, Row]]:
    """The objects of a file with the place of each, for messages; DataError for anything else."""
    with _opened(path) as stream:
        rows = _table_rows(path, stream) if is_table(path) else _json_rows(path, stream)
        for place, row in rows:
            with row_errors(path, place):
                if not isinstance(row, dict):
                    raise BadRow(f"{row!r:.40} where a row is an object {{...}}")
            yield place, row


def _table_rows(path: str | Path, stream: IO[bytes]) -> Iterator[tuple[str, Row]]:
    """The rows of a CSV file by their last line; the first row names the columns, a cell is text."""
    csv.field_size_limit(LONGEST_LINE)
    reader = csv.DictReader(io.StringIO(_whole(path, stream), newline=""), strict=True)
    try:
        names = list(reader.fieldnames or [])
        if twice := {name for name in names if name and names.count(name) > 1}:
            raise DataError(f"{path}:1: two columns are called {min(twice)!r}; rename one")
        for row in reader:
            place = str(reader.line_num)
            with row_errors(path, place):
                if None in row or None in row.values():
                    raise BadRow("another number of cells than in the first line")
            yield place, row
    except csv.Error as error:  # a stray quote, a cell without end
        raise DataError(f"{path}:{reader.line_num}: {error}; correct the file") from error


def _json_rows(path: str | Path, stream: IO[bytes]) -> Iterator[tuple[str, object]]:
    """JSON lines or one array, by the first character."""
    start = stream.read(1024).lstrip(b"\xef\xbb\xbf \t\r\n")
    stream.seek(0)
    if start.startswith(b"["):
        for number, row in enumerate(_parsed(path, _whole(path, stream), 1), start=1):
            yield f" record {number}", row
        return
    # Bytes are split at line feeds only: JSON text may hold U+2028 as it is.
    for line, raw in enumerate(_lines(path, stream), start=1):
        text = _decoded(path, raw, line).strip()
        if text:
            yield str(line), _parsed(path, text, line)


def _parsed(path: str | Path, text: str, line: int) -> Any:
    """Parse JSON that starts at `line` of the file."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        place = f"{path}:{line + error.lineno - 1}: not valid JSON: {error.msg}"
        raise DataError(
            f"{place} at column {error.colno}; correct it, a file holds one object a line or one array"
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}:{line}: not usable JSON: {error}; remove the row") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; ValueError for a key that stands twice, of which the last would win."""
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {max(names, key=names.count)!r} stands twice in one object")
    return row


def _lines(path: str | Path, stream: IO[bytes]) -> Iterator[bytes]:
    """The lines of a stream; DataError for one that is too long to be held."""
    while line := stream.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise DataError(f"{path}: a line of over {LONGEST_LINE >> 20} MiB; split it")
        yield line


def _whole(path: str | Path, stream: IO[bytes]) -> str:
    """What is read at once, an array or a text; DataError where it is too large for that."""
    content = bytearray()
    while block := stream.read(2**20):  # a bound given to one read would be allocated
        content += block
        if len(content) > MOST_AT_ONCE:
            raise DataError(f"{path}: over {MOST_AT_ONCE >> 30} GiB; split it, or give JSON lines")
    return _decoded(path, bytes(content), 1)


def _decoded(path: str | Path, raw: bytes, line: int) -> str:
    """Decode UTF-8 that starts at `line` of the file, with or without a byte-order mark."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = line + raw.count(b"\n", 0, error.start)
        raise DataError(f"{path}:{place}: not UTF-8; save the file as UTF-8 text") from None


def _whole_text(path: str | Path) -> str:
    with _opened(path) as stream:
        return _whole(path, stream)


@contextmanager
def _opened(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a plain or gzipped file, told apart by its first bytes."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode) and not os.path.isdir(path):
            raise DataError(
                f"{path}: no regular file, it may never end; write its content to a file and give that"
            )
        with open(path, "rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if not zipped:
                yield file
                return
            with gzip.open(file) as stream:
                yield cast(IO[bytes], stream)
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file; check the path") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: damaged gzip data ({error}); download it again") from None
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror or error}); give a readable file"
        ) from None
