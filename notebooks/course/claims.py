"""What a page's text says of its numbers, checked without standing in a reader's way."""

from __future__ import annotations

import os
from typing import Any

STRICT = "COURSE_STRICT"  # set where pages are built and checked: there a false claim is an error


def holds(claim: Any, says: str) -> None:
    """Nothing if the claim is true; otherwise print which sentence of the text is no longer so.

    A reader who tries other rewards or another learning rate has made no mistake, so there is no
    exception. Raises AssertionError where the variable COURSE_STRICT is set, and TypeError for a
    collection, which would be true whatever it holds.
    """
    if isinstance(claim, (str, list, tuple, dict, set)):
        raise TypeError(f"a claim is true or false, not a {type(claim).__name__}: {says}")
    if bool(claim):
        return
    if os.environ.get(STRICT):
        raise AssertionError(says)
    print(f"With your changes the text is no longer right where it says: {says}")
