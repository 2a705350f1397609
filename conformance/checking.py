"""Check a function: find the way in which it computes, and say whether that is right.

The function's numbers and gradients on worked and random batches are compared with those of every
known way, right or wrong. Right ones are then put through what must not change a result.
"""

from __future__ import annotations

import inspect
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from .batches import Arguments, doubles, each, is_float, rollout, worked
from .comparing import close, rounded, shape_sentence, shown_arguments
from .formulas import masked
from .trying import Answer, Tried, Unusable, answer_of, same
from .ways import Way, sections, sentence, ways

RANDOM_BATCHES = 6
DENOMINATORS = ("denominator", "num_items_in_batch", "batch_num_tokens", "global_batch_size")


@dataclass(frozen=True)
class Kind:
    """What one kind of function takes and gives; ways.txt has the ways in which people write it."""

    name: str
    takes: str  # the arguments in order; kinds.py says how
    constant: bool = False  # nothing may carry a gradient
    rows: bool = True  # each row is a case of its own
    tolerance: float = 1e-4
    batch_of: Callable[[torch.Generator], Arguments] = rollout  # ragged, garbage in its padding

    @property
    def known(self) -> Sequence[Way]:
        """The right ways; the first is what others are measured by."""
        return ways(self.name)

    @property
    def mistakes(self) -> Sequence[Way]:
        return ways(self.name, mistakes=True)

    @cached_property
    def trained(self) -> list[str]:
        """What a gradient must reach. Then it is a loss: per token or averaged, as one likes."""
        return re.findall(r"(\w+)!", self.takes)

    @cached_property
    def order(self) -> list[str]:
        return re.findall(r"(?<!\S)[a-z_]+", self.takes)

    @cached_property
    def optional(self) -> dict[str, str]:
        """What a lacking argument is: another one, or a number; "" where that limits no check."""
        return dict(re.findall(r"(\w+)(?:\?|=(\S+))", self.takes))

    def called(self, name: str) -> list[str]:
        """Which of its arguments somebody else may call so."""
        others = sections()["other names of arguments"]
        return [k for k in self.order if name in (k, *others.get(k, [""])[0].split())]

    def batch(self, seed: int) -> Arguments:
        """A random batch in float64."""
        drawn = self.batch_of(torch.Generator().manual_seed(seed))
        return doubles({name: drawn[name] for name in self.order})

    def filled(self, arguments: Mapping[str, Any], lacking: Sequence[str] = ()) -> Arguments:
        """A case's arguments with what it or the function leaves out: usual settings, and no padding."""
        given = {k: v for k, v in self.batch(0).items() if not isinstance(v, Tensor)}
        given |= doubles(arguments)
        for name, usual in self.optional.items():
            if usual and (name not in arguments or name in lacking):
                given[name] = given[usual] if usual in given else float(usual)
        given = {k: given.get(k) for k in self.order}
        if "mask" in given and given["mask"] is None:
            given["mask"] = torch.ones_like(self.known[0](*given.values()), dtype=torch.bool)
        return given


@dataclass(frozen=True)
class Verdict:
    """right, variant or mistake; the sentence; the way's and the reducer's name; what to look at."""

    status: str
    says: str
    way: str | None = None
    reducer: str | None = None
    example: str = ""
    notes: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        return self.status != "mistake"


# --- calling -------------------------------------------------------------------------------------


