"""The bug zoo's numbered cases: evidence first, the answer after a guess.

Stories and recorded runs stand in scripts/bug_stories.py.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import EllipsisType

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

from bug_stories import RECORDINGS as RECORDINGS
from bug_stories import STORIES as STORIES
from bug_stories import Recording, choices, control, recording, reveal, table

# A run is told to the reader by its number here, so that nothing beside it says what it is.
CASES = (
    "critic_rests", "reference_follows", "kl_per_response", "part_divisor", "no_eos",
    "row_above", "old_is_new", "kl_sign", "late_mask", "loss_sign",
)  # fmt: skip


# --- numbered cases ---------------------------------------------------------------------------------


def bug_of(number: int) -> str:
    """The bug of a numbered case; ValueError with the numbers that there are."""
    if number not in range(1, len(CASES) + 1):
        raise ValueError(f"there is no case {number!r}: the cases are 1 to {len(CASES)}")
    return CASES[number - 1]


def case(number: int) -> Recording:
    """The run of a numbered case."""
    return recording(bug_of(number))


def visit(number: int) -> None:
    """Print a case's numbers beside those of a healthy run, and what it could be."""
    bug = bug_of(number)
    engine = STORIES[bug].engine
    print(f"Case {number}: a run of {engine}\n{table(case(number).rows, control(engine).rows)}")
    print("\nWhich line is wrong?")
    for i, choice in enumerate(choices(bug, seed=number), start=1):
        print(f"  {i}  {STORIES[choice].words}")


def guess(number: int, choice: int | EllipsisType) -> None:
    """Print whether the choice, counted from 1, is right, and what the case is. Dots: nothing yet."""
    bug = bug_of(number)
    names = choices(bug, seed=number)
    if choice is ... or choice not in range(1, len(names) + 1):
        print(f"Case {number} waits for your guess: 1 to {len(names)}, in place of the dots.")
    elif names[choice - 1] == bug:
        print(f"Yes: {reveal(bug)}")
    else:
        print(f"No. That one looks like this: {STORIES[names[choice - 1]].shows}")
        print(f"\nThis run: {reveal(bug)}")
