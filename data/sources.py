"""Where prompts and texts come from: a world of data/worlds, or a file of yours, as --data names it.

A world is one file, data/worlds/NAME.py. `source` imports what --data names and nothing else. Here too:
the default folders of runs.
"""

from __future__ import annotations

import glob
import hashlib
import importlib
import random
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Protocol, cast

from data import worlds
from data.files.published import hub_data, hub_folder, shards_of
from data.records import PromptRecord, ResponseRecord
from harness.console import say_once
from harness.errors import UserError
from harness.files import display_path, read_columns, sha256_of
from harness.paths import RUNS

if TYPE_CHECKING:
    from data.files.source import FileSource
    from data.templates import ChatForm

Data = str
USUAL = "reviews"  # the world of a command without --data
DIGITS = 6  # of a file's digest in the names of run folders


class Source(Protocol):
    """What `source` opens: the names of a file in data/worlds, which data/files/source.py has as well.

    None stands for what is not there: a file has no `gold`, and a world of prompts alone no `corpus`.
    """

    CHECK: str | None
    """What the rule is called, where an answer is right or wrong."""
    SORTED_BY_LENGTH: bool
    """Whether rows of similar length share a batch of pre-training, which saves padding."""

    prompts: Callable[[str], list[PromptRecord]]
    """The prompts of a split: train, validation or test. No prompt is in two of them."""
    read_prompt: Callable[[str], PromptRecord | None]
    """The prompt that someone has typed; None for a text that is none of these."""
    gold: Callable[[PromptRecord, str, bool], float] | None
    """What a response is truly worth, by its prompt, its text, and whether it ended with EOS."""
    corpus: Callable[[int, int], list[ResponseRecord]] | None
    """So many documents to pre-train on, by a seed."""
    sample_response: Callable[[PromptRecord, random.Random], str] | None
    """One answer as the corpus has them."""
    prefers: Callable[[float, float], float] | None
    """The probability that the annotator prefers the first of two answers, by what both are worth."""
    step_checks: Callable[[PromptRecord, str], Sequence[tuple[int, int, bool]]] | None
    """(start, end, right) of the steps that a response has written, in characters."""


def source(data: str, chat: ChatForm | None) -> Source:
    """The world or the file (its chats in the form `chat`) that --data names; UserError for neither.

    Whoever asks a model gives that of its tokenizer, so `chat` has no default; gpt/lengths.py opens the
    prompts for a tokenizer. With None a file's chats are in our form.
    """
    return world_source(data) if is_world(data) else cast(Source, file_source(data, chat))


def world_source(name: str) -> Source:
    """The world of that name, whose prompts have one form for every model."""
    return cast(Source, importlib.import_module(f"data.worlds.{name}"))


def file_source(data: str | Path, chat: ChatForm | None) -> FileSource:
    """The file of that name, which has documents, answers or pairs as well; UserError without one."""
    require_data(str(data))
    from data.files.source import FileSource  # which a run on a world does not need

    return FileSource(place_of_data(data), chat)


def place_of_data(data: str | Path) -> Path:
    """The file or folder that --data names; a data set of the hub is fetched where it is missing."""
    found = hub_data(str(data))
    return hub_folder(*found) if found else Path(data)


def name_columns(data: str, columns: Sequence[str]) -> None:
    """Have the run that is going on read the columns of a file by these names, each FIELD=COLUMN.

    UserError for a world, which has none, and for what is no such name.
    """
    if not columns:
        return
    if is_world(data):
        raise UserError(f"--columns names columns of a file, and {data} is a world: leave it out")
    from data.files.columns import named

    require_data(data)
    read_columns(place_of_data(data), named(columns))


def require_data(data: str) -> None:
    """UserError where --data names neither a world nor what is there."""
    if not is_world(data) and not place_of_data(data).exists():
        raise UserError(
            f"no file {data}: --data takes a file, a data set of the hub, hf://OWNER/NAME, or "
            f"{', '.join(world_names())}"
        )


def world_names() -> list[str]:
    """The files of data/worlds."""
    return sorted(module.name for module in iter_modules(worlds.__path__))


def is_world(data: str) -> bool:
    """Whether --data names a world, even where there is a file of that name."""
    return data in world_names()


def has_annotator(data: str) -> bool:
    """Whether --data names a world whose annotator labels new pairs; a file brings its own."""
    return is_world(data) and world_source(data).prefers is not None


def is_checked(data: str) -> bool:
    """Whether --data names a world whose answers are right or wrong: it has no reward model, no pairs."""
    return is_world(data) and world_source(data).CHECK is not None


# --- the default folders of runs ------------------------------------------------------------------


def default_folder(stage: str, data: str, model: str) -> Path:
    """runs/STAGE-DATA-MODEL: where a stage writes by default and the next one looks.

    Says so, once, where runs of a file with the same name and other content exist.
    """
    name = data_name(data)
    folder = RUNS / f"{stage}-{name}-{model}"
    alike = f"{stage}-{glob.escape(name[:-DIGITS])}{'?' * DIGITS}-{glob.escape(model)}"
    if not is_world(data) and not folder.exists() and (others := sorted(RUNS.glob(alike))):
        listed = ", ".join(map(display_path, others))
        say_once(f"not used, of another {Path(data).name}: {listed}")
    return folder


def data_name(data: str) -> str:
    """What run folders call a world, or a file: its stem, and six digits of what it is and holds.

    Of a folder all its texts. UserError where there is no such file.
    """
    if is_world(data):
        return data
    require_data(data)
    path, of_hub = place_of_data(data), hub_data(data)
    files = (shards_of(path) or sorted(path.glob("*.txt"))) if path.is_dir() else [path]
    listed = "".join(f"{file.name} {sha256_of(file)}\n" for file in files)  # .csv is read otherwise
    name = of_hub[0].partition("/")[2] + ".hub" if of_hub else path.name
    stem = Path(re.sub(r"\.(gz|bz2|xz)$", "", name)).stem
    return f"{stem}-{hashlib.sha256(listed.encode()).hexdigest()[:DIGITS]}"


def flags_for(data: str, preset: str) -> str:
    """The flags that select this data and preset, for a command to copy."""
    flags = "" if data == USUAL else f" --data {shlex.quote(data)}"
    return flags + ("" if preset == usual_preset(data) else f" --preset {preset}")


def usual_preset(data: str | None) -> str:
    """What a command makes from nothing where neither --preset nor a model is named."""
    return "tiny" if data is None or is_world(data) else "own"
