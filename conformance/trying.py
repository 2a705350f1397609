"""Call a function on cases, and compare its numbers and gradients with the right ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .batches import Arguments, each
from .comparing import close

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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is called hundreds of times
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

        The words are those of `relation`, with "gradient" before them where the numbers are right.
        """
        word, says = self.relation(f"{'its' if self.part else 'your'} {self.name}")
        if not self.part:
            return word, f"{says}."
        if word == "nothing":
            says = f"no gradient reaches {self.trained[self.part - 1]}"
        return (
            f"gradient {word}",
            f"the numbers are right, but {says}. (Of the sum of your numbers, weighted from 1 to 2.) "
            "So something is detached that must not be, or the other way round.",
        )

    def relation(self, name: str) -> tuple[str, str]:
        """What one part has to do with the right one in all cases, or else in the first that is wrong.

        The words: nothing, infinite, sign, factor, offset; padding, number, place.
        """
        parts = [[answer[self.part] for answer in all_] for all_ in (self.yours, self.wanted)]
        mine, wanted = (torch.cat([tensor.flatten() for tensor in part]) for part in parts)
        told = int((wanted.abs() > self.tolerance).sum())
        factor = float((mine * wanted).sum() / (wanted * wanted).sum().clamp(min=1e-12))
        offset = float((mine - wanted).mean())
        if told and not mine.any():
            return "nothing", f"{name} is 0 everywhere"
        if not mine.isfinite().all():
            return "infinite", f"{name} is not finite (NaN or inf) where numbers are wanted"
        if told > 1 and close(-mine, wanted, self.tolerance):
            return "sign", f"{name} has the wrong sign everywhere: it is -1 times what is wanted"
        if told > 1 and abs(factor) > 1e-6 and close(mine / factor, wanted, self.tolerance):
            return "factor", f"{name} is {factor:.4g} times what is wanted, everywhere"
        if told > 1 and close(mine - offset, wanted, self.tolerance):
            return "offset", f"{name} is off by {offset:.4g} everywhere"
        mine, wanted = (part[self.first] for part in parts)
        for mask in self.cases[self.first].values():
            if isinstance(mask, Tensor) and (mask.dtype, mask.shape) == (torch.bool, mine.shape):
                if close(mine * mask, wanted * mask, self.tolerance):
                    return (
                        "padding",
                        f"{name} is right where the mask is True, but not where it is False",
                    )
        if mine.numel() == 1:
            return "number", f"{name} is {float(mine):.4f}; {float(wanted):.4f} is wanted"
        wrong = ~torch.isclose(mine, wanted, rtol=self.tolerance, atol=self.tolerance)
        at = tuple(wrong.nonzero()[0].tolist())
        return "place", (
            f"{name} differs at {int(wrong.sum())} of {wrong.numel()} places, first at {list(at)}: "
            f"{float(mine[at]):.4f}, and {float(wanted[at]):.4f} is wanted"
        )
