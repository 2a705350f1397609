"""Every engine of this repository, by its entry."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from rl.task import Engine, entry_of

ROOM = Path(__file__).resolve().parents[1]


@cache
def every_engine() -> tuple[Engine, ...]:
    """The `ENGINE` of each rl/*_engine.py, in the order of their names."""
    names = sorted(path.stem for path in ROOM.glob("*_engine.py"))
    return tuple(entry_of(f"rl.{name}") for name in names)
