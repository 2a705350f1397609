"""What an exercise is made of: a solution, worked cases, random batches, and typical mistakes.

A mistake is a change of one line of the solution, with the sentence for the reader who made it:

    @exercise(
        case("two tokens", 2.0, loss=[[1.0, 3.0]], mask=lengths(2)),
        random=some("loss mask"),
        mistakes=\"\"\"
            mask.sum() -> len(mask)
                you divide by the number of responses.
        \"\"\",
    )
    def token_mean(loss, mask):
        \"\"\"What is asked for.\"\"\"
        return (loss * mask).sum() / mask.sum()

Two changes above one sentence are two mistakes. Where the kit knows this kind of function, its mistakes
are those of the exercise too: `kit="gae"`, with the names of those that are none here behind it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from conformance.batches import Arguments, is_float
from conformance.ways import Way, changed, ways

Solution = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """In words what it is about, the numbers wanted (None: the solution's), and the arguments."""

    about: str
    wanted: Tensor | None
    arguments: Arguments


@dataclass(frozen=True)
class Exercise:
    """All that tells right from wrong.

    The reader's function is called with positional arguments, in the order of a case's. The gradient
    for every float tensor among them must be right as well, except for `constants`, which nobody trains.
    """

    solution: Solution
    worked: tuple[Case, ...]
    random: Callable[[torch.Generator], Arguments]  # the arguments of one batch
    mistakes: str
    constants: str = ""
    tolerance: float = 1e-4
    kit: str = ""  # a kind whose mistakes are this exercise's too, and which of them are not

    def trained(self, arguments: Arguments) -> list[str]:
        """The arguments for which the gradient must be right."""
        constants = self.constants.split()
        return [k for k, v in arguments.items() if is_float(v) and k not in constants]

    @property
    def statement(self) -> str:
        return " ".join((self.solution.__doc__ or "").split())


EXERCISES: dict[str, Exercise] = {}


def exercise(*worked: Case, **parts: Any) -> Callable[[Solution], Solution]:
    """Makes the function below it the solution of an Exercise of these parts, with its name."""

    def add(solution: Solution) -> Solution:
        EXERCISES[solution.__name__] = Exercise(solution, worked, **parts)
        return solution

    return add


def case(about: str, wanted: Any, **arguments: Any) -> Case:
    """A worked case: lists become tensors, tuples stay lists."""
    return Case(about, torch.tensor(wanted), {k: value_of(v) for k, v in arguments.items()})


def value_of(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return torch.tensor(value) if isinstance(value, list) else value


def logs(probabilities: list[Any]) -> Tensor:
    """Log-probabilities, from probabilities that can be read."""
    return torch.tensor(probabilities).log()


def lengths(*counts: int, columns: int = 0) -> Tensor:
    """A mask (N, T) of responses with these lengths."""
    return torch.arange(columns or max(counts)) < torch.tensor(counts)[:, None]


# --- mistakes -----------------------------------------------------------------------------------


def mistakes_of(exercise: Exercise) -> list[Way]:
    """The typical mistakes, in the order in which they stand there; then the kit's of this kind."""
    found = [
        Way(change, says, changed(exercise.solution, [change]))
        for changes, says in paragraphs(exercise.mistakes)
        for change in changes
    ]
    kind, *others = exercise.kit.split() or [""]
    return found + [way for way in ways(kind, mistakes=True) if way.name not in others]


def paragraphs(text: str) -> list[tuple[list[str], str]]:
    """Lines at the margin are changes, the indented ones below them their sentence.

    A change may take two lines, the second of which begins with its arrow.
    """
    found: list[tuple[list[str], str]] = []
    for line in textwrap.dedent(text).strip().splitlines():
        if line.startswith("-> "):
            found[-1][0][-1] += f" {line}"
        elif not line.startswith(" "):
            if not found or found[-1][1]:
                found.append(([], ""))
            found[-1][0].append(line)
        else:
            changes, says = found[-1]
            found[-1] = changes, f"{says} {line.strip()}".strip()
    return found
