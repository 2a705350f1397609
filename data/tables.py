"""Rows of CSV files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

NUMBERS = ("margin", "choice", "label", "stars", "better_response_id")  # and score_...
LONGEST_CELL = 2**31 - 1  # characters; Python's own limit is 131,072


def is_table(path: str | Path) -> bool:
    """Whether a name ends as that of a CSV file does, gzipped or not."""
    return str(path).lower().removesuffix(".gz").endswith(".csv")


def table_rows(path: str | Path, stream: io.BufferedIOBase) -> Iterator[tuple[str, Any]]:
    """The rows of a CSV file by their last line; the first row names the columns.

    Where that has more semicolons than commas, they separate, as in a spreadsheet's export.
    """
    csv.field_size_limit(LONGEST_CELL)
    with io.TextIOWrapper(cast(IO[bytes], stream), "utf-8-sig", newline="") as text:
        first = text.readline()
        comma = ";" if first.count(";") > first.count(",") else ","
        reader = csv.DictReader(chain([first], text), delimiter=comma)
        for row in reader:
            place = str(reader.line_num)
            if None in row or None in row.values():
                raise ValueError(f"{place}: it has another number of cells than the first line")
            yield place, {name: cell_value(name, cell) for name, cell in row.items()}


def cell_value(name: str, cell: str) -> Any:
    """A cell is text, but for numbers under names that hold numbers, and for lists in JSON."""
    if name in NUMBERS or name.startswith("score_") or cell.startswith(("[{", '{"')):
        try:
            return json.loads(cell)
        except ValueError:
            pass
    return cell
