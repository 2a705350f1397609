"""What a command prints beside its numbers: a note once, a warning once over the ranks, text of others."""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache

from harness.ranks.collectives import is_main

say_once = cache(print)


def say_always(text: str) -> None:
    """A warning, on stderr; of several ranks the first one says it."""
    if is_main():
        print(text, file=sys.stderr, flush=True)


TURNING = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}  # what follows runs the other way


def printable(text: str) -> str:
    """The text with what could steer a terminal as its escape: control characters, turns of direction.

    The blanks and joiners of ordinary languages stay: French, Persian, Hindi, Thai, Japanese, emoji.
    """
    return "".join(c if _is_harmless(c) else repr(c)[1:-1] for c in text.strip())


def _is_harmless(c: str) -> bool:
    joins = unicodedata.category(c) in ("Zs", "Cf") and ord(c) not in TURNING
    return c.isprintable() or joins


def columns(text: str) -> int:
    """How many columns of a terminal a text takes: two for a wide letter, none for what joins or marks."""
    narrow = sum(unicodedata.category(c) not in ("Mn", "Me", "Cf") for c in text)
    return narrow + sum(unicodedata.east_asian_width(c) in "WF" for c in text)


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns, divided at blanks, or inside a word that is longer than a line."""
    lines = [""]
    for word in re.findall(r"[ \t]*[^ \t]+", text):
        if columns(lines[-1] + word) <= width:
            lines[-1] += word
            continue
        word = word.lstrip()
        if lines[-1]:
            lines.append("")
        for c in word:
            if columns(lines[-1] + c) > width:
                lines.append("")
            lines[-1] += c
    return lines
