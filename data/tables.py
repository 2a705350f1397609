"""Rows of CSV and TSV files, of Parquet (needs pyarrow) and of the Hugging Face Hub (needs datasets)."""

from __future__ import annotations

import csv
import importlib
import io
import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

HUB = "hf:/"  # hf://OWNER/NAME, also where a Path has made one slash of two
NUMBERS = ("margin", "choice", "label", "stars", "better_response_id")  # and score_...
LONGEST_CELL = 2**31 - 1  # characters; Python's own limit is 131,072


class MissingPackage(ValueError):
    """An optional package is not installed; the message says which and what else would do."""


def is_hub(path: str | Path) -> bool:
    """Whether a --data names a data set of the Hub."""
    return str(path).startswith(HUB)


def is_table(path: str | Path) -> bool:
    """Whether a name ends as those of CSV and TSV files do, gzipped or not."""
    return str(path).lower().removesuffix(".gz").endswith((".csv", ".tsv"))


def table_rows(path: str | Path, stream: io.BufferedIOBase) -> Iterator[tuple[str, Any]]:
    """The rows of a CSV or TSV file by their last line; the first row names the columns.

    Where that has more semicolons than commas, they separate, as in a spreadsheet's export.
    """
    csv.field_size_limit(LONGEST_CELL)
    with io.TextIOWrapper(cast(IO[bytes], stream), "utf-8-sig", newline="") as text:
        first = text.readline()
        comma = ";" if first.count(";") > first.count(",") else ","
        comma = "\t" if ".tsv" in Path(path).name.lower() else comma
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


def parquet_rows(path: str | Path) -> Iterator[tuple[str, Any]]:
    """The rows of a Parquet file, through pyarrow."""
    parquet = _optional("pyarrow.parquet", f"{path}: a Parquet file", "save it as JSON lines")
    number = 0
    for batch in parquet.ParquetFile(path).iter_batches():
        for row in batch.to_pylist():
            number += 1
            yield f"row {number}", row


def hub_rows(path: str | Path) -> Iterator[tuple[str, Any]]:
    """The rows of the train split of a data set of the Hub, through datasets and its cache."""
    name = str(path).removeprefix(HUB).lstrip("/")
    datasets = _optional("datasets", f"{HUB}/{name}: a data set of the Hub", "give a file")
    for number, row in enumerate(datasets.load_dataset(name, split="train"), start=1):
        yield f"row {number}", row


def _optional(module: str, what: str, instead: str) -> Any:
    package = module.split(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise MissingPackage(
            f"{what} is read by {package}, which is not installed: pip install {package}, or {instead}"
        ) from None
