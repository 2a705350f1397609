"""What --data and --preset name: the generated worlds, run folders, and the flags of a command to copy."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from data import instructions, reviews, sums
from data.records import PromptRecord
from harness.paths import RUNS, WORLDS, usual_preset

Data = str

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
    """runs/STAGE-DATA-PRESET: where a stage writes by default and the next one looks."""
    return RUNS / f"{stage}-{data_name(data)}-{preset}"


def data_name(data: str) -> str:
    """What run folders call a world or a file: its name without .json or .gz, unless a world has that."""
    path = Path(Path(data).name.removesuffix(".gz"))
    return path.name if path.stem in WORLDS else path.stem


def flags_for(data: str, preset: str) -> str:
    """The flags that select this data and preset, for a command to copy."""
    flags = "" if data == "reviews" else f" --data {shlex.quote(data)}"
    return flags + ("" if preset == usual_preset(data) else f" --preset {preset}")
