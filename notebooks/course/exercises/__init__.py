"""Exercises that check themselves: `check("group_advantages", mine)` says in words what is right or wrong.

One exercise is one module of this folder, named like the exercise, that defines `EXERCISE`. Tests
find them all, run every solution, and see that each typical mistake is caught by its own name.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from course.mistakes import Mistake, mistakes_of

Arguments = Mapping[str, Any]  # of one call, by name

RANDOM_BATCHES = 6


@dataclass(frozen=True)
class Case:
    """One worked case: in words what it is about, the arguments in order, and the numbers wanted."""

    about: str
    arguments: Arguments
    wanted: Any  # a number, nested lists or a tensor


@dataclass(frozen=True)
class Exercise:
    """What is to be written, its solution, and all that tells right from wrong.

    The reader's function is called with positional arguments, in the order of a case's. `gradient`
    names an argument; then the gradient of the result's sum for it must be right as well.
    """

    statement: str
    solution: Callable[..., Any]
    library: Callable[..., Any]  # takes the same arguments by name
    cases: Sequence[Case]
    random: Callable[[torch.Generator], Arguments]  # the arguments of one ragged batch
    gradient: str | None = None
    mask: str | None = None  # the bool argument whose False positions a result must not depend on
    tolerance: float = 1e-4
    mistakes: Sequence[Mistake] = ()  # `load` puts those of the module here


@dataclass(frozen=True)
class Verdict:
    """What `check` prints, whether all is right, and the typical mistake that was recognised."""

    text: str
    right: bool = False
    mistake: str | None = None


@dataclass(frozen=True)
class Trial:
    """One set of arguments with the wanted answer: the result, then the gradient if one is asked for."""

    about: str
    arguments: Arguments
    wanted: list[Tensor]


def names() -> list[str]:
    """Every exercise there is."""
    here = Path(__file__).parent
    return sorted(path.stem for path in here.glob("*.py") if path.stem != "__init__")


def load(name: str) -> Exercise:
    """The exercise of that name; ValueError with all names for one that is not there."""
    if name not in names():
        raise ValueError(f"there is no exercise {name!r}: use one of {', '.join(names())}")
    module = importlib.import_module(f"course.exercises.{name}")
    return replace(module.EXERCISE, mistakes=mistakes_of(module))


def check(name: str, mine: Any) -> None:
    """Try the reader's function on worked numbers and random batches, and print what comes out."""
    print(verdict(name, mine).text)


def verdict(name: str, mine: Any) -> Verdict:
    """What `check` finds out. Never an exception of the reader's function, and never a bare "wrong"."""
    exercise = load(name)
    trials = all_trials(exercise)
    if mine is None or mine is ...:
        return not_filled_in(name, exercise)
    if not callable(mine):
        return Verdict(f"not yet: {name} must be a function, this is a {type(mine).__name__}.")
    found: list[str | None] = []
    for trial in trials:
        try:
            answer = answer_of(exercise, mine, trial)
        except NotImplementedError:
            return not_filled_in(name, exercise)
        except Exception as error:
            return stopped(error, trial)
        if answer is None:
            return not_filled_in(name, exercise)
        if isinstance(answer, str):
            return Verdict(f"not yet: {answer} (seen on: {trial.about})")
        found.append(first_difference(exercise, answer, trial))
    if not any(found):
        worked = len(exercise.cases)
        return Verdict(
            f"right: {worked} worked cases, and the library's numbers on {RANDOM_BATCHES} random "
            "batches.",
            right=True,
        )
    return explained(exercise, mine, trials, found)


def not_filled_in(name: str, exercise: Exercise) -> Verdict:
    return Verdict(f"not filled in yet: {name}. {exercise.statement}")


def stopped(error: Exception, trial: Trial) -> Verdict:
    """The reader's function raised: say what, and on what."""
    reason = str(error).splitlines()[0] if str(error) else "no reason given"
    return Verdict(
        f"not yet: your function stopped with {type(error).__name__} ({reason}) on: {trial.about}."
        f"\n{shown_arguments(trial.arguments)}"
    )


