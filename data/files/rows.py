"""From a file to its rows: JSON lines, one JSON array or a CSV table, each gzipped or not.

JSON and gzip are recognised by their content, CSV by its name. What cannot be read, or could be misread,
is a UserError with its place: the line, in an array the number of the record.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from harness.errors import UserError
from harness.files import noted, require_regular

LONGEST_LINE = 2**26  # bytes, or characters of a cell, for which Python's own limit is 131,072
MOST_AT_ONCE = 2**30  # bytes: a gzipped file of 1 MB can hold as much
OTHER_FILES = {  # by their first bytes
    b"PAR1": "a Parquet file",
    b"PK\x03\x04": "a zip archive, as .xlsx files are",
    b"version https://git-lfs": "a pointer of Git LFS, without the data (`git lfs pull` fetches them)",
}

Row = Mapping[str, Any]


class BadRow(ValueError):
    """A row breaks its own format; the message says how."""


def bad_row(path: str | Path, place: str, why: object) -> UserError:
    """The error for a row whose values cannot be right."""
    return UserError(f"{path}:{place}: {why}; correct the row or remove it")


def holds_rows(path: str | Path) -> bool:
    """Whether a file's name promises rows and no plain text."""
    return _plain_name(path).endswith((".json", ".jsonl", ".csv"))


def _plain_name(path: str | Path) -> str:
    return Path(path).name.lower().removesuffix(".gz")


def rows_of(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file, each with its place; UserError for anything else."""
    with _opened(path) as stream:
        is_table = _plain_name(path).endswith(".csv")
        for place, row in (_table_rows if is_table else _json_rows)(path, stream):
            if not isinstance(row, dict):
                raise bad_row(path, place, f"{row!r:.40} where a row is an object {{...}}")
            yield place, row


def text_in(path: str | Path) -> str:
    """The whole of a text file, its lines ending with a line feed wherever it was written."""
    with _opened(path) as stream:
        return _whole(path, stream).replace("\r\n", "\n").replace("\r", "\n")


def _table_rows(path: str | Path, stream: IO[bytes]) -> Iterator[tuple[str, object]]:
    """The rows of a CSV file by their last line; the first row names the columns, a cell is text."""
    csv.field_size_limit(LONGEST_LINE)
    reader = csv.DictReader(io.StringIO(_whole(path, stream), newline=""), strict=True)
    try:
        names = list(reader.fieldnames or [])
        if odd := [
            name for name in names if name and names.count(name) > 1 or name != name.strip()
        ]:
            raise UserError(f"{path}:1: column {odd[0]!r} is double or has blanks; rename it")
        for row in reader:
            place = str(reader.line_num)
            if None in row or None in row.values():
                raise bad_row(path, place, "another number of cells than in the first line")
            yield place, row
    except csv.Error as error:  # a stray quote, a cell without end
        raise UserError(f"{path}:{reader.line_num}: {error}; correct the file") from error


def _json_rows(path: str | Path, stream: IO[bytes]) -> Iterator[tuple[str, object]]:
    """JSON lines or one array, by the first character."""
    start = stream.read(1024).lstrip(b"\xef\xbb\xbf \t\r\n")
    stream.seek(0)
    if start.startswith(b"["):
        for number, row in enumerate(_parsed(path, _whole(path, stream), 1), start=1):
            yield f" record {number}", row
        return
    # Bytes are split at line feeds only: JSON text may hold U+2028 as it is.
    lines = iter(lambda: stream.readline(LONGEST_LINE + 1), b"")
    for line, raw in enumerate(lines, start=1):
        if len(raw) > LONGEST_LINE:
            raise UserError(f"{path}: a line of over {LONGEST_LINE >> 20} MiB; split it")
        if text := _decoded(path, raw, line).strip():
            yield str(line), _parsed(path, text, line)


def _parsed(path: str | Path, text: str, line: int) -> Any:
    """Parse JSON that starts at `line` of the file."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        place = line + getattr(error, "lineno", 1) - 1
        why = f"not JSON, one object a line or one array: {error}"
        raise UserError(f"{path}:{place}: {why}; correct it") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; ValueError for a key that occurs twice: the last one would win."""
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {max(names, key=names.count)!r} stands twice in one object")
    return row


def _whole(path: str | Path, stream: IO[bytes]) -> str:
    """An array or a text, read at once; UserError where it is too large for that."""
    content = bytearray()
    while block := stream.read(2**20):  # a bound given to one read would be allocated
        content += block
        if len(content) > MOST_AT_ONCE:
            raise UserError(f"{path}: over {MOST_AT_ONCE >> 30} GiB; split it, or give JSON lines")
    return _decoded(path, bytes(content), 1)


def _decoded(path: str | Path, raw: bytes, line: int) -> str:
    """Decode UTF-8 that starts at `line` of the file, with or without a byte-order mark."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = line + raw.count(b"\n", 0, error.start)
        raise UserError(f"{path}:{place}: not UTF-8; save the file as UTF-8 text") from None


@contextmanager
def _opened(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a plain or gzipped file, told apart by its first bytes."""
    try:
        require_regular(noted(Path(path)))
        with open(path, "rb") as file:
            start = file.read(32)
            for mark, kind in OTHER_FILES.items():
                if start.startswith(mark):
                    raise UserError(f"{path}: it is {kind}; give JSON lines, an array, CSV or text")
            zipped = start.startswith(b"\x1f\x8b")
            file.seek(0)
            yield cast(IO[bytes], gzip.open(file)) if zipped else file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: damaged gzip data ({error}); download it again") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error}); give a readable file") from None


# Values of a row, checked.


def listed(row: Row) -> str:
    """The first keys of a row, for messages."""
    return ", ".join(repr(key[:40]) for key in list(row)[:10]) or "none"


def field(row: Row, key: str) -> Any:
    """The value of `key`; BadRow when the row lacks it."""
    if key not in row:
        raise BadRow(f"key {key!r} is missing (found: {listed(row)})")
    return row[key]


def text_of(row: Row, key: str) -> str:
    """The string under `key`; BadRow when it is something else or cannot be written as UTF-8."""
    value = field(row, key)
    if not isinstance(value, str):
        raise BadRow(f"{key!r} is {value!r:.40}, expected a string")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRow(f"{key!r} holds half of a surrogate pair, which is no character") from None
    return value
