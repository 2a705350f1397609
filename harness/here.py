"""What this process is in a run: which rank, which signal came, what it holds. One object for all of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Here:
    """The state that belongs to the process and to no run folder, model or config."""

    store: Any = None  # where the ranks met
    is_child: bool = False  # a rank that rank 0 has started
    has_waited: bool = False  # so long for another rank that it was said
    run: Path | None = None  # the folder of the run that is open
    another_speaks: bool = False  # of the failure that ends the run
    on_main_alone: bool = False  # inside `on_main`, where the other ranks wait
    in_steps: bool = False  # whether somebody asks `stop_asked` after every step
    signal: int = 0  # the number of the signal that came, 0 for none
    locks: dict[Path, int] = field(default_factory=dict)  # folder: descriptor
    read: set[Path] | None = None  # files that the run has read, inside of harness.files.reading


HERE = Here()
