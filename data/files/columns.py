"""--columns FIELD=COLUMN: a file's own names of its columns, replaced before its layout is found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from data.files import rows
from data.files.formats import FIELDS
from data.files.rows import listed
from harness.errors import UserError
from harness.files import columns_read


def named(columns: Sequence[str]) -> dict[str, str]:
    """The column of each field; UserError for what is no FIELD=COLUMN, or names no field, or one twice."""
    split = [each.partition("=") for each in columns]
    names = {field: column for field, _, column in split}
    wrong = ["=".join(filter(None, each)) for each in split if each[0] not in FIELDS or not each[2]]
    if wrong or len(names) < len(split):
        raise UserError(
            f"--columns {(wrong or [*columns])[0]} names no column, or a field twice: give FIELD=COLUMN, "
            f"with a field of {', '.join(FIELDS)}"
        )
    return names


def rows_of(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a file, each with its place, its columns under the names that --columns gives them.

    A column that a field takes the place of is left out. UserError where the first row lacks one.
    """
    names: Mapping[str, str] = columns_read(Path(path))
    for number, (place, row) in enumerate(rows.rows_of(path)):
        if lost := [column for column in names.values() if column not in row and not number]:
            raise UserError(
                f"{path}:{place}: --columns names {lost[0]!r}, which is no column: it has {listed(row)}; "
                f"fields are {', '.join(FIELDS)}"
            )
        kept = {key: value for key, value in row.items() if key not in {*names, *names.values()}}
        found = {field: row[column] for field, column in names.items() if column in row}
        yield place, kept | found
