"""What a command prints beside its numbers: a note once, a warning once over the ranks, text of others."""

from __future__ import annotations

import sys
from functools import cache

from harness.ranks.collectives import is_main

say_once = cache(print)


def say_always(text: str) -> None:
    """A warning, on stderr; of several ranks the first one says it."""
    if is_main():
        print(text, file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """The text with control characters as their escapes: it must not steer the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text.strip())
