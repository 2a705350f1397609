"""What ends a script with a sentence instead of a traceback."""

from __future__ import annotations


class UserError(ValueError):
    """A mistake that one sentence can explain: what is wrong, where, and what to do."""


def first_line(error: BaseException) -> str:
    """The message of a library's exception, in one line."""
    return (str(error).splitlines() or [type(error).__name__])[0]


class Unwritten(UserError):
    """A file could not be written; the command adds how to continue."""


class NothingToDo(Exception):
    """There is nothing left to do, which is no mistake; the message says why."""