def names_in(function: Callable[..., Any], kind: Kind) -> dict[str, str]:
    """{our name: the function's}; Unusable where it is not a function of that kind."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise Unusable("its signature cannot be read: wrap it in a function") from error
    found: dict[str, str] = {}
    for name, parameter in parameters.items():
        known = kind.called(name)
        if known and known[0] not in found:
            found[known[0]] = name
        elif parameter.default is parameter.empty and parameter.kind not in (2, 4):
            raise Unusable(
                f"its argument {name} is none of a {kind.name}'s ({', '.join(kind.order)}): "
                "rename it, give it a default, or wrap the function in an adapter"
            )
    for name in kind.order:
        if name not in found and name not in kind.optional:
            raise Unusable(
                f"it has no argument for {name}: a {kind.name} takes ({', '.join(kind.order)}). "
                "Wrap it in an adapter of that signature"
            )
    return found


class Mine:
    """A user's function, called by the names that it knows, and what it is tried on."""

    def __init__(self, function: Callable[..., Any], kind: Kind, of_rows: bool = False) -> None:
        self.function, self.kind = function, kind
        self.of_rows = of_rows  # one advantage for each response, (N,), instead of (N, T)
        self.names = names_in(function, kind)
        self.lacking = [name for name in kind.order if name not in self.names]
        cases = [*worked(kind.name), *(kind.batch(seed) for seed in range(RANDOM_BATCHES))]
        self.trials = [kind.filled(arguments, self.lacking) for arguments in cases]
        for given in self.trials if of_rows else ():
            given["advantages"] = given["advantages"][:, :1].expand_as(given["log_probs"])
        self.level = self.level_of(self.trials[-1])

    def level_of(self, given: Arguments) -> str:
        """Whether a loss comes back for each token, for each row, or as one number."""
        result, wanted = answer_of(self, given)[0], self.kind.known[0](*given.values())
        if not self.kind.trained or result.squeeze().shape == wanted.shape:
            return "token"
        if result.numel() == 1:
            return "scalar" if "mask" in given else "pairs"
        if result.numel() == len(wanted):
            return "row"
        raise Unusable(shape_sentence(result, wanted.shape))

    def __call__(self, given: Arguments, **others: Any) -> Any:
        if self.of_rows:
            given = {**given, "advantages": given["advantages"][:, 0]}
        given = {name: given[k] for k, name in self.names.items()}
        with redirect_stdout(io.StringIO()):  # it is called hundreds of times
            try:
                result = self.function(**given, **others)
            except RuntimeError as error:  # 1 - mask, which a bool does not take
                mask = self.names.get("mask")
                if "bool" not in str(error) or mask is None:
                    raise
                result = self.function(**given | {mask: given[mask].double()}, **others)
        return result[0] if isinstance(result, (tuple, list)) and result else result


# --- comparing -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A way to compute, and how what it gives per token is averaged."""

    kind: Kind
    level: str
    way: Way
    reducer: Way | None = None
    status: str = "right"  # or variant, or mistake

    def __call__(self, given: Arguments) -> Tensor:
        result = self.way(*given.values())
        if self.reducer is None:
            return result
        whole = result.expand(given["mask"].shape) if "mask" in given else result
        return self.reducer(whole, given.get("mask"), given.get("length"))


def candidates(kind: Kind, level: str) -> Iterator[Candidate]:
    """The likeliest first."""
    averages: Sequence[Way | None] = ways(level) or [None]
    if "length" not in kind.order:
        averages = [a for a in averages if a is None or a.name != "constant_length"]
    for i, way in enumerate(kind.known):
        status = "variant" if i else "right"
        yield from (Candidate(kind, level, way, average, status) for average in averages)
    for way in kind.mistakes:
        yield from (Candidate(kind, level, way, average, "mistake") for average in averages)
    for way in kind.known:
        for wrong in ways(level, mistakes=True):
            yield Candidate(kind, level, way, wrong, "mistake")


def measured(call: Mine | Candidate, given: Arguments) -> Answer:
    """The numbers of one call and their gradients for what is trained; 0 at masked places."""
    return answer_of(call, given, call.kind.trained, partial(fitted, call, given))


def fitted(call: Mine | Candidate, given: Arguments, result: Tensor) -> Tensor:
    """A result in the form in which this kind of function is compared."""
    if call.level != "token":
        return result.reshape(-1)
    wanted, mask = call.kind.known[0](*given.values()), given.get("mask")
    if wanted.shape[1:] == (1,) and result.ndim == 2 and len(result) == len(wanted):
        result = result[:, :1]  # one number for a row, written at each of its tokens
    if result.numel() != wanted.numel():
        raise Unusable(shape_sentence(result, wanted.shape))
    result = result.reshape(wanted.shape)
    return masked(result, mask) if mask is not None and mask.shape == result.shape else result


