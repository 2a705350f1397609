"""Questions whose answer is entered: a number or letters, on a table that a reader's number draws.

The form is that of the exercises: the function below `@question` is the solution, it takes the facts of
a table, and a typical mistake is a changed line above the sentence for the reader who made it:

    @question(
        two_prompts,
        mistakes=\"\"\"
            math.sqrt(ratio) -> ratio
                you divide by the variance. GRPO divides by its root.
        \"\"\",
    )
    def hard_prompts_weight(easy, hard):
        \"\"\"What is asked for.

        What is said to every other wrong answer.
        \"\"\"

The questions stand in the files of this folder, by theme. A tree for students is handed out without it.
"""

from __future__ import annotations

import importlib
import random
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.ways import changed
from course.exercises.entries import paragraphs


@dataclass(frozen=True)
class Table:
    """What a reader sees, and the facts from which the answer is computed."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    facts: Mapping[str, Any]


Draw = Callable[[random.Random], Table]
Mistakes = Sequence[tuple[Callable[..., Any], str]]  # another answer, and what is said of it


@dataclass(frozen=True)
class Question:
    """`solution` and the functions of `mistakes` take a table's facts. `tolerance` is relative; a right
    answer that is an int must be met exactly."""

    solution: Callable[..., Any]
    draw: Draw
    mistakes: Mistakes
    tolerance: float
    asks: str
    hint: str


QUESTIONS: dict[str, Question] = {}


def question(draw: Draw, mistakes: str, tolerance: float = 0.01) -> Callable[..., Any]:
    """Makes the function below it the solution of a question with its name."""

    def add(solution: Callable[..., Any]) -> Callable[..., Any]:
        made = [
            (changed(solution, [change]), says)
            for changes, says in paragraphs(mistakes)
            for change in changes
        ]
        asks, _, hint = (
            " ".join(part.split()) for part in (solution.__doc__ or "").partition("\n\n")
        )
        QUESTIONS[solution.__name__] = Question(solution, draw, made, tolerance, asks, hint)
        return solution

    return add


def which(name: str, draw: Draw, text: str, right: str = "cause") -> None:
    """Adds a question whose answer is a letter among a table's facts, that of the name `right`.

    The text has three paragraphs: what is asked for, a hint, and what is said to each other answer, which
    is a letter or the name of a fact.
    """
    asks, hint, reasons = textwrap.dedent(f"    {text}").strip().split("\n\n")
    says = re.findall(r"^(\w+): (.*(?:\n .*)*)", reasons, re.MULTILINE)

    def fact(name: str) -> Callable[..., Any]:
        return lambda **facts: facts.get(name, name)

    mistakes = [(fact(other), " ".join(why.split())) for other, why in says]
    QUESTIONS[name] = Question(fact(right), draw, mistakes, 0.0, asks, " ".join(hint.split()))


def statements(right: str, *wrong: str) -> Draw:
    """The table of these statements in an order of the reader's own; the facts are their letters."""
    every = {"right": right} | {f"wrong{i}": statement for i, statement in enumerate(wrong, 1)}

    def draw(rng: random.Random) -> Table:
        places = dict(zip(rng.sample(list(every), len(every)), "abcdef"))
        return Table(["", "statement"], [[places[key], every[key]] for key in places], places)

    return draw


def numbers(**facts: tuple[Any, ...]) -> Draw:
    """A table of single numbers: of each fact its label, then the values of which one is drawn."""

    def draw(rng: random.Random) -> Table:
        drawn = {name: rng.choice(values) for name, (_, *values) in facts.items()}
        return Table(["given", "number"], [[facts[name][0], drawn[name]] for name in drawn], drawn)

    return draw


for theme in ("models", "learning", "evidence", "practice"):  # each adds its own
    importlib.import_module(f"course.questions.{theme}")
