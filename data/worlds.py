"""What --data and --preset name: the generated worlds, run folders, and the flags of a command to copy."""

from __future__ import annotations

import glob
import hashlib
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

from data import instructions, reviews, sums
from data.records import PromptRecord
from harness.errors import UserError
from harness.files import display_path, sha256_of
from harness.paths import RUNS, WORLDS, usual_preset

Data = str
DIGITS = 6  # of a file's digest in the names of run folders
say_once = cache(print)

MODULES: dict[str, ModuleType] = {
    "reviews": reviews,
    "sums": sums,
    "instructions": instructions,  # for a model that has read English: it has no texts to learn from
}
# (record, response text, ended with EOS) -> value
RULES: dict[str, Callable[[PromptRecord, str, bool], float]] = {
    "reviews": reviews.gold_reward,
    "sums": sums.exact_match,
    "instructions": instructions.kept,
}
# Worlds whose answers are right or wrong: they have no reward model and no pairs.
CHECKED = {"sums": "exact match", "instructions": "constraint kept"}


def has_texts(name: str) -> bool:
    """Whether a model can learn from this world's own texts, or needs to have read English before."""
    return hasattr(MODULES[name], "corpus")


def prompts(name: str, split: str, most: int) -> list[PromptRecord]:
    """The prompts of a split; of the sums, which are many, the first `most`."""
    count = {"count": most} if name == "sums" else {}
    return list(MODULES[name].prompts(split, **count))


def default_folder(stage: str, data: str, preset: str) -> Path:
    """runs/STAGE-DATA-PRESET: where a stage writes by default and the next one looks.

    Says, where that is new, that there is one of a file with the same name and other content.
    """
    name = data_name(data)
    folder = RUNS / f"{stage}-{name}-{preset}"
    alike = f"{stage}-{glob.escape(name[:-DIGITS])}{'?' * DIGITS}-{preset}"
    if data not in WORLDS and not folder.exists() and (others := sorted(RUNS.glob(alike))):
        listed = ", ".join(map(display_path, others))
        say_once(f"not used, of another {Path(data).name}: {listed}")
    return folder


def data_name(data: str) -> str:
    """What run folders call a world, or a file: its stem, and six digits of what it is and holds.

    Of a folder all its texts. UserError where there is no such file.
    """
    require_data(data)
    if data in WORLDS:
        return data
    path = Path(data)
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    listed = "".join(f"{file.name} {sha256_of(file)}\n" for file in files)  # .csv is read otherwise
    stem = Path(path.name.removesuffix(".gz")).stem
    return f"{stem}-{hashlib.sha256(listed.encode()).hexdigest()[:DIGITS]}"


def require_data(data: str) -> None:
    """UserError where --data names neither a world nor what is there."""
    if data not in WORLDS and not Path(data).exists():
        raise UserError(f"there is no file {data}: --data takes {', '.join(WORLDS)} or a file")


def flags_for(data: str, preset: str) -> str:
    """The flags that select this data and preset, for a command to copy."""
    flags = "" if data == "reviews" else f" --data {shlex.quote(data)}"
    return flags + ("" if preset == usual_preset(data) else f" --preset {preset}")