def check(function: Callable[..., Any], kind: Kind, *, strict: bool = False) -> Verdict:
    """What `function` computes, as one verdict. Unusable where it cannot be called.

    A function that is right on numbers may be fragile, such as where padding holds NaN: that is
    noted, and with `strict` it is a mistake. Advantages are (N, T), or else (N,).
    """
    verdicts, errors = list[Verdict](), list[Unusable]()
    for of_rows in (False, True) if "advantages" in names_in(function, kind) else (False,):
        try:
            verdicts.append(judged(Mine(function, kind, of_rows), strict))
        except Unusable as error:
            errors.append(error)
    if not verdicts:
        raise errors[0]
    return next((verdict for verdict in verdicts if verdict.way), verdicts[0])


def judged(mine: Mine, strict: bool) -> Verdict:
    kind, yours = mine.kind, [measured(mine, given) for given in mine.trials]
    if not same(yours[-1], measured(mine, mine.trials[-1]), 0):
        raise Unusable(
            "a second call with the same arguments gives another result: switch off what is drawn "
            "in it, such as dropout, or seed it"
        )
    agreeing: dict[int, Candidate] = {}
    pairs = list(zip(mine.trials, yours, strict=True))
    for candidate in candidates(kind, mine.level):
        misses = (not same(y, measured(candidate, given), kind.tolerance) for given, y in pairs)
        agree = next((i for i, miss in enumerate(misses) if miss), len(pairs))
        if agree == len(pairs):
            return named(mine, candidate, strict)
        if candidate.status != "mistake":
            agreeing.setdefault(agree, candidate)
    nearest = agreeing[max(agreeing)]
    opening = f"it is none of the ways known here; beside {nearest.way.name}, the nearest: "
    _, text = compared(mine, nearest, mine.trials).difference()
    return Verdict("mistake", opening + text, example=smallest(mine, nearest))


def named(mine: Mine, found: Candidate, strict: bool) -> Verdict:
    """The verdict on a function whose way is known."""
    kind, level, way, reducer = mine.kind, mine.level, found.way, found.reducer
    names = (way.name, reducer.name if reducer else None)
    notes: tuple[str, ...] = ()
    if found.status == "mistake":
        says, right = way.says, Candidate(kind, level, kind.known[0], reducer)
        if reducer and reducer in ways(level, mistakes=True):
            says, right = reducer.says, Candidate(kind, level, way, ways(level)[0])
        return Verdict("mistake", says, *names, smallest(mine, right))
    for tag in broken(mine, found):
        says = sentence("invariances", tag)
        if strict or tag in ("float32", "order"):
            return Verdict("mistake", f"right on numbers, but {says}", tag)
        notes += (f"fragile: {says}",)
    lacking = [name for name in mine.lacking if kind.optional[name]]
    if lacking:
        notes += (f"not checked, because it is no argument: {', '.join(lacking)}",)
    says = way.says + (f" {reducer.says}" if reducer else "")
    return Verdict(found.status, says, *names, notes=notes)


def compared(mine: Mine, right: Candidate, cases: Sequence[Arguments]) -> Tried:
    yours, wanted = ([measured(call, given) for given in cases] for call in (mine, right))
    return Tried(cases, mine.kind.trained, yours, wanted, mine.kind.tolerance)


def smallest(mine: Mine, right: Candidate) -> str:
    """The smallest failing example by number."""
    cases = [part for given in mine.trials for part in (parts(given) if mine.kind.rows else ())]
    for given in sorted([*cases, *mine.trials], key=size):
        with suppress(Unusable, RuntimeError, IndexError):
            if not all((found := compared(mine, right, [given])).right):
                break
    used = shown_arguments({k: v for k, v in given.items() if k in mine.names})
    yours, wanted = (rounded(answers[0][found.part]) for answers in (found.yours, found.wanted))
    return f"{used}\n  {found.name}: yours {yours}, wanted {wanted}"


