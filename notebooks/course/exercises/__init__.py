"""Exercises that check themselves: `check("group_advantages", mine)` says in words what is right or wrong.

The exercises stand in the files of this folder, by theme. entries.py says what one is made of.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from course.exercises.batches import Arguments
from course.exercises.comparing import close, difference, rounded, shape_sentence
from course.exercises.entries import EXERCISES, Case, Exercise, mistakes_of

THEMES = (
    "models_and_masks", "policy_gradients", "kl", "advantages", "losses", "reward_models",
    "preferences", "measures",
)  # fmt: skip
for theme in THEMES:  # each adds its exercises to EXERCISES
    importlib.import_module(f"course.exercises.{theme}")

RANDOM_BATCHES = 6

Answer = list[Tensor]  # the result, and its gradient where the exercise asks for one


@dataclass(frozen=True)
class Verdict:
    """What `check` prints, in a word what was found, and the sentence of the mistake that was recognised.

    The word: "right", "empty", "stopped", "unusable", "mistake", or one of comparing.difference, with
    "gradient" before it where the numbers are right.
    """

    text: str
    word: str
    mistake: str | None = None


class Unusable(Exception):
    """An answer that cannot be compared; the message says why."""


def names() -> list[str]:
    """Every exercise there is."""
    return sorted(EXERCISES)


def load(name: str) -> Exercise:
    """The exercise of that name; ValueError with all names for one that is not there."""
    if name not in EXERCISES:
        raise ValueError(f"there is no exercise {name!r}: use one of {', '.join(names())}")
    return EXERCISES[name]


def check(name: str, mine: Any) -> None:
    """Try the reader's function on worked numbers and random batches, and print what comes out."""
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
        except NotImplementedError:
            return empty
        except Unusable as problem:
            return Verdict(f"not yet: {problem} (seen on: {case.about})", "unusable")
        except (Exception, SystemExit) as error:
            return stopped(error, case)

    if all(same(exercise, *pair) for pair in zip(answers, wanted, strict=True)):
        count = len(exercise.worked)
        worked = "1 worked case" if count == 1 else f"{count} worked cases"
        return Verdict(f"right: {worked} and {RANDOM_BATCHES} random batches.", "right")
    return explained(exercise, cases, answers, wanted)


def stopped(error: BaseException, case: Case) -> Verdict:
    """The reader's function raised: say what, and on what."""
    reason = str(error).splitlines()[0] if str(error) else "no reason given"
    text = f"not yet: your function stopped with {type(error).__name__} ({reason})."
    return Verdict(f"{text}\n{shown(case)}", "stopped")


def explained(
    exercise: Exercise, cases: Sequence[Case], answers: Sequence[Answer], wanted: Sequence[Answer]
) -> Verdict:
    """The sentence of the typical mistake that computes the same; else what differs, and where."""
    right = [same(exercise, *pair) for pair in zip(answers, wanted, strict=True)]
    first = right.index(False)
    right_on = right_cases(cases, right)

    found = {}  # of several mistakes at once, a case may show one alone
    for mistake in mistakes_of(exercise):
        agrees = [
            same(exercise, mine, quiet_answer(exercise, mistake.function, case), 10)  # another eps
            for mine, case in zip(answers, cases, strict=True)
        ]
        if all(agrees):
            return Verdict(f"not yet: {mistake.says}{right_on}", "mistake", mistake.says)
        if agrees[first] and max(map(Tensor.numel, answers[first])) > 1:  # one may agree by chance
            found[mistake.says] = f'"{cases[first].about}"'
        elif all(agrees[-RANDOM_BATCHES:]) and not all(right[-RANDOM_BATCHES:]):
            found[mistake.says] = "the random batches"

    if len(found) == 1:
        ((says, where),) = found.items()
        text = f"not yet, and more than one thing may be wrong. On {where}: {says}"
        return Verdict(text + right_on, "mistake", says)
    word, sentence = first_difference(exercise, cases[first], first, answers, wanted)
    return Verdict(f"not yet: {sentence}{right_on}\n{shown(cases[first])}", word)


