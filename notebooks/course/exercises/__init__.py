"""Exercises that check themselves: `check("group_advantages", mine)` says in words what is right or wrong.

One exercise is one module of this folder, named like the exercise, that defines `EXERCISE`. Tests
find them all, run every solution, and see that each typical mistake is caught by its own name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from conformance.batches import Case as Case
from conformance.batches import each, rollout
from conformance.batches import ragged_mask as ragged_mask
from conformance.batches import random_log_probs as random_log_probs
from conformance.comparing import close, pattern, rounded, shape_sentence, shown_arguments
from conformance.ways import Way, ways

Arguments = Mapping[str, Any]  # of one call, by name

RANDOM_BATCHES = 6


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
    mistakes: Sequence[Way] = ()  # `load` adds those of the module


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
    own = [*mistakes_of(module), *module.EXERCISE.mistakes]
    return replace(module.EXERCISE, mistakes=own)


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


def shared(kind: str, names: str) -> list[Way]:
    """Mistakes of the conformance kit by name: a reader and a library get the same sentence."""
    by_name = {way.name: way for way in ways(kind, mistakes=True)}
    return [by_name[name] for name in names.split()]


def mistake(function: Callable[..., Any]) -> Way:
    """The mistake that `function` makes: its name, and its docstring as the sentence.

    Raises ValueError without a docstring.
    """
    if not function.__doc__:
        raise ValueError(f"the mistake {function.__name__} has no sentence: write its docstring")
    return Way(function.__name__, " ".join(function.__doc__.split()), function)


def mistakes_of(module: ModuleType) -> list[Way]:
    """The mistakes of a module, in the order in which they stand there."""
    return [value for value in vars(module).values() if isinstance(value, Way)]


def some(names: str, **others: Any) -> Callable[[torch.Generator], Arguments]:
    """Random batches of these arguments of a rollout, in this order, then the others as they are.

    "token_rewards=rewards" gives an argument another name.
    """

    def batch(generator: torch.Generator) -> Arguments:
        whole = rollout(generator)
        pairs = [name.partition("=") for name in names.split()]
        return {name: whole[source or name] for name, _, source in pairs} | others

    return batch


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
    before = each(lambda value: value.detach().clone(), fresh)
    result = function(*fresh.values())
    if result is None or result is ...:
        return None
    for name, value in before.items():
        if isinstance(value, Tensor) and not torch.equal(fresh[name].detach(), value):
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
    fresh = each(Tensor.clone, arguments)
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


# --- what differs -------------------------------------------------------------------------------


def same_answer(exercise: Exercise, mine: Any, other: Callable[..., Any], trial: Trial) -> bool:
    """Whether two functions give the same result, and the same gradient, on one trial."""
    a, b = answer_of(exercise, mine, trial), answer_of(exercise, other, trial)
    if not isinstance(a, list) or not isinstance(b, list):
        return a == b if isinstance(a, str) else False
    return all(close(x, y, exercise.tolerance) for x, y in zip(a, b, strict=True))


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


def shown(trial: Trial) -> str:
    """The arguments and the wanted numbers, short enough to be read."""
    wanted = f"wanted: {rounded(trial.wanted[0])}"
    return "\n".join([shown_arguments(trial.arguments), wanted])
