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

from conformance.comparing import close, rounded, shape_sentence
from course.exercises.comparing import difference
from course.exercises.entries import EXERCISES, Case, Exercise, mistakes_of
from course.exercises.probes import Numbers, Probes

THEMES = (
    "models_and_masks", "policy_gradients", "kl", "advantages", "losses", "reward_models",
    "preferences", "measures",
)  # fmt: skip
for theme in THEMES:  # each adds its exercises to EXERCISES
    importlib.import_module(f"course.exercises.{theme}")

RANDOM_BATCHES = 6

Answer = list[Tensor]  # the result, and its gradient for each argument that is trained


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
    return explained(exercise, mine, cases, answers, wanted)


def stopped(error: BaseException, case: Case) -> Verdict:
    """The reader's function raised: say what, and on what."""
    reason = str(error).splitlines()[0] if str(error) else "no reason given"
    text = f"not yet: your function stopped with {type(error).__name__} ({reason})."
    return Verdict(f"{text}\n{shown(case)}", "stopped")


def explained(
    exercise: Exercise,
    function: Callable[..., Any],
    cases: Sequence[Case],
    answers: Sequence[Answer],
    wanted: Sequence[Answer],
) -> Verdict:
    """The sentence of the typical mistake that computes the same; else what differs, and where."""
    right = [same(exercise, *pair) for pair in zip(answers, wanted, strict=True)]
    numbers = [close(a[0], b[0], exercise.tolerance) for a, b in zip(answers, wanted, strict=True)]
    first = (right if all(numbers) else numbers).index(False)
    right_on = right_cases(cases, right)

    found: dict[str, list[str]] = {}  # a mistake's sentence, and the wrong cases that look like it
    for mistake in mistakes_of(exercise):
        agrees = [
            same(exercise, mine, quiet_answer(exercise, mistake.function, case), 10)  # another eps
            for mine, case in zip(answers, cases, strict=True)
        ]
        if all(agrees):
            return Verdict(f"not yet: {mistake.says}{right_on}", "mistake", mistake.says)
        alike = zip(cases, agrees, right, strict=True)
        shows = [case.about for case, agree, ok in alike if agree and not ok]
        if len(shows) > len(found.get(mistake.says, [])):
            found[mistake.says] = shows

    if not all(numbers) and (says := probed(exercise, function, cases)):
        return Verdict(f"not yet: {says}{right_on}", "mistake", says)

    most = 0 if all(numbers) else max(map(len, found.values()), default=0)
    says, *others = [says for says, shows in found.items() if len(shows) == most] or [""]
    finite = [all(part.isfinite().all() for part in answer) for answer in answers]
    wrong = sum(is_finite and not ok for is_finite, ok in zip(finite, right, strict=True))
    if not others and most > max(1, wrong / 2):
        where = " and ".join(f'"{about}"' for about in found[says][:2])
        text = f"not yet, and more than one thing may be wrong. On {where}: {says}"
        return Verdict(text + right_on, "mistake", says)
    word, sentence = first_difference(exercise, cases[first], first, answers, wanted)
    if most and not others and answers[first][0].numel() > 1:  # one number agrees by chance
        where = f'On "{found[says][0]}"'
        sentence += f"\n{where} it looks like this, or something that gives the same there: {says}"
    return Verdict(f"not yet: {sentence}{right_on}\n{shown(cases[first])}", word)


def probed(exercise: Exercise, function: Callable[..., Any], cases: Sequence[Case]) -> str | None:
    """What the probes see on the random batches."""

    def numbers(of: Callable[..., Any]) -> Numbers:
        return lambda given: answer_of(exercise, of, Case("", None, given))[0]

    given = [case.arguments for case in cases[-RANDOM_BATCHES:]]
    return Probes(numbers(function), numbers(exercise.solution), given, exercise.tolerance).first()


def first_difference(
    exercise: Exercise,
    case: Case,
    first: int,
    answers: Sequence[Answer],
    wanted: Sequence[Answer],
) -> tuple[str, str]:
    """What is wrong with the results of all cases, or, where these are right, with their gradients."""
    both = zip(answers[first], wanted[first], strict=True)
    part = [close(*pair, exercise.tolerance) for pair in both].index(False)
    names = ["your result"]
    names += [f"its gradient for {name}" for name in exercise.trained(case.arguments)]
    name = names[part]
    mine, right = [answer[part] for answer in answers], [answer[part] for answer in wanted]
    word, sentence = difference(name, mine, right, first, mask_of(case), exercise.tolerance)
    if part == 0:
        return word, sentence
    if word == "nothing":
        sentence = f"no gradient reaches {name.split()[-1]}"
    return (
        f"gradient {word}",
        f"the numbers are right, but {sentence.removesuffix('.')}. (Of the sum of your numbers, weighted "
        "from 1 to 2.) So something is detached that must not be, or the other way round.",
    )


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
    leaves = {
        name: case.arguments[name].detach().clone().requires_grad_()
        for name in exercise.trained(case.arguments)
    }
    fresh = {  # copies, so that no function can change what the next one sees
        name: value.clone() if isinstance(value, Tensor) else value
        for name, value in (case.arguments | leaves).items()
    }
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
    return [result.detach().float(), *gradients_of(result, list(leaves.values()))]


def quiet_answer(exercise: Exercise, function: Callable[..., Any], case: Case) -> Answer:
    """The answer of a mistake, without PyTorch's warnings; nothing where it stops."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return answer_of(exercise, function, case)
        except (ArithmeticError, RuntimeError, ValueError, IndexError):
            return []


def gradients_of(result: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """The gradients of the result's sum, weighted from 1 to 2 because a plain one may be constant."""
    if not leaves or not result.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    weighted = result.flatten() * torch.linspace(1, 2, result.numel())
    return list(torch.autograd.grad(weighted.sum(), leaves, materialize_grads=True))


def same(exercise: Exercise, one: Answer, other: Answer, times: int = 1) -> bool:
    """Whether results and gradients agree, to `times` the tolerance."""
    return len(one) == len(other) and all(
        close(a, b, times * exercise.tolerance) for a, b in zip(one, other, strict=True)
    )