def explained(
    exercise: Exercise, mine: Any, trials: Sequence[Trial], found: Sequence[str | None]
) -> Verdict:
    """The sentence of the typical mistake that computes the same; else what differs, and where."""
    right = [t.about for t, problem in zip(trials, found) if problem is None]
    trial, problem = next((t, p) for t, p in zip(trials, found) if p is not None)
    opening = "not yet: " if not right else f"right on: {joined(right)}. But "
    for mistake in exercise.mistakes:
        if all(same_answer(exercise, mine, mistake.function, t) for t in trials):
            return Verdict(opening + mistake.says, mistake=mistake.name)
    failing = [t for t, p in zip(trials, found) if p is not None]
    for mistake in exercise.mistakes:  # more than one thing may be wrong: what explains this case?
        alike = [same_answer(exercise, mine, mistake.function, t) for t in failing[:1]]
        differs = any(
            first_difference(exercise, answer, t) is not None
            for t in failing[:1]
            if isinstance(answer := answer_of(exercise, mistake.function, t), list)
        )
        if all(alike) and differs:
            text = f"{opening}{mistake.says} (That explains: {trial.about}.)"
            return Verdict(text, mistake=mistake.name)
    return Verdict(f"{opening}{problem}\nThe case is: {trial.about}.\n{shown(trial)}")


def joined(abouts: Sequence[str]) -> str:
    """The cases that are right, the random ones counted."""
    worked = [about for about in abouts if not about.startswith("random batch")]
    count = len(abouts) - len(worked)
    return "; ".join(worked + ([f"{count} of {RANDOM_BATCHES} random batches"] if count else []))


# --- trials -------------------------------------------------------------------------------------


def all_trials(exercise: Exercise) -> list[Trial]:
    """The worked cases with their literal numbers, then random batches with the library's."""
    trials = []
    for case in exercise.cases:
        wanted = [torch.as_tensor(case.wanted, dtype=torch.float32)]
        if exercise.gradient:
            wanted += library_answer(exercise, case.arguments)[1:]
        trials.append(Trial(case.about, case.arguments, wanted))
    for seed in range(RANDOM_BATCHES):
        arguments = exercise.random(torch.Generator().manual_seed(seed))
        wanted = library_answer(exercise, arguments)
        trials.append(Trial(f"random batch {seed + 1}", arguments, wanted))
    return trials


def library_answer(exercise: Exercise, arguments: Arguments) -> list[Tensor]:
    """The library's result, and its gradient if one is asked for."""
    fresh = fresh_arguments(exercise, arguments)
    result = exercise.library(**fresh)
    return [result.detach().float(), *gradient_of(exercise, result, fresh)]


def answer_of(exercise: Exercise, function: Callable[..., Any], trial: Trial) -> Any:
    """[result] or [result, gradient] of the reader's function; None if unfilled; str: a problem."""
    fresh = fresh_arguments(exercise, trial.arguments)
    before = {name: value.detach().clone() for name, value in tensors(fresh).items()}
    result = function(*fresh.values())
    if result is None or result is ...:
        return None
    for name, value in tensors(fresh).items():
        if not torch.equal(value.detach(), before[name]):
            return f"your function changes its argument {name} in place: work on a copy."
    if not isinstance(result, Tensor):
        try:
            result = torch.as_tensor(result, dtype=torch.float32)
        except (TypeError, ValueError, RuntimeError):
            return f"your function returns a {type(result).__name__}; a tensor is wanted."
    if result.shape != trial.wanted[0].shape:
        return shape_sentence(result, trial.wanted[0])
    return [result.detach().float(), *gradient_of(exercise, result, fresh)]


def fresh_arguments(exercise: Exercise, arguments: Arguments) -> dict[str, Any]:
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
    (gradient,) = torch.autograd.grad(result.sum(), leaf, allow_unused=True)
    return [torch.zeros_like(leaf) if gradient is None else gradient]


def tensors(arguments: Arguments) -> dict[str, Tensor]:
    return {name: value for name, value in arguments.items() if isinstance(value, Tensor)}


# --- what differs -------------------------------------------------------------------------------


def same_answer(exercise: Exercise, mine: Any, other: Callable[..., Any], trial: Trial) -> bool:
    """Whether two functions give the same result, and the same gradient, on one trial."""
    a, b = answer_of(exercise, mine, trial), answer_of(exercise, other, trial)
    if not isinstance(a, list) or not isinstance(b, list):
        return a == b if isinstance(a, str) else False
    return all(close(x, y, exercise.tolerance) for x, y in zip(a, b, strict=True))


def close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    return torch.allclose(a, b.to(a.dtype), rtol=tolerance, atol=tolerance, equal_nan=True)


