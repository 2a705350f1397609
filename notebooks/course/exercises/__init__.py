"""Exercises that check themselves: `check("group_advantages", mine)` says in words what is right or wrong.

The exercises stand in the files of this folder, by theme. entries.py says what one is made of.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from conformance import trying
from conformance.comparing import rounded, shape_sentence, shown_arguments
from conformance.trying import Answer, Empty, Stopped, Tried, Unusable, same
from course.exercises.entries import EXERCISES, Case, Exercise, mistakes_of
from course.exercises.probes import Numbers, Probes

THEMES = (
    "models_and_masks", "policy_gradients", "kl", "advantages", "losses", "reward_models",
    "preferences", "measures",
)  # fmt: skip
for theme in THEMES:  # each adds its exercises to EXERCISES
    importlib.import_module(f"course.exercises.{theme}")

RANDOM_BATCHES = 6


@dataclass(frozen=True)
class Verdict:
    """What `check` prints, in a word what was found, and the sentence of the mistake that was recognised.

    The word: "right", "empty", "stopped", "unusable", "mistake", or one of Tried.relation, with
    "gradient" before it where the numbers are right.
    """

    text: str
    word: str
    mistake: str | None = None


def names() -> list[str]:
    """Every exercise that asks for a function."""
    return sorted(EXERCISES)


def load(name: str) -> Exercise:
    """The exercise of that name; ValueError with all names for one that is not there."""
    if name not in EXERCISES:
        raise ValueError(f"there is no exercise {name!r}: use one of {', '.join(names())}")
    return EXERCISES[name]


def check(name: str, mine: Any) -> None:
    """Try the reader's function on worked numbers and random batches, or compare the reader's answer."""
    print(verdict(name, mine).text)


def verdict(name: str, mine: Any) -> Verdict:
    """What `check` finds out. Never an exception of the reader's function, and never a bare "wrong"."""
    exercise, cases = load(name), all_cases(load(name))
    empty = Verdict(f"not filled in yet: {name}. {exercise.statement}", "empty")
    if mine is None or mine is ...:
        return empty
    if not callable(mine):
        text = f"not yet: {name} must be a function, this is a {type(mine).__name__}."
        return Verdict(text, "unusable")

    wanted = [answer_of(exercise, exercise.solution, case) for case in cases]
    answers: list[Answer] = []
    for case, right in zip(cases, wanted, strict=True):
        try:
            answers.append(answer_of(exercise, mine, case, right[0].shape))
        except Empty:
            return empty
        except Stopped as problem:
            return Verdict(f"not yet: {problem}.\n{shown(case)}", "stopped")
        except Unusable as problem:
            return Verdict(f"not yet: {problem}. (Seen on: {case.about}.)", "unusable")
    given = [case.arguments for case in cases]
    tried = Tried(given, exercise.trained(given[0]), answers, wanted, exercise.tolerance)
    if not all(tried.right):
        return explained(exercise, mine, cases, tried)
    count = len(exercise.worked)
    worked = "1 worked case" if count == 1 else f"{count} worked cases"
    return Verdict(f"right: {worked} and {RANDOM_BATCHES} random batches.", "right")


