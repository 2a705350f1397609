"""What a wrong function does in any exercise: ignores an argument, reads padding, swaps two arguments, ...

Each probe compares the reader's results with the solution's where one thing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from conformance.batches import Arguments, each, is_float
from conformance.comparing import close

Numbers = Callable[[Arguments], Tensor]  # the result of a function alone
Change = Callable[[Any], Any]


class Probes:
    """Two functions, and the random batches on which they are compared."""

    def __init__(
        self, mine: Numbers, right: Numbers, batches: Sequence[Arguments], tolerance: float
    ) -> None:
        self.right, self.mine, self.batches, self.tolerance = right, mine, batches, tolerance
        self.yours, self.wanted = [mine(b) for b in batches], [right(b) for b in batches]

    def same(self, one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
        return all(close(a, b, self.tolerance) for a, b in zip(one, other, strict=True))

    def yours_are(self, made: Sequence[Tensor]) -> bool:
        return self.same(self.yours, made) and not self.same(self.wanted, made)

    def first(self) -> str | None:
        """The sentence of the first probe that sees something."""
        if self.same(self.yours, self.wanted):  # it is worked cases that are wrong
            return None
        for name in self.batches[0]:
            with suppress(Exception):  # of a function that was not made for such arguments
                if self.ignores(name):
                    return f"your result does not depend on {name}."
        for probe in (self.swapped, self.of_result, self.of_counts, self.of_arguments, self.leaks):
            with suppress(Exception):
                return next(probe())
        return None

    def ignores(self, name: str) -> bool:
        """Whether another batch's number, other masks or other floats change the right result alone."""

        def others(batch: Arguments, elsewhere: Arguments) -> list[Any]:
            value = batch[name]
            if not isinstance(value, Tensor):
                return [elsewhere[name]]
            half = value.flip(-1) / 2 if is_float(value) else value
            return [torch.ones_like(value) if is_mask(value) else half, value.roll(1, 0)]

        pairs = zip(self.batches, [self.batches[-1], *self.batches], strict=False)
        changed = [[b | {name: value} for value in others(b, e)] for b, e in pairs]
        return all(
            close(self.mine(batch), yours, self.tolerance)
            for batches, yours in zip(changed, self.yours, strict=True)
            for batch in batches
        ) and not self.same(self.wanted, [self.right(batches[0]) for batches in changed])

    def swapped(self) -> Iterator[str]:
        """The right result of two arguments in each other's place."""
        for a, b in combinations(self.batches[0], 2):
            with suppress(Exception):
                made = [self.right(batch | {a: batch[b], b: batch[a]}) for batch in self.batches]
                if self.yours_are(made):
                    yield f"your result is right for {a} and {b} in each other's place."

    def of_result(self) -> Iterator[str]:
        """A function of the right result."""
        for words, change in CHANGES.items():
            with suppress(Exception):
                if self.yours_are([change(wanted) for wanted in self.wanted]):
                    yield f"your result is {words} what is wanted."
        for words, by in (("one column late", 1), ("one column early", -1)):
            if all(w.ndim == 2 and w.shape[1] > 1 for w in self.wanted):
                ends = slice(1, None) if by > 0 else slice(None, -1)
                shifted = [w.roll(by, 1)[:, ends] for w in self.wanted]
                if self.same([y[:, ends] for y in self.yours], shifted):
                    yield f"your result is {words}."
        ordered = [[x.flatten().sort().values for x in xs] for xs in (self.yours, self.wanted)]
        if all(w.numel() > 1 for w in self.wanted) and self.same(*ordered):
            yield "your numbers are right, but they stand in other places."
        if all(((w == 0) | (w == 1)).all() for w in self.wanted):  # a mask
            return
        top, low = max(y.max() for y in self.yours), min(y.min() for y in self.yours)
        for words, end, held in (
            ("more", top, [w.clamp(max=float(top)) for w in self.wanted]),
            ("less", low, [w.clamp(min=float(low)) for w in self.wanted]),
        ):
            if self.yours_are(held):
                yield f"your result is never {words} than {end:.4g}, which nobody asked for."

    def of_counts(self) -> Iterator[str]:
        """The right result, times or divided by a count or a setting."""
        tables = [counts(batch) for batch in self.batches]
        for name in tables[0]:
            for power, words in ((1, "times"), (-1, "divided by"), (-2, "divided twice by")):
                with suppress(Exception):
                    scales = [torch.as_tensor(table[name]).float() ** power for table in tables]
                    if self.yours_are([w * s for w, s in zip(self.wanted, scales, strict=True)]):
                        yield f"your result is what is wanted, {words} {name.strip()}."

    def of_arguments(self) -> Iterator[str]:
        """The right result of an argument that is something else, as its square or a shorter mask."""
        for name, value in self.batches[0].items():
            for words, change in changes_of(value).items():
                with suppress(Exception):
                    made = [self.right(b | {name: change(b[name])}) for b in self.batches]
                    if self.yours_are(made):
                        yield f"your result is right for {words} {name} in the place of {name}."

    def leaks(self) -> Iterator[str]:
        """Numbers at padding, or in later rows, that change what they must not."""
        for batch, wanted, yours in zip(self.batches, self.wanted, self.yours, strict=True):
            for mask in filter(is_mask, batch.values()):
                filled = each(partial(padded, mask=mask, number=-3.25), batch)
                mine, right = (padded(f(filled), mask, 0.0) for f in (self.mine, self.right))
                known = close(right, padded(wanted, mask, 0.0), self.tolerance)
                if known and not close(mine, padded(yours, mask, 0.0), self.tolerance):
                    yield "your result depends on what stands where the mask is False."
        alone = [first_row(*pair) for pair in zip(self.batches, self.wanted, strict=True)]
        if self.same([self.right(b) for b in alone], [w[:1] for w in self.wanted]):
            if not self.same([self.mine(b) for b in alone], [y[:1] for y in self.yours]):
                yield "the first row of your result changes with the rows after it."


