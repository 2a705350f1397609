"""Rows of CSV files, and lines of any file up to what can be held."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import IO, Any, AnyStr, cast

from data.formats import json_object

NUMBERS = ("margin", "label")  # and score_...
LONGEST_LINE = 2**26  # bytes, or characters of a cell, for which Python's own limit is 131,072
MOST_READ = 2**32  # bytes of one file: a gzipped one of 5 MB can hold as much
MOST_AT_ONCE = 2**30


class TableError(Exception):
    """A file that cannot be read on; the message begins with the line."""


def bounded_lines(stream: IO[AnyStr]) -> Iterator[AnyStr]:
    """The lines of a stream; TableError for more than the two limits."""
    read = 0
    for number in count(1):
        line = stream.readline(LONGEST_LINE + 1)
        read += len(line)
        if len(line) > LONGEST_LINE or read > MOST_READ:
            raise TableError(
                f"{number}: a line of over {LONGEST_LINE >> 20} MiB, or over {MOST_READ >> 30} GiB in all"
            )
        if not line:
            return
        yield line


def is_table(path: str | Path) -> bool:
    """Whether a name ends as that of a CSV file does, gzipped or not."""
    return str(path).lower().removesuffix(".gz").endswith(".csv")


def table_rows(path: str | Path, stream: io.BufferedIOBase) -> Iterator[tuple[str, Any]]:
    """The rows of a CSV file by their last line; the first row names the columns."""
    csv.field_size_limit(LONGEST_LINE)
    with io.TextIOWrapper(cast(IO[bytes], stream), "utf-8-sig", newline="") as text:
        reader = csv.DictReader(bounded_lines(text), strict=True)
        names = list(reader.fieldnames or [])
        if twice := {name for name in names if name and names.count(name) > 1}:
            raise TableError(f"1: two columns are called {min(twice)!r}")
        try:
            for row in reader:
                place = str(reader.line_num)
                if None in row or None in row.values():
                    raise TableError(f"{place}: another number of cells than in the first line")
                yield place, {name: cell_value(name, cell) for name, cell in row.items()}
        except csv.Error as error:  # a stray quote, a cell without end
            raise TableError(f"{reader.line_num}: {error}") from error


def cell_value(name: str, cell: str) -> Any:
    """A cell is text, but for numbers under names that hold numbers, and for messages in JSON."""
    numeric = name in NUMBERS or name.startswith("score_")
    if numeric and not cell.strip():
        return None
    if numeric or (cell.startswith("[{") and '"role"' in cell):
        text = cell.lower() if name == "label" else cell  # pandas writes False
        try:
            return json.loads(text, object_pairs_hook=json_object)
        except (ValueError, RecursionError):
            pass
    return cell
