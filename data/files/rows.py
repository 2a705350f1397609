"""From a file to its rows: JSON lines, one JSON array or a table, each compressed or not.

JSON, compression and UTF-16 are recognised by their content, tables by their name: .csv with commas,
semicolons or tabs between the cells, .tsv. What cannot be read, or could be misread, is a UserError with
its place: the line, in an array the number of the record. For what it is not, the sentence has a command.
"""

from __future__ import annotations

import codecs
import csv
import importlib
import io
import json
import re
import shlex
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from data.files.published import SHARDS, TO_JSON, shards_of, table_rows
from harness.errors import UserError
from harness.files import record_input, require_regular

LONGEST_LINE = 2**26  # bytes, or characters of a cell, for which Python's own limit is 131,072
MOST_AT_ONCE = 2**30  # bytes: a gzipped file of 1 MB can hold as much
PARQUET, ARROW = (TO_JSON.format(f"Dataset.from_{kind}({{0!r}})") for kind in ("parquet", "file"))
ASK = "ask its maker for JSON lines"
OTHER_FILES = {  # by their first bytes: what they are, and what helps
    rb"PAR1": ("a Parquet file", PARQUET),
    rb"PK\x03\x04": ("a zip archive, as .xlsx files are", "`unzip {1}`, or save the table as CSV"),
    rb"version https://git-lfs": ("a pointer of Git LFS", "`git lfs pull` fetches the data"),
    rb"\x28\xb5\x2f\xfd": ("compressed with zstd", "`zstd -d {1}` unpacks it"),
    rb"\x04\x22\x4d\x18": ("compressed with lz4", "`lz4 -d {1}` unpacks it"),
    rb"7z\xbc\xaf\x27\x1c": ("a 7z archive", "`7z x {1}` unpacks it"),
    rb".{257}ustar": ("a tar archive", "`tar xf {1}` unpacks it"),
    rb"ARROW1\0\0|\xff\xff\xff\xff": ("an Arrow file", ARROW),
    rb"SQLite format 3\0": (
        "an SQLite database",
        "`sqlite3 -csv -header {1} 'select * from TABLE'`",
    ),
    rb"\x80[\x02-\x05]": ("a pickle, which could run code", ASK),
    rb"\x89HDF": ("an HDF5 file", ASK),
}
COMPRESSED = {rb"\x1f\x8b": "gzip", rb"BZh[1-9]1AY&SY": "bz2", rb"\xfd7zXZ\0": "lzma"}  # modules
DAMAGE = (EOFError, OSError, zlib.error)  # what decompressors raise
WIDE = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}

Row = Mapping[str, Any]


class Columnar(UserError):
    """The file is a Parquet or an Arrow file, which pyarrow reads."""


class BadRow(ValueError):
    """A row breaks its own format; the message says how."""


class OtherKind(BadRow):
    """A good row of another kind than is asked for; the message says what helps."""


def bad_row(path: str | Path, place: str, why: object) -> UserError:
    """The error for a row whose values cannot be right, or which is of another kind."""
    way = "" if isinstance(why, OtherKind) else "; correct the row or remove it"
    return UserError(f"{path}:{place}: {why}{way}")


def holds_rows(path: str | Path) -> bool:
    """Whether a file's name, or what a folder holds, promises rows and no plain text."""
    named = plain_name(path).endswith((".json", ".jsonl", *TABLES, *SHARDS))
    return named or bool(shards_of(Path(path)))


TABLES = (".csv", ".tsv")


def plain_name(path: str | Path) -> str:
    """A file's name in lower case, without what says how it is compressed."""
    return re.sub(r"\.(gz|bz2|xz)\Z", "", Path(path).name.lower())


