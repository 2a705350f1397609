"""A run's folder: opened anew or to be resumed, never mixed with another run's."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from gpt.common import STATE_FILE, UserError, display_path, write_json
from gpt.ranks import on_main

# What may change when a run is resumed: how long it is, where it runs and how it is watched.
FREE_FLAGS = (
    "steps", "device", "out", "resume", "eval_every", "eval_prompts", "test_prompts",
    "checkpoint_every", "ranks",
)  # fmt: skip


def open_run(folder: Path, config: Any, *, resume: bool = False) -> Path:
    """Make a run folder and write config.json. An earlier run there is moved aside, never lost.

    With `resume` the folder is kept as it is, must hold a state.pt and have been started with the
    same flags, but for FREE_FLAGS. Returns the folder.
    """
    return on_main(lambda: _open_run(folder, config, resume=resume))


def _open_run(folder: Path, config: Any, *, resume: bool) -> Path:
    flags = json.loads(json.dumps(dataclasses.asdict(config), default=str))
    if resume:
        if not (folder / STATE_FILE).exists():
            raise UserError(
                f"{folder} holds no {STATE_FILE} to resume from: leave --resume out to start anew"
            )
        started = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        for name, value in flags.items():
            if name not in FREE_FLAGS and name in started and started[name] != value:
                raise UserError(
                    f"the run in {folder} was started with {name} {started[name]}, not {value}: "
                    "resume with the flags in its config.json, or leave --resume out"
                )
        return folder
    if folder.exists() and any(folder.iterdir()):
        number = 1
        while (aside := folder.with_name(f"{folder.name}.{number}")).exists():
            number += 1
        folder.rename(aside)
        print(f"an earlier run was moved to {display_path(aside)}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", flags)
    return folder
