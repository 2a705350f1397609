"""Metrics of runs as event files, which TensorBoard reads."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.files import display_path, read_metrics, read_object

METRICS = "metrics.jsonl"
SUFFIX = ".glassbox"  # of the event files that an export has written, and may replace


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """The given run folders, each once, resolved; a folder without metrics stands for those right in it."""
    folders: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise UserError(f"there is no run folder {path}: give folders such as runs/NAME")
        inside = sorted(metrics.parent for metrics in path.glob(f"*/{METRICS}"))
        found = [path] if (path / METRICS).exists() else inside
        if not found:
            raise UserError(
                f"there is no {METRICS} in {display_path(path)}, nor in the folders right in it: give "
                "the folder of a run"
            )
        folders += [folder.resolve() for folder in found]
    return list(dict.fromkeys(folders))


def run_names(folders: Sequence[Path]) -> list[str]:
    """A name for each run folder: its own, with those of the folders around it where two share one."""
    names = []
    for folder in folders:
        parts, length = folder.parts[1:], 1
        others = [other.parts[1:] for other in folders if other != folder]
        while any(other[-length:] == parts[-length:] for other in others) and length < len(parts):
            length += 1
        names.append("/".join(parts[-length:]))
    return names


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """What of a row can be drawn: its numbers but the step."""
    return {
        key: float(value)
        for key, value in row.items()
        if key != "step" and isinstance(value, int | float) and not isinstance(value, bool)
    }


def as_text(folder: Path) -> str:
    """The flags of a run as Markdown that shows them as they are: an indented block."""
    config = folder / "config.json"
    if not config.exists():
        return ""
    lines = json.dumps(read_object(config), indent=2).splitlines()
    return "\n".join(f"    {line}" for line in lines)


def export(folder: Path, target: Path) -> int:
    """Write one run's event file into `target` in place of an earlier one; returns its steps."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as error:
        raise UserError(
            f"{error.name} is not installed, which writes the files: run "
            'pip install -e ".[tensorboard]" in the repository'
        ) from error
    rows = read_metrics(folder / METRICS)
    text = as_text(folder)
    earlier = list(target.glob(f"events.out.tfevents.*{SUFFIX}"))
    shown, threading.excepthook = threading.excepthook, lambda _: None  # its thread's traceback
    try:
        with SummaryWriter(str(target), filename_suffix=SUFFIX) as writer:
            if text:
                writer.add_text("config.json", text, 0)
            for row in rows:
                for name, value in numbers(row).items():
                    writer.add_scalar(name, value, row["step"])
        for path in earlier:
            path.unlink()
    except OSError as error:
        raise UserError(
            f"{display_path(target)} could not be written ({error.strerror}): give --out another folder"
        ) from error
    finally:
        threading.excepthook = shown
    return len(rows)