def rows_of(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file, or of a folder's Parquet files, each with its place; else a UserError."""
    if shards := shards_of(Path(path)):
        for shard in shards:
            yield from ((f" {shard.name}{place}", row) for place, row in rows_of(shard))
        return
    try:
        with _opened(path) as stream:
            is_table = plain_name(path).endswith(TABLES)
            for place, row in (_table_rows if is_table else _json_rows)(path, stream):
                if not isinstance(row, dict):
                    raise bad_row(path, place, f"{row!r:.40} where a row is an object {{...}}")
                yield place, row
    except Columnar as found:
        yield from table_rows(Path(path), found)


def text_in(path: str | Path) -> str:
    """The whole of a text file, its lines ending with a line feed wherever it was written."""
    with _opened(path) as stream:
        return _whole(path, stream).replace("\r\n", "\n").replace("\r", "\n")


def _table_rows(path: str | Path, stream: IO[bytes]) -> Iterator[tuple[str, object]]:
    """The rows of a table by their last line; the first row names the columns, a cell is text.

    Between cells stands a comma, or the first other sign that divides the first line, or what Excel's
    own first line says: "sep=;".
    """
    csv.field_size_limit(LONGEST_LINE)
    text = io.StringIO(_whole(path, stream), newline="")
    first = text.readline()
    named = re.fullmatch(r"sep=(.)\s*", first, re.IGNORECASE)
    before = 1 if named else text.seek(0)  # lines that are no row
    signs = "\t,;|" if plain_name(path).endswith(".tsv") else ",;\t|"
    sign = named[1] if named else _divider(first, signs)
    reader = csv.DictReader(text, delimiter=sign, strict=True)
    try:
        names = list(reader.fieldnames or [])
        if odd := [
            name for name in names if name and names.count(name) > 1 or name != name.strip()
        ]:
            raise UserError(f"{path}:1: column {odd[0]!r} is double or has blanks; rename it")
        for row in reader:
            place = str(reader.line_num + before)
            if None in row or None in row.values():
                raise bad_row(path, place, "another number of cells than in the first line")
            yield place, row
    except csv.Error as error:  # a stray quote, a cell without end
        line = reader.line_num + before
        raise UserError(f"{path}:{line}: {error}; correct the file") from error


def _divider(line: str, signs: str) -> str:
    """The first of these signs that divides a table's first line; a comma where none does."""
    return next((s for s in signs if len(next(csv.reader([line], delimiter=s), [])) > 1), ",")


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
        why = f"not JSON, one object a line or one array ({error}); a table is called .csv or .tsv"
        raise UserError(f"{path}:{place}: {why}; correct it") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; ValueError for a key that occurs twice: the last one would win."""
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {max(names, key=names.count)!r} stands twice in one object")
    return row


def _whole(path: str | Path, stream: IO[bytes]) -> str:
    """An array or a text, read at once."""
    return _decoded(path, _bytes(path, stream), 1)


def _bytes(path: str | Path, stream: IO[bytes]) -> bytes:
    """All that a stream holds; UserError where it is too large to be read at once."""
    content = bytearray()
    while block := stream.read(2**20):  # a bound given to one read would be allocated
        content += block
        if len(content) > MOST_AT_ONCE:
            raise UserError(f"{path}: over {MOST_AT_ONCE >> 30} GiB; split it, or give JSON lines")
    return bytes(content)


def _decoded(path: str | Path, raw: bytes, line: int) -> str:
    """Decode UTF-8 that starts at `line` of the file, with or without a byte-order mark."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = line + raw.count(b"\n", 0, error.start)
        way = f"save the file as UTF-8, as with iconv -f WINDOWS-1252 -t UTF-8 {path}"
        raise UserError(f"{path}:{place}: not UTF-8; {way}") from None


@contextmanager
def _opened(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file of rows or text as UTF-8, told apart from all others by its first bytes."""
    try:
        if Path(path).is_dir():
            raise UserError(f"{path} is a folder: {of_folder(Path(path))}")
        require_regular(record_input(Path(path)))
        with open(path, "rb") as file:
            kind = _kind(file.read(300), COMPRESSED)
            file.seek(0)
            stream: IO[bytes] = importlib.import_module(kind).open(file) if kind else file
            start = stream.read(300)
            stream.seek(0)
            if found := _kind(start, OTHER_FILES):
                what, helps = found[0], found[1].format(str(path), shlex.quote(str(path)))
                error = Columnar if found[1] in (PARQUET, ARROW) else UserError
                raise error(f"{path}: it is {what}: {helps}")
            if wide := next((name for mark, name in WIDE.items() if start.startswith(mark)), None):
                text = _bytes(path, stream).decode(wide)
                stream = io.BytesIO(text.encode())
            yield stream
    except ModuleNotFoundError as error:
        raise UserError(f"{path}: this Python has no {error.name}; decompress the file") from None
    except UnicodeError as error:
        raise UserError(f"{path}: not UTF-16 ({error}); save the file as UTF-8 text") from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise UserError(f"{path}: cannot be read ({error}); give a readable file") from None
        if isinstance(error, DAMAGE) or type(error).__name__ == "LZMAError":
            raise UserError(f"{path}: damaged data ({error}); download it again") from None
        raise


def of_folder(folder: Path) -> str:
    """What to do with a folder where a file is asked for, by what it holds."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    if any(name.endswith(("dataset_info.json", "dataset_dict.json", ".arrow")) for name in names):
        part = "['train']" * ("dataset_dict.json" in names)
        opened = f"load_from_disk({str(folder)!r}){part}"
        return f"datasets' save_to_disk wrote it: {TO_JSON.format(opened)}"
    for end in (".jsonl", ".jsonl.gz", ".jsonl.bz2", ".jsonl.xz"):  # compressed ones add up, too
        if places := sorted({str((folder / n).parent) for n in names if n.endswith(end)}):
            every = " ".join(f"{shlex.quote(place)}/*{end}" for place in places)
            one = shlex.quote(folder.resolve().name + end)
            return f"`cat {every} > {one}` makes one file of it"
    if any(name.endswith(".parquet") for name in names):
        return PARQUET.format(f"{folder}/**/*.parquet")
    return f"name a file of rows in it; it holds {', '.join(names[:3]) or 'nothing'}"


def _kind(start: bytes, kinds: Mapping[bytes, Any]) -> Any:
    """The one of these kinds whose pattern a file's first bytes have; None for none."""
    return next((kind for mark, kind in kinds.items() if re.match(mark, start, re.DOTALL)), None)


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
