"""What --data and --preset are called: on the command line, in run folders, in a command to copy."""

from __future__ import annotations

import shlex
from pathlib import Path

from harness.paths import RUNS, WORLDS, usual_preset

Data = str


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
