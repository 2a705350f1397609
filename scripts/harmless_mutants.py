"""Random mutants that no test notices, and why none can or should.

An entry belongs to the changed lines themselves: it holds wherever they stand in the file.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Harmless:
    """A mutant (the changed lines before and after, as `mutants.py --list` prints them)."""

    path: str
    old: str
    new: str
    reason: str


HARMLESS: tuple[Harmless, ...] = ()
