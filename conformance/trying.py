"""Call a function on cases, and compare its numbers and gradients with the right ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .batches import Arguments, each
from .comparing import close, difference

Answer = list[Tensor]  # the result, and its gradient for each argument that is trained


class Unusable(Exception):
    """An answer that cannot be compared, in one sentence without its stop."""


class Empty(Unusable):
    """A function that returns nothing yet."""


class Stopped(Unusable):
    """A function that raised."""


def answer_of(
    call: Callable[[Arguments], Any],
    arguments: Arguments,
    trained: Sequence[str] = (),
    fitted: Callable[[Tensor], Tensor] = lambda result: result,
) -> Answer:
    """What a function makes of copies of the arguments, in float64; `fitted` may refuse its result.

    The gradients are those of the result's sum, weighted from 1 to 2 because a plain one may be constant.
    """
    fresh = each(lambda v: v.detach().clone(), arguments)
    leaves = [fresh[name].requires_grad_() for name in trained]
    try:
        result = call(fresh)
        if result is None or result is ...:
            raise NotImplementedError
    except NotImplementedError as error:
        raise Empty("it returns nothing; a tensor is wanted") from error
    except (Exception, SystemExit) as error:
        reason = (str(error).splitlines() or ["no reason given"])[0]
        shapes = {k: tuple(v.shape) for k, v in arguments.items() if isinstance(v, Tensor)}
        text = f"it stopped with {type(error).__name__} ({reason}) on {shapes}"
        raise Stopped(text) from error
    for name, before in arguments.items():
        if isinstance(before, Tensor) and not close(fresh[name].detach(), before, 0):
            raise Unusable(f"it changes its argument {name} in place: work on a copy")
    if not isinstance(result, Tensor):
        try:
            result = torch.as_tensor(result, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            kind = type(result).__name__
            raise Unusable(f"it returns a {kind}; a tensor is wanted") from None
    result = fitted(result)
    slopes: Sequence[Tensor] = [torch.zeros_like(leaf) for leaf in leaves]
    if leaves and result.requires_grad:
        weighted = result.flatten() * torch.linspace(1, 2, result.numel())
        slopes = torch.autograd.grad(weighted.sum(), leaves, materialize_grads=True)
    return [part.detach().double() for part in (result, *slopes)]


def same(one: Answer, other: Answer, tolerance: float) -> bool:
    """Whether results and gradients agree. An answer without anything agrees with none."""
    alike = len(one) == len(other)
    return alike and all(close(a, b, tolerance) for a, b in zip(one, other, strict=True))


@dataclass(frozen=True)
class Tried:
    """A function's answers beside the right ones, case by case."""

    cases: Sequence[Arguments]
    trained: Sequence[str]
    yours: Sequence[Answer]
    wanted: Sequence[Answer]
    tolerance: float

    @cached_property
    def right(self) -> list[bool]:
        pairs = zip(self.yours, self.wanted, strict=True)
        return [same(*pair, self.tolerance) for pair in pairs]

    @cached_property
    def numbers(self) -> list[bool]:
        """Whether the results alone are right."""
        pairs = zip(self.yours, self.wanted, strict=True)
        return [close(a[0], b[0], self.tolerance) for a, b in pairs]

    @cached_property
    def first(self) -> int:
        """The first case whose result is wrong, or else its gradient."""
        return (self.right if all(self.numbers) else self.numbers).index(False)

    @cached_property
    def part(self) -> int:
        """What is wrong there: 0 for the result, then its gradients in order."""
        pairs = zip(self.yours[self.first], self.wanted[self.first], strict=True)
        return [close(*pair, self.tolerance) for pair in pairs].index(False)

    @property
    def name(self) -> str:
        """Of that part."""
        return f"gradient for {self.trained[self.part - 1]}" if self.part else "result"

    def difference(self) -> tuple[str, str]:
        """In a word and in a sentence what is wrong with all results, or else with their gradients.

        The words are those of comparing.difference, with "gradient" before them where numbers are right.
        """
        mine, right = ([a[self.part] for a in answers] for answers in (self.yours, self.wanted))
        given = [v for v in self.cases[self.first].values() if isinstance(v, Tensor)]
        mask = next((value for value in given if value.dtype == torch.bool), None)
        name = f"{'its' if self.part else 'your'} {self.name}"
        word, says = difference(name, mine, right, self.first, mask, self.tolerance)
        if not self.part:
            return word, says
        if word == "nothing":
            says = f"no gradient reaches {self.trained[self.part - 1]}"
        return (
            f"gradient {word}",
            f"the numbers are right, but {says.removesuffix('.')}. (Of the sum of your numbers, weighted "
            "from 1 to 2.) So something is detached that must not be, or the other way round.",
        )