def first_difference(
    exercise: Exercise,
    case: Case,
    first: int,
    answers: Sequence[Answer],
    wanted: Sequence[Answer],
) -> tuple[str, str]:
    """What is wrong with the results of all cases, or, where these are right, with their gradients."""
    part = int(close(answers[first][0], wanted[first][0], exercise.tolerance))
    name = ("your result", f"the gradient of your result for {exercise.gradient}")[part]
    mine, right = [answer[part] for answer in answers], [answer[part] for answer in wanted]
    word, sentence = difference(name, mine, right, first, mask_of(case), exercise.tolerance)
    if part == 0:
        return word, sentence
    return f"gradient {word}", f"the numbers are right, but {sentence}"


def mask_of(case: Case) -> Tensor | None:
    """The mask among a case's arguments: its first tensor of bools."""
    tensors = [value for value in case.arguments.values() if isinstance(value, Tensor)]
    return next((value for value in tensors if value.dtype == torch.bool), None)


def right_cases(cases: Sequence[Case], right: Sequence[bool]) -> str:
    """A line with the cases that are right, the random ones counted; nothing if none is."""
    names = [case.about for case, ok in zip(cases[:-RANDOM_BATCHES], right, strict=False) if ok]
    count = sum(right[-RANDOM_BATCHES:])
    names += [f"{count} of {RANDOM_BATCHES} random batches"] if count else []
    return f"\nRight on: {'; '.join(names)}." if names else ""


def shown(case: Case) -> str:
    """A case's arguments and the wanted numbers, short enough to be read."""
    arguments = [f"  {name} = {rounded(value)}" for name, value in case.arguments.items()]
    wanted = [] if case.wanted is None else [f"wanted: {rounded(case.wanted)}"]
    return "\n".join([f"The case is: {case.about}.", *arguments, *wanted])


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
    """What a function computes, on copies of the arguments.

    Raises NotImplementedError where it returns nothing, and Unusable where it changes an argument or
    returns no tensor of the shape, or numbers in place of True and False.
    """
    fresh = fresh_arguments(exercise, case.arguments)
    result = function(*fresh.values())
    if result is None or result is ...:
        raise NotImplementedError
    for name, before in case.arguments.items():
        if isinstance(before, Tensor) and not torch.equal(fresh[name].detach(), before):
            raise Unusable(f"your function changes its argument {name} in place: work on a copy.")
    if not isinstance(result, Tensor):
        try:
            result = torch.as_tensor(result, dtype=torch.float32)
        except (TypeError, ValueError, RuntimeError):
            kind = type(result).__name__
            raise Unusable(f"your function returns a {kind}; a tensor is wanted.") from None
    elif case.wanted is not None and case.wanted.dtype == torch.bool != result.dtype:
        raise Unusable(f"your result is {result.dtype}; True and False are wanted, as of x == 0.")
    if shape is not None and result.shape != shape:
        raise Unusable(shape_sentence(result, shape))
    return [result.detach().float(), *gradient_of(exercise, result, fresh)]


def quiet_answer(exercise: Exercise, function: Callable[..., Any], case: Case) -> Answer:
    """The answer of a mistake, without PyTorch's warnings; nothing where it stops."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return answer_of(exercise, function, case)
        except (ArithmeticError, RuntimeError, ValueError, IndexError):
            return []


def fresh_arguments(exercise: Exercise, arguments: Arguments) -> Arguments:
    """Copies, so that no function can change what the next one sees."""
    fresh = {k: v.clone() if isinstance(v, Tensor) else v for k, v in arguments.items()}
    if exercise.gradient:
        fresh[exercise.gradient] = fresh[exercise.gradient].detach().requires_grad_()
    return fresh


def gradient_of(exercise: Exercise, result: Tensor, fresh: Arguments) -> list[Tensor]:
    """The gradient of the result's sum for the named argument, 0 where none flows."""
    if not exercise.gradient:
        return []
    leaf = fresh[exercise.gradient]
    if not result.requires_grad:
        return [torch.zeros_like(leaf)]
    return list(torch.autograd.grad(result.sum(), leaf, materialize_grads=True))


def same(exercise: Exercise, one: Answer, other: Answer, times: int = 1) -> bool:
    """Whether results and gradients agree, to `times` the tolerance."""
    return len(one) == len(other) and all(
        close(a, b, times * exercise.tolerance) for a, b in zip(one, other, strict=True)
    )
