"""Parquet and Arrow files, by pyarrow, and the data sets of the hub, which are kept as Parquet files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from harness.errors import UserError, first_line
from harness.files import record_input

SHARDS = (".parquet", ".arrow")  # what a folder of them holds
HUB = re.compile(r"(?:hf://)?(?:datasets/)?([\w-][\w.-]*/[\w-][\w.-]*)(?::([\w-][\w./-]*))?")
A_FILE = re.compile(r"\.(?:json|jsonl|csv|tsv|txt|parquet|arrow|gz|bz2|xz|zst)\Z")
TO_JSON = "`python -c \"from datasets import *; {}.to_json('data.jsonl')\"` makes JSON lines of it"
AS_PARQUET = "refs/convert/parquet"  # the branch where the hub keeps them


def shards_of(path: Path) -> list[Path]:
    """The Parquet or Arrow files of a folder, in the order of their names."""
    return sorted(each for each in path.glob("*") if each.name.lower().endswith(SHARDS))


def table_rows(path: Path, otherwise: UserError) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a Parquet or Arrow file, with their numbers. UserError without pyarrow, or for damage."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise UserError(f"{otherwise}, and `pip install pyarrow` has it read as it is") from None
    number = 0
    try:
        with record_input(path).open("rb") as file:
            start = file.read(6)
            file.seek(0)
            if start.startswith(b"PAR1"):
                batches = parquet.ParquetFile(file).iter_batches()
            elif start == b"ARROW1":
                opened = pyarrow.ipc.open_file(file)
                batches = map(opened.get_batch, range(opened.num_record_batches))
            else:
                batches = iter(pyarrow.ipc.open_stream(file))
            for batch in batches:
                for row in batch.to_pylist():
                    number += 1
                    yield f" row {number}", row
    except (pyarrow.ArrowException, OSError) as error:
        why = f"damaged data after row {number} ({first_line(error)})"
        raise UserError(f"{path}: {why}; download it again") from None


def hub_data(data: str) -> tuple[str, str] | None:
    """OWNER/NAME and the split of a data set of the hub, "train" by default; None for any other name."""
    found = HUB.fullmatch(data)
    here = not data.startswith("hf://") and Path(data).parent.exists()
    return None if here or A_FILE.search(data) or not found else (found[1], found[2] or "train")


@cache
def hub_folder(repo: str, split: str) -> Path:
    """The folder with the Parquet files of a split, SPLIT or CONFIG/SPLIT; what is missing is downloaded.

    huggingface_hub does it, and takes what its cache has where the hub cannot be asked. UserError, with
    the command that fetches them, where it is not installed or fails, or where two parts fit.
    """
    page = f"https://huggingface.co/datasets/{repo}"
    by_hand = TO_JSON.format(f"load_dataset({repo!r}, split={split!r})")
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError:
        raise UserError(f'{repo} is no file: run pip install -e ".[hub]", or {by_hand}') from None
    patterns = [f"{split}/*.parquet", f"*/{split}/*.parquet"]
    try:
        folder = Path(
            snapshot_download(
                repo,
                repo_type="dataset",
                revision=AS_PARQUET,
                allow_patterns=patterns,
                etag_timeout=5,
            )
        )
    except Exception as error:  # the client's own, and those of the libraries for HTTP under it
        why = f"{type(error).__name__}: {first_line(error)}".rstrip(".: ")
        raise UserError(
            f"{repo} is no file, and {page} was not fetched ({why}): {by_hand}"
        ) from error
    parts = {path.parent for pattern in patterns for path in folder.glob(pattern)}
    if len(parts) != 1:
        names = ", ".join(f"{repo}:{part.relative_to(folder)}" for part in sorted(parts)) or "none"
        raise UserError(f"{page} has {len(parts)} parts called {split} ({names}): name one")
    return parts.pop()