def is_mask(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bool


def first_row(batch: Arguments, wanted: Tensor) -> Arguments:
    """The arguments of the first row of a result."""
    return each(lambda v: v[:1] if len(v) == len(wanted) else v, batch)


def padded(value: Tensor, mask: Tensor, number: float) -> Tensor:
    """A number where the mask is False, in tensors of its shape."""
    fits = is_float(value) and value.shape == mask.shape
    return torch.where(mask, value, number) if fits else value


CHANGES: dict[str, Change] = {
    "minus": lambda x: -x,
    "the absolute value of": abs,
    "the sign of": lambda x: torch.as_tensor(x).sign(),
    "the square of": lambda x: x**2,
    "the root of": lambda x: x**0.5,
    "the exponential of": lambda x: torch.as_tensor(x).exp(),
    "the logarithm of": lambda x: torch.as_tensor(x).log(),
    "1 over": lambda x: 1 / x,
    "half of": lambda x: x / 2,
    "twice": lambda x: 2 * x,
    "1 minus": lambda x: 1 - x,
    "the deviation from the mean of": lambda x: x - x.mean(),
}
OF_TENSORS: dict[str, Change] = {
    "1 more than": lambda x: x + 1,
    "1 less than": lambda x: x - 1,
    "one column later in": lambda x: x.roll(1, 1),
    "one column earlier in": lambda x: x.roll(-1, 1),
}


def changes_of(value: Any) -> dict[str, Change]:
    """What may have been done to an argument: to a mask, to a number, to tokens."""
    if is_mask(value):
        return MASKS
    number = isinstance(value, float) or is_float(value)
    return (CHANGES if number else {}) | (OF_TENSORS if isinstance(value, Tensor) else {})


def place(mask: Tensor) -> Tensor:
    """How many True have stood in the row up to here."""
    return mask.cumsum(1)


MASKS: dict[str, Change] = {
    "only True in": torch.ones_like,
    "the opposite of": lambda m: ~m,
    "all but the first True of each row of": lambda m: m & (place(m) > 1),
    "all but the last True of each row of": lambda m: m & (place(m) < m.sum(1, keepdim=True)),
    "the last True of each row of": lambda m: m & (place(m) == m.sum(1, keepdim=True)),
    "the first True of each row of": lambda m: m & (place(m) == 1),
    "one more column of": lambda m: m | m.roll(1, 1),
}


def counts(batch: Arguments) -> dict[str, Any]:
    """The numbers by which a result is divided too often, or too seldom."""
    found: dict[str, Any] = {k: v for k, v in batch.items() if isinstance(v, (int, float))}
    if "group_size" in batch:
        found["G / (G - 1)"] = batch["group_size"] / (batch["group_size"] - 1)
    tensors = {k: v for k, v in batch.items() if isinstance(v, Tensor)}
    if tensors:
        lead = max(tensors.values(), key=Tensor.dim)
        found |= {"the number of rows": len(lead), "the number of columns": lead.shape[-1]}
    for name, mask in tensors.items():
        if is_mask(mask) and mask.ndim == 2:
            found[f"the number of True in {name}"] = mask.sum()
            found["each row's length"] = mask.sum(1)
            found["each row's length "] = mask.sum(1, keepdim=True)
            found[f"the share of True in {name}"] = mask.float().mean()
            found["the mean length of a row"] = mask.sum() / len(mask)
    return found