def size(given: Arguments) -> int:
    return sum(v.numel() for v in given.values() if is_float(v))


def parts(given: Arguments) -> Iterator[Arguments]:
    """Smaller cases: one row, and of it the first columns."""

    def cut(row: int, width: int, v: Tensor) -> Tensor:
        return v[row : row + 1, :width] if v.ndim > 1 else v[row : row + 1]

    lead = max((v for v in given.values() if isinstance(v, Tensor)), key=Tensor.dim)
    for row, width in product(range(len(lead)), range(1, lead[0].reshape(-1).numel() + 1)):
        if "mask" not in given or given["mask"][row, :width].any():
            yield each(partial(cut, row, width), given)


# --- what must not change a result -----------------------------------------------------------------


def broken(mine: Mine, right: Candidate) -> Iterator[str]:
    """The name of every invariance that does not hold."""
    has_mask = "mask" in mine.names
    applies = dict.fromkeys(("nan", "observations", "empty_row"), has_mask) | {
        "split": has_mask and mine.level == "scalar",
        "far": "kl" in mine.kind.name,
        "equal_rewards": "group_size" in mine.names,
        "detached": mine.kind.constant,
    }
    for tag in sections()["invariances"]:
        try:
            if applies.get(tag, True) and not holds(tag, mine, right):
                yield tag
        except (Unusable, RuntimeError):
            yield tag


def holds(tag: str, mine: Mine, right: Candidate) -> bool:
    """Whether the result is right where one thing is changed in a batch."""
    batch = mine.trials[-1]
    given = each(Tensor.clone, batch)
    if tag == "split":
        return adds_up(mine, right, batch)
    if tag == "detached":
        floats = [name for name, value in given.items() if is_float(value)]
        return not any(slope.any() for slope in answer_of(mine, given, floats)[1:])
    if tag == "nan":
        for value in given.values():
            if is_float(value) and value.shape == given["mask"].shape:
                value[~given["mask"]] = torch.nan
    elif tag == "float32":
        given = each(lambda v: v.float() if is_float(v) else v, given)
    elif tag == "order":
        given = each(lambda v: v.flip(0), given)
    elif tag == "observations":
        row = int(given["mask"].sum(1).argmax())
        given["mask"][row, given["mask"][row].nonzero()[1:-1]] = False
    elif tag == "far":
        given["ref_log_probs"][1] = given["log_probs"][1] + 3
    elif tag == "empty_row":
        given["mask"][0] = False
    elif tag == "equal_rewards":  # the mean of eight of them is another number
        given = {"rewards": torch.full((24,), 0.1), "group_size": 8}
    numbers, wanted = measured(mine, given), None
    if tag != "empty_row":
        wanted = measured(right, batch if tag == "nan" else doubles(given))
    loose = 0.05 if tag == "equal_rewards" else max(mine.kind.tolerance, 1e-3)
    finite = all(bool(n.isfinite().all()) for n in numbers)
    return finite and (wanted is None or same(numbers, wanted, loose))


def adds_up(mine: Mine, right: Candidate, batch: Arguments) -> bool:
    """Whether two micro-batches with the whole batch's denominator give the whole batch's loss."""
    named = [n for n in inspect.signature(mine.function).parameters if n in DENOMINATORS]
    whole, mask = measured(right, batch)[0], batch["mask"]
    halves = [each(lambda v: v[:1], batch), each(lambda v: v[1:], batch)]
    for total in (mask.sum(), torch.tensor(len(mask))) if named else ():
        sums = sum(mine(half, **{named[0]: total}) for half in halves)
        if close(sums.reshape(-1), whole, 1e-4):
            return True
    return not named
