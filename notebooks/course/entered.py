"""Answers that are entered, on a table of the reader's own: shown, checked, and sealed for students.

    entered.table("matched_rate", 7)               the table that belongs to the number 7
    entered.check_answer("matched_rate", 0.61, 7)  says whether 0.61 is right for it, and if not, why

A reader's number (at a university the student's) draws the table, so that a neighbour's answer is of no
use. course/questions holds the solutions. A tree that was handed out has sealed.json in its place: tables,
and digests of right and of typical wrong answers. Who tries all letters finds one: a curtain, and no lock.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from course import plots
from course.exercises import Verdict

SEALED = Path(__file__).with_name("sealed.json")
QUESTIONS: dict[str, Any] = {}  # none in a tree that was handed out
if not SEALED.exists():
    from course.questions import QUESTIONS


@dataclass(frozen=True)
class Sheet:
    """A table as a reader sees it, and what is said to an answer, by its digest: "" if it is right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    says: dict[str, str]
    asks: str
    hint: str
    tolerance: float
    letters: bool


@cache
def sealed() -> dict[str, dict[str, Any]]:
    """Of each question its sheets by number, as `seal` wrote them; none in a repository with solutions."""
    return json.loads(SEALED.read_text(encoding="utf-8")) if SEALED.exists() else {}


def names() -> list[str]:
    """Every question."""
    return sorted(QUESTIONS or sealed())


def drawn(name: str, number: int) -> Any:
    """The questions.Table that belongs to a reader's number, the same on every machine."""
    return QUESTIONS[name].draw(random.Random(f"{name} {number}"))


def sheet(name: str, number: int = 0) -> Sheet:
    """The sheet of a reader's number. ValueError for a question that there is not, or no such number."""
    if name not in names():
        raise ValueError(f"there is no question {name!r}: use one of {', '.join(names())}")
    if not QUESTIONS:
        stored = sealed()[name]
        if str(number) not in stored:
            raise ValueError(f"your number must be one of 0 to {len(stored) - 1}, not {number}")
        return Sheet(**stored[str(number)])
    question, table = QUESTIONS[name], drawn(name, number)
    right = question.solution(**table.facts)
    tolerance = 0.0 if isinstance(right, int) else question.tolerance
    says: dict[str, str] = {}
    for answer, sentence in [(right, ""), *((f(**table.facts), s) for f, s in question.mistakes)]:
        for key in keys(answer, tolerance, around=2):
            says.setdefault(digest(name, number, key), sentence)
    rows = [list(row) for row in table.rows]
    hint = question.hint or "The table says something else."
    letters = isinstance(right, str)
    return Sheet(list(table.columns), rows, says, question.asks, hint, tolerance, letters)


def seal(numbers: int) -> str:
    """The sheets of all questions for the numbers 0 to `numbers`, as the text of sealed.json."""
    sheets = {
        name: {n: asdict(sheet(name, n)) for n in range(numbers + 1)} for name in sorted(QUESTIONS)
    }
    return json.dumps(sheets, ensure_ascii=False)


def digest(name: str, number: int, key: str) -> str:
    return hashlib.sha256(f"{name} {number} {key}".encode()).hexdigest()[:12]


def keys(answer: Any, tolerance: float, around: int = 0) -> list[str]:
    """How an answer is looked up: letters in any order and case, or a place on a ruler.

    The ruler is logarithmic with half the tolerance as its step, so that a number is met by those from one
    to one and a half tolerances away; without a tolerance it is the number. None for what is no number.
    """
    if isinstance(answer, str):
        return ["".join(sorted(filter(str.isalpha, answer.lower())))]
    if not math.isfinite(answer):
        return []
    if not tolerance or not answer:
        return [f"exactly {answer + 0.0:.6g}"]  # no minus before a 0
    place = round(math.log(abs(answer)) / (tolerance / 2))
    sign = "-" if answer < 0 else ""
    return [f"{sign}{place + i}" for i in range(-around, around + 1)]


def table(name: str, number: int = 0) -> None:
    """Show the table of that number."""
    shown = sheet(name, number)
    rows = [[str(cell) if isinstance(cell, int) else cell for cell in row] for row in shown.rows]
    plots.table(shown.columns, rows)


def right_answer(name: str, number: int) -> Any:
    """For teachers: what is right for the table of that number."""
    return QUESTIONS[name].solution(**drawn(name, number).facts)


def check_answer(name: str, mine: Any, number: int = 0) -> None:
    """Print what is found out about an answer to the table of that number."""
    print(verdict(name, mine, number).text)


def verdict(name: str, mine: Any, number: int = 0) -> Verdict:
    """right, empty, unusable, mistake (with the sentence of the one that gives this answer), or other."""
    found = sheet(name, number)
    if mine is None or mine is ...:
        return Verdict(f"not filled in yet: {name}. {found.asks}", "empty")
    if not found.letters and not isinstance(mine, str):
        try:
            mine = float(mine)
        except (TypeError, ValueError):
            return Verdict("not yet: the answer is one number.", "unusable")
    if found.letters != isinstance(mine, str):
        wanted = "letters, in quotes" if found.letters else "a number"
        return Verdict(f"not yet: the answer is {wanted}.", "unusable")
    says = {found.says.get(digest(name, number, key)) for key in keys(mine, found.tolerance)}
    if says == {""}:
        return Verdict("right.", "right")
    sentence = next(filter(None, says), None)
    if sentence:
        return Verdict(f"not yet: {sentence}", "mistake", sentence)
    return Verdict(f"not yet. {found.hint}", "other")