def explained(
    exercise: Exercise, function: Callable[..., Any], cases: Sequence[Case], tried: Tried
) -> Verdict:
    """The sentence of the typical mistake that computes the same; else what differs, and where."""
    right_on = right_cases(cases, tried.right)
    found: dict[str, list[str]] = {}  # a mistake's sentence, and the wrong cases that look like it
    for mistake in mistakes_of(exercise):
        agrees = [
            same(mine, answer_or_nothing(exercise, mistake.function, case), 10 * exercise.tolerance)
            for mine, case in zip(tried.yours, cases, strict=True)  # it may have another eps
        ]
        if all(agrees):
            return Verdict(f"not yet: {mistake.says}{right_on}", "mistake", mistake.says)
        alike = zip(cases, agrees, tried.right, strict=True)
        shows = [case.about for case, agree, ok in alike if agree and not ok]
        if len(shows) > len(found.get(mistake.says, [])):
            found[mistake.says] = shows

    if not all(tried.numbers) and (says := probed(exercise, function, cases)):
        return Verdict(f"not yet: {says}{right_on}", "mistake", says)

    most = 0 if all(tried.numbers) else max(map(len, found.values()), default=0)
    says, *others = [says for says, shows in found.items() if len(shows) == most] or [""]
    finite = [all(part.isfinite().all() for part in answer) for answer in tried.yours]
    wrong = sum(is_finite and not ok for is_finite, ok in zip(finite, tried.right, strict=True))
    if not others and most > max(1, wrong / 2):
        where = " and ".join(f'"{about}"' for about in found[says][:2])
        text = f"not yet, and more than one thing may be wrong. On {where}: {says}"
        return Verdict(text + right_on, "mistake", says)
    word, sentence = tried.difference()
    if (
        most and not others and tried.yours[tried.first][0].numel() > 1
    ):  # one number agrees by chance
        where = f'On "{found[says][0]}"'
        sentence += f"\n{where} it looks like this, or something that gives the same there: {says}"
    return Verdict(f"not yet: {sentence}{right_on}\n{shown(cases[tried.first])}", word)


def probed(exercise: Exercise, function: Callable[..., Any], cases: Sequence[Case]) -> str | None:
    """What the probes see on the random batches."""

    def numbers(of: Callable[..., Any]) -> Numbers:
        return lambda given: answer_of(exercise, of, Case("", None, given))[0]

    given = [case.arguments for case in cases[-RANDOM_BATCHES:]]
    return Probes(numbers(function), numbers(exercise.solution), given, exercise.tolerance).first()


def right_cases(cases: Sequence[Case], right: Sequence[bool]) -> str:
    """A line with the cases that are right, the random ones counted; nothing if none is."""
    names = [case.about for case, ok in zip(cases[:-RANDOM_BATCHES], right, strict=False) if ok]
    count = sum(right[-RANDOM_BATCHES:])
    names += [f"{count} of {RANDOM_BATCHES} random batches"] if count else []
    return f"\nRight on: {'; '.join(names)}." if names else ""


def shown(case: Case) -> str:
    """A case's arguments and the wanted numbers, short enough to be read."""
    wanted = [] if case.wanted is None else [f"wanted: {rounded(case.wanted)}"]
    return "\n".join([f"The case is: {case.about}.", shown_arguments(case.arguments), *wanted])


# --- cases and answers --------------------------------------------------------------------------


def all_cases(exercise: Exercise) -> list[Case]:
    """The worked cases, then random batches."""
    cases = list(exercise.worked)
    for seed in range(RANDOM_BATCHES):
        arguments = exercise.random(torch.Generator().manual_seed(seed))
        cases.append(Case(f"random batch {seed + 1}", None, arguments))
    return cases


def answer_of(
    exercise: Exercise, function: Callable[..., Any], case: Case, shape: Any = None
) -> Answer:
    """What a function computes. Unusable where that has another shape, or numbers for True and False."""

    def fitted(result: Tensor) -> Tensor:
        if case.wanted is not None and case.wanted.dtype == torch.bool != result.dtype:
            raise Unusable(
                f"your result is {result.dtype}; True and False are wanted, as of x == 0"
            )
        if shape is not None and result.shape != shape:
            raise Unusable(shape_sentence(result, shape))
        return result

    trained = exercise.trained(case.arguments)
    return trying.answer_of(
        lambda given: function(*given.values()), case.arguments, trained, fitted
    )


def answer_or_nothing(exercise: Exercise, function: Callable[..., Any], case: Case) -> Answer:
    """The answer of a mistake; nothing where it stops."""
    with suppress(Unusable):
        return answer_of(exercise, function, case)
    return []