def first_difference(exercise: Exercise, answer: list[Tensor], trial: Trial) -> str | None:
    """In a sentence what is wrong with the result, or with its gradient; None if nothing is."""
    what = ["your result", f"the gradient of your result for {exercise.gradient}"]
    for name, mine, wanted in zip(what, answer, trial.wanted):
        if close(mine, wanted, exercise.tolerance):
            continue
        lead = "the numbers are right, but " if name != what[0] else ""
        mask = trial.arguments.get(exercise.mask) if exercise.mask else None
        return lead + pattern(name, mine, wanted, mask, exercise.tolerance)
    return None


def pattern(name: str, mine: Tensor, wanted: Tensor, mask: Any, tolerance: float) -> str:
    """What two tensors have to do with each other, as far as that can be seen."""
    if not mine.isfinite().all():
        return f"{name} is not finite (NaN or inf) where numbers are wanted."
    if close(-mine, wanted, tolerance):
        return f"{name} has the wrong sign everywhere: it is -1 times what is wanted."
    if isinstance(mask, Tensor) and mask.shape == mine.shape:
        if close(mine * mask, wanted * mask, tolerance):
            return f"{name} is right where the mask is True, but not where it is False."
    if mine.ndim == 2 and mine.shape[0] == mine.shape[1] and close(mine.T, wanted, tolerance):
        return f"{name} is transposed: rows and columns have changed places."
    factor = float((mine * wanted).sum() / (wanted * wanted).sum().clamp(min=1e-12))
    if abs(factor) > 1e-6 and close(mine / factor, wanted, tolerance):
        return f"{name} is {factor:.4g} times what is wanted, everywhere: a factor is wrong."
    shift = float((mine - wanted).mean())
    if close(mine - shift, wanted, tolerance):
        return f"{name} is off by {shift:.4g} everywhere."
    wrong = ~torch.isclose(mine, wanted.to(mine.dtype), rtol=tolerance, atol=tolerance)
    if mine.ndim == 0:
        return f"{name} is {float(mine):.4f}; {float(wanted):.4f} is wanted."
    at = tuple(int(i) for i in wrong.nonzero()[0])
    where = ", ".join(map(str, at))
    return (
        f"{name} differs at {int(wrong.sum())} of {wrong.numel()} places, first at [{where}]: "
        f"{float(mine[at]):.4f}, and {float(wanted[at]):.4f} is wanted."
    )


def shape_sentence(mine: Tensor, wanted: Tensor) -> str:
    got, want = tuple(mine.shape), tuple(wanted.shape)
    hint = ""
    if mine.numel() == wanted.numel():
        hint = " It has as many numbers, so a reshape or a keepdim=True may be all that is missing."
    return f"your result has shape {got}, and {want} is wanted.{hint}"


def shown(trial: Trial) -> str:
    """The arguments and the wanted numbers, short enough to be read."""
    wanted = f"wanted: {rounded(trial.wanted[0])}"
    return "\n".join([shown_arguments(trial.arguments), wanted])


def shown_arguments(arguments: Arguments) -> str:
    return "\n".join(f"  {name} = {rounded(value)}" for name, value in arguments.items())


def rounded(value: Any) -> str:
    """A tensor as nested lists with four digits; a large one as its shape."""
    if not isinstance(value, Tensor):
        return repr(value) if not callable(value) else getattr(value, "__name__", "a function")
    if value.numel() > 24:
        return f"a tensor of shape {tuple(value.shape)}"
    return str(in_digits(value.tolist()))


def in_digits(value: Any) -> Any:
    if isinstance(value, list):
        return [in_digits(item) for item in value]
    if isinstance(value, float) and math.isfinite(value):
        return round(value, 4)
    return value


# --- ragged random batches ------------------------------------------------------------------------


def ragged_mask(generator: torch.Generator, rows: int, columns: int) -> Tensor:
    """A response mask (rows, columns): lengths from 1 to `columns`, the longest one among them."""
    lengths = torch.randint(1, columns + 1, (rows,), generator=generator)
    lengths[int(torch.randint(rows, (1,), generator=generator))] = columns
    return torch.arange(columns) < lengths[:, None]


def random_log_probs(generator: torch.Generator, *shape: int) -> Tensor:
    """Plausible log-probabilities of tokens: from -5 to just below 0."""
    return -5 * torch.rand(*shape, generator=generator) - 0.01
