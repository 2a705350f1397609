"""Files of a run: written whole or not at all, by the first rank, and read again with a check.

A file is renamed into place, so a crash never leaves half of one; of JSON lines it may cut the last,
which is then left out.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from safetensors import SafetensorError

from harness.device import usual_torch
from harness.errors import Unwritten, UserError, first_line
from harness.ranks.collectives import on_main

SPLITS = 2  # the rule by which files are split into training and test rows (data/records.py)


@dataclass
class Reading:
    """What a run has read until now, and how it splits it."""

    files: set[Path] = field(default_factory=set)
    splits: int = SPLITS
    columns: dict[Path, Mapping[str, str]] = field(default_factory=dict)  # of files, by --columns


_reading: ContextVar[Reading | None] = ContextVar("reading", default=None)  # one a thread


def require_regular(path: Path) -> None:
    """UserError for a device, a pipe or a folder: it may never end, and must not be replaced."""
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "no regular file"
        raise UserError(f"{display_path(path)} is {kind}: name a file, or move it away")


@contextmanager
def reading() -> Iterator[Reading]:
    """Around a run, also as a decorator: the files that it reads, and none of a run around it.

    What a notebook has set of PyTorch's defaults is not read: inside they are as in a new process.
    """
    around = _reading.set(Reading())
    try:
        with usual_torch():
            yield _now()
    finally:
        _reading.reset(around)


def _now() -> Reading:
    return _reading.get() or Reading()


def files_read() -> set[Path]:
    """The files that `record_input` was told of until now."""
    return _now().files


def columns_read(path: Path) -> Mapping[str, str]:
    """The column of each field that has another name in a file, in the run that is going on."""
    return _now().columns.get(path.absolute(), {})


def read_columns(path: Path, columns: Mapping[str, str]) -> None:
    """Let the run that is going on read these columns of a file as those fields."""
    _now().columns[path.absolute()] = columns


def split_rule() -> int:
    """By which rule the run that is going on splits the rows of files."""
    return _now().splits


def split_as(rule: int) -> None:
    """Let the run that is going on split by this rule, as the one that it goes on with did."""
    _now().splits = rule


def record_input(path: Path) -> Path:
    """The path of a file on which the run depends: config.json will hold its digest."""
    _now().files.add(path.absolute())
    return path


def sha256_of(path: Path) -> str:
    """The digest of a file's content, read once while it stays as it is. UserError for no regular file."""
    require_regular(path)
    now = path.stat()
    return _digest(path.absolute(), now.st_ino, now.st_size, now.st_mtime_ns)


@cache
def _digest(path: Path, *state: int) -> str:
    """The digest of a file as it is now, kept for this `state` of it."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def expanded(path: Path) -> Path:
    """The path with a leading ~ as the home folder; that of an unknown user stays as it is."""
    return Path(os.path.expanduser(path))


def parse_json(text: str | bytes) -> Any:
    """json.loads, with ValueError for what is nested too deeply as well."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path) -> Any:
    """What a JSON file holds. UserError unless it is a regular file of JSON in UTF-8."""
    require_regular(path)
    try:
        return parse_json(path.read_bytes())
    except ValueError as error:
        raise UserError(
            f"{display_path(path)} is damaged, it is no JSON ({first_line(error)}): mend it"
        ) from None


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file on the first rank, then rename it into place.

    In a folder beside `path`, because safetensors puts a temporary file next to the one that it writes.
    """

    def replace_it() -> None:
        """Write, flush to the disk, rename."""
        require_regular(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        temporary = folder / path.name
        try:
            folder.mkdir(exist_ok=True)
            temporary.touch()
            mode = temporary.stat().st_mode  # the user's umask, for which safetensors does not ask
            write(temporary)
            temporary.chmod(mode)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())  # else it could be empty after a power cut
            os.replace(temporary, path)
        except (OSError, RuntimeError, SafetensorError) as error:  # torch's own is a RuntimeError
            raise _unwritten(path, error) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    on_main(replace_it)


def remove_left_overs(folder: Path, of: str = "*") -> None:
    """Remove what `write_atomically` has left in a folder where a process was killed as it wrote."""
    for path in folder.glob(f".{of}.*.tmp"):
        if path.name.split(".")[-2].isdigit() and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)


def _unwritten(path: Path, error: Exception) -> Unwritten:
    while isinstance(error.__cause__ or error.__context__, OSError):  # below torch's own
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    reason = getattr(error, "strerror", None) or first_line(error)
    return Unwritten(
        f"{display_path(path)} could not be written ({reason.rstrip('.')}): see to space and permissions"
    )


def gone(folder: Path) -> UserError:
    return UserError(
        f"{display_path(folder)} was deleted or moved while this run was writing in it: start it again"
    )


def write_text(path: Path, content: str) -> None:
    """Write a text, atomically. A lone surrogate, which no encoding holds, becomes a question mark."""
    data = content.encode("utf-8", errors="replace")
    write_atomically(path, lambda temporary: temporary.write_bytes(data))


def strict_json(value: object, indent: int | None = None) -> str:
    """JSON that every program reads, which has no word for infinity or NaN: 1e999, which is read as one
    again, and null."""
    try:
        return json.dumps(value, indent=indent, default=str, allow_nan=False)
    except ValueError:
        mark = uuid4().hex  # which no text holds
        text = json.dumps(_marked(value, mark), indent=indent, default=str, allow_nan=False)
        return text.replace(f'"{mark}"', "1e999").replace(f'"-{mark}"', "-1e999")


def _marked(value: Any, mark: str) -> Any:
    """The same with `mark` for infinity and None for NaN."""
    if isinstance(value, Mapping):
        return {key: _marked(each, mark) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_marked(each, mark) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else mark if value > 0 else f"-{mark}"
    return value


def write_json(path: Path, value: object) -> None:
    write_text(path, strict_json(value, indent=2) + "\n")


def append_jsonl(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Append one JSON object a line, on the first rank, which alone reads `rows`."""

    def append() -> None:
        """Write the rows at the end of the file."""
        require_regular(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("a", encoding="utf-8") as file:
                for row in rows:
                    file.write(strict_json(row) + "\n")
        except OSError as error:
            raise _unwritten(path, error) from error

    on_main(append)


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file. UserError where it holds something else."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise UserError(f"{display_path(path)} is damaged, it is no object: mend it")
    return found


ODD = (
    ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError, re.error,
)  # fmt: skip


@contextmanager
def as_user_error(folder: Path) -> Iterator[None]:
    """Around the reading of a folder that others may have written: UserError for odd kinds of values."""
    try:
        yield
    except UserError:
        raise
    except ODD as error:
        raise UserError(
            f"{display_path(folder)} holds a value of a kind that no run writes "
            f"({' '.join(str(error).split())}): restore its config.json and its other files"
        ) from error


def _damaged(path: Path, number: int, why: str) -> UserError:
    return UserError(f"{display_path(path)}:{number} is damaged, {why}: mend or delete the line")


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Every row of a JSON-lines file but a last one cut off; UserError for what is no JSON."""
    rows = []
    require_regular(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                rows.append(parse_json(line))
            except ValueError:  # no JSON, or no UTF-8
                if not line.endswith(b"\n"):  # the last one, cut off while it was written
                    break
                raise _damaged(path, number, "it is no JSON") from None
            if not isinstance(rows[-1], dict):
                raise _damaged(path, number, "it is no object")
    return rows


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The numbers of a run, each row with that of its step; null is NaN, as `strict_json` writes it."""
    return [with_nan(row) for row in rows_of_steps(path)]


def with_nan(row: Mapping[str, object]) -> dict[str, Any]:
    return {key: math.nan if value is None else value for key, value in row.items()}


def rows_of_steps(path: Path) -> list[dict[str, Any]]:
    """Rows of a run, each with the number of its step. UserError for a row that no run writes."""
    rows = read_jsonl(path)
    for number, row in enumerate(rows, start=1):
        if type(row.get("step")) is not int or not 0 <= row["step"] < 2**63:
            raise _damaged(path, number, "it names no step")
    return rows


def keep_until(path: Path, step: int) -> list[dict[str, Any]]:
    """Drop the rows after `step`, which a resumed run writes again; returns the rows that stay."""

    def keep() -> list[dict[str, Any]]:
        if not path.exists():
            return []
        kept = [row for row in rows_of_steps(path) if row["step"] <= step]
        write_atomically(path, lambda temporary: append_jsonl(temporary, kept))
        return kept

    return on_main(keep)


def display_path(path: Path) -> str:
    """Relative to the current folder where that is shorter; ./-x for what would look like a flag."""
    try:
        shown = str(path.resolve().relative_to(Path.cwd()))
    except (RuntimeError, ValueError):  # a link to itself, a path elsewhere
        shown = str(path)
    return f"./{shown}" if shown.startswith("-") else shown


def save_figure(figure: Any, path: Path) -> None:
    """Write a matplotlib figure, its folder too."""
    require_regular(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    on_main(lambda: figure.savefig(path, dpi=120))
