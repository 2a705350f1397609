"""Check a function: find the way in which it computes, and say whether that is right.

The function's numbers and gradients on worked and random batches are compared with those of every
known way, right or wrong. Right ones are then put through what must not change a result.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .batches import Arguments, Case, doubles, is_float, worked
from .comparing import close, pattern, rounded, shape_sentence, shown_arguments
from .reducers import KNOWN_REDUCERS, WRONG_REDUCERS
from .ways import Way, sentence, sentences

ANY = object()  # an optional argument whose absence limits no check


class Unusable(Exception):
    """A function that cannot be checked, in one sentence."""


@dataclass(frozen=True)
class Kind:
    """What one kind of function takes and gives, and the ways in which people write it."""

    name: str
    known: Sequence[Way]  # right; the first is what others are measured by
    mistakes: Sequence[Way]
    random: Callable[[torch.Generator], Arguments]  # one ragged batch, garbage in its padding
    optional: Mapping[str, Any] = field(default_factory=dict)  # and what it is where it is lacking
    gradients: Sequence[str] = ()  # the arguments that are trained
    loss: bool = False  # per token or averaged, as the function likes
    constant: bool = False  # nothing may carry a gradient
    rows: bool = True  # each row is a case of its own
    tolerance: float = 1e-4
    exactly: Callable[[Callable[..., Tensor]], str] | None = None  # what enumeration says of it

    @property
    def about(self) -> str:
        return sentence("kinds", self.name)

    @property
    def cases(self) -> list[Case]:
        """Worked cases of the first known way."""
        return worked(self.name)

    @cached_property
    def order(self) -> list[str]:
        return list(self.random(torch.Generator().manual_seed(0)))

    def trials(self) -> list[tuple[str, Arguments]]:
        """(what it is about, arguments): the worked cases, then six random batches."""
        worked = [(case.about, self.filled(case.arguments)) for case in self.cases]
        return worked + [(f"random batch {i + 1}", self.batch(i)) for i in range(6)]

    def filled(self, arguments: Mapping[str, Any]) -> Arguments:
        """A case's arguments with what it leaves out: no padding, and the usual settings."""
        usual = {k: v for k, v in self.batch(0).items() if not isinstance(v, Tensor)}
        given = {"mask": None, **usual, **self.optional, **doubles(arguments)}
        given = {k: given[k] for k in self.order}
        if "mask" in given and not isinstance(given["mask"], Tensor):
            given["mask"] = None
            given["mask"] = torch.ones_like(self.known[0](*given.values()), dtype=torch.bool)
        return {k: usual.get(k) if v is ANY else v for k, v in given.items()}

    def batch(self, seed: int) -> Arguments:
        return doubles(self.random(torch.Generator().manual_seed(seed)))


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
        return self.status in ("right", "variant")


# --- calling -------------------------------------------------------------------------------------


class Mine:
    """A user's function, called by the names that it knows."""

    def __init__(
        self, function: Callable[..., Any], kind: Kind, label: str, of_rows: bool = False
    ) -> None:
        self.function, self.kind, self.label = function, kind, label
        self.of_rows = of_rows  # one advantage for each response, (N,), instead of (N, T)
        self.names = names_in(function, kind)
        for name in kind.order:
            if name not in self.names and name not in kind.optional:
                raise Unusable(
                    f"{label} has no argument for {name}: a {kind.name} takes "
                    f"({', '.join(kind.order)}). Wrap it in an adapter of that signature"
                )

    def trials(self) -> list[tuple[str, Arguments]]:
        """The kind's trials that this function can be put through."""
        fitting = [(about, given) for about, given in self.kind.trials() if self.fits(given)]
        return [(about, self.levelled(given)) for about, given in fitting]

    def levelled(self, given: Arguments) -> Arguments:
        """The arguments with the advantages that the function can be told."""
        if not self.of_rows:
            return given
        return {**given, "advantages": given["advantages"][:, :1].expand_as(given["log_probs"])}

    def fits(self, arguments: Arguments) -> bool:
        """Whether what the function cannot be told is what it is taken to be."""
        lacking = [n for n in self.kind.order if n not in self.names]
        return all(self.kind.optional[n] in (ANY, arguments[n]) for n in lacking)

    def call(self, given: Arguments) -> Any:
        if self.of_rows:
            given = {**given, "advantages": given["advantages"][:, 0]}
        return self.function(**{name: given[k] for k, name in self.names.items()})

    def __call__(self, *values: Any) -> Tensor:
        given = dict(zip(self.kind.order, values, strict=True))
        before = {k: v.detach().clone() for k, v in given.items() if isinstance(v, Tensor)}
        try:
            try:
                result = self.call(given)
            except RuntimeError as error:  # 1 - mask, which a bool does not take
                if "bool" not in str(error) or "mask" not in given:
                    raise
                result = self.call({**given, "mask": given["mask"].double()})
        except Exception as error:
            reason = (str(error).splitlines() or ["no reason given"])[0]
            shapes = {k: tuple(v.shape) for k, v in before.items()}
            raise Unusable(
                f"{self.label} stopped with {type(error).__name__} ({reason}) on {shapes}"
            ) from error
        for name, old in before.items():
            if not torch.equal(torch.nan_to_num(given[name].detach()), torch.nan_to_num(old)):
                raise Unusable(f"{self.label} changes its argument {name} in place: copy it first")
        if isinstance(result, (tuple, list)) and result:
            result = result[0]
        if isinstance(result, (int, float)) and not isinstance(result, bool):
            result = torch.tensor(result, dtype=torch.float64)
        if not isinstance(result, Tensor):
            raise Unusable(f"{self.label} returns {type(result).__name__}; a tensor is wanted")
        return result


def names_in(function: Callable[..., Any], kind: Kind) -> dict[str, str]:
    """{our name: the function's}; Unusable where it needs something that a kind does not have."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise Unusable("its signature cannot be read: wrap it in a function") from error
    found: dict[str, str] = {}
    others = sentences()["other names of arguments"]
    for name, parameter in parameters.items():
        known = [k for k in kind.order if name == k or name in others.get(k, "").split()]
        if known and known[0] not in found:
            found[known[0]] = name
        elif parameter.default is parameter.empty and parameter.kind not in (2, 4):
            raise Unusable(
                f"its argument {name} is none of a {kind.name}'s ({', '.join(kind.order)}): "
                "rename it, give it a default, or wrap the function in an adapter"
            )
    return found


# --- comparing -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A way to compute, and how what it gives per token is averaged."""

    way: Way
    reducer: Way | None = None

    def __call__(self, *values: Any) -> Tensor:
        return self.way.function(*values)


def level_of(result: Tensor, arguments: Arguments, kind: Kind) -> str:
    """Whether a loss came back for each token, for each row, or as one number."""
    wanted = kind.known[0](*arguments.values())
    if not kind.loss or result.shape == wanted.shape:
        return "token"
    if result.numel() == 1:
        return "scalar" if "mask" in arguments else "pairs"
    if result.numel() == len(wanted):
        return "row"
    raise Unusable(shape_sentence(result, wanted))


def measured(
    call: Callable[..., Tensor], kind: Kind, arguments: Arguments, level: str
) -> list[Tensor]:
    """The numbers of one call, and their sum's gradients for what is trained; 0 at masked places."""
    fresh = {k: v.clone() if isinstance(v, Tensor) else v for k, v in arguments.items()}
    leaves = [fresh[name].requires_grad_() for name in kind.gradients]
    result = call(*fresh.values())
    wanted_shape = kind.known[0](*arguments.values()).shape
    reducer = getattr(call, "reducer", None)
    mask = fresh.get("mask")
    if reducer is not None:
        whole = result.expand(mask.shape) if mask is not None else result
        result = reducer.function(whole, mask, fresh.get("length"))
    elif level == "token" and result.numel() == torch.Size(wanted_shape).numel():
        result = result.reshape(wanted_shape)
    elif level == "token" and len(wanted_shape) == 2 and result.ndim == 2:
        if wanted_shape[1] == 1 and len(result) == wanted_shape[0]:
            result = result[:, :1]  # one number for a row, written at each of its tokens
    if level != "token":
        result = result.reshape(-1)
    elif result.shape != wanted_shape:
        raise Unusable(shape_sentence(result, torch.empty(wanted_shape)))
    elif mask is not None and mask.shape == result.shape:
        result = torch.where(mask, result, torch.zeros_like(result))
    numbers = [result.detach().double()]
    slopes: Sequence[Tensor | None] = [None] * len(leaves)
    if leaves and result.requires_grad:
        slopes = torch.autograd.grad(result.sum(), leaves, allow_unused=True)
    for leaf, slope in zip(leaves, slopes, strict=True):
        numbers.append(torch.zeros_like(leaf) if slope is None else slope.double())
    return numbers


def candidates(kind: Kind, level: str) -> Iterator[tuple[str, Candidate]]:
    """("right" | "variant" | "mistake", candidate), the likeliest first."""
    known, wrong = KNOWN_REDUCERS.get(level, []), WRONG_REDUCERS.get(level, [])
    if "length" not in kind.order:
        known = [way for way in known if way.name != "constant_length"]
    averages: Sequence[Way | None] = known if kind.loss and known else [None]
    for i, way in enumerate(kind.known):
        yield from (("variant" if i else "right", Candidate(way, r)) for r in averages)
    for way in kind.mistakes:
        yield from (("mistake", Candidate(way, r)) for r in averages)
    if kind.loss:
        for way in kind.known:
            yield from (("mistake", Candidate(way, r)) for r in wrong)


def same(a: Sequence[Tensor], b: Sequence[Tensor], tolerance: float) -> bool:
    return all(close(x, y, tolerance) for x, y in zip(a, b, strict=True))


def check(
    function: Callable[..., Any],
    kind: Kind,
    *,
    label: str = "your function",
    strict: bool = False,
) -> Verdict:
    """What `function` computes, as one verdict. Unusable where it cannot be called.

    A function that is right on numbers may be fragile, such as where padding holds NaN: that is
    noted, and with `strict` it is a mistake. Advantages are (N, T), or else (N,).
    """
    first = Mine(function, kind, label)
    others = [Mine(function, kind, label, of_rows=True)] if "advantages" in first.names else []
    found: list[Verdict | Unusable] = []
    for mine in (first, *others):
        try:
            found.append(judged(mine, strict))
        except Unusable as error:
            found.append(error)
        if isinstance(last := found[-1], Verdict) and last.way:
            return last
    if isinstance(found[0], Unusable):
        raise found[0]
    return found[0]


def judged(mine: Mine, strict: bool) -> Verdict:
    kind, trials = mine.kind, mine.trials()
    level = level_of(mine(*trials[-1][1].values()), trials[-1][1], kind)
    answers = [measured(mine, kind, given, level) for _, given in trials]
    notes = exact(mine)
    agreeing: dict[int, Candidate] = {}
    for status, candidate in candidates(kind, level):
        agree = 0
        for (_, given), answer in zip(trials, answers, strict=True):
            if not same(answer, measured(candidate, kind, given, level), kind.tolerance):
                break
            agree += 1
        if agree == len(trials):
            return named(mine, status, candidate, trials, level, notes, strict)
        if status != "mistake":
            agreeing.setdefault(agree, candidate)
    nearest = agreeing[max(agreeing)]
    text, example = shown(mine, nearest, trials, level)
    opening = f"it is none of the ways known here; beside {nearest.way.name}, the nearest: "
    return Verdict("mistake", opening + text, None, None, example, notes)


def exact(mine: Mine) -> tuple[str, ...]:
    """What enumeration says; nothing of a function that takes no such batch."""
    try:
        return (mine.kind.exactly(mine),) if mine.kind.exactly else ()
    except Exception:  # one response alone, or one pair: the batches have said what it does
        return ()


def named(
    mine: Mine,
    status: str,
    candidate: Candidate,
    trials: Sequence[tuple[str, Arguments]],
    level: str,
    notes: tuple[str, ...],
    strict: bool,
) -> Verdict:
    """The verdict on a function whose way is known."""
    way, reducer = candidate.way, candidate.reducer
    names = (way.name, reducer.name if reducer else None)
    if status == "mistake":
        wrong_average = reducer is not None and reducer in WRONG_REDUCERS.get(level, [])
        average = KNOWN_REDUCERS[level][0] if wrong_average else reducer
        right = Candidate(way if wrong_average else mine.kind.known[0], average)
        says = reducer.says if reducer and wrong_average else way.says
        return Verdict(status, says, *names, shown(mine, right, trials, level)[1], notes)
    for tag, says in broken(mine, candidate, level):
        if strict or tag in ("float32", "order"):
            return Verdict("mistake", f"right on numbers, but {says}", tag, None)
        notes += (f"fragile: {says}",)
    says = way.says + (f" {reducer.says}" if reducer else "")
    lacking = [n for n in mine.kind.order if n not in mine.names and n in mine.kind.optional]
    lacking = [n for n in lacking if mine.kind.optional[n] is not ANY]
    if lacking:
        notes += (f"not checked, because it is no argument: {', '.join(lacking)}",)
    return Verdict(status, says, *names, notes=notes)


def shown(
    mine: Mine, right: Candidate, trials: Sequence[tuple[str, Arguments]], level: str
) -> tuple[str, str]:
    """What differs in words, and the smallest failing example by number."""
    kind = mine.kind
    failing = []
    for about, given in trials:
        yours, wanted = measured(mine, kind, given, level), measured(right, kind, given, level)
        if not same(yours, wanted, kind.tolerance):
            failing.append((about, given))
    _, given = min(failing, key=lambda f: sum(v.numel() for v in f[1].values() if is_float(v)))
    for part in parts(given) if kind.rows else ():
        try:
            yours, wanted = measured(mine, kind, part, level), measured(right, kind, part, level)
        except (Unusable, RuntimeError, IndexError):
            continue
        if not same(yours, wanted, kind.tolerance):
            given = part
            break
    yours, wanted = measured(mine, kind, given, level), measured(right, kind, given, level)
    i = next(i for i, y in enumerate(yours) if not close(y, wanted[i], kind.tolerance))
    trained = ["", *kind.gradients][i]
    what = f"the numbers are right, but its gradient for {trained}" if i else "your result"
    text = pattern(what, yours[i], wanted[i], given.get("mask"), kind.tolerance)
    used = {k: v for k, v in given.items() if k in mine.names}
    pair = f"yours {rounded(yours[i])}, wanted {rounded(wanted[i])}"
    return (
        text,
        f"{shown_arguments(used)}\n  {f'gradient for {trained}' if i else 'result'}: {pair}",
    )


def parts(given: Arguments) -> Iterator[Arguments]:
    """Smaller examples: one row, and of it the first columns, from the smallest on."""
    tensors = [v for v in given.values() if isinstance(v, Tensor)]
    lead = max(tensors, key=lambda v: v.ndim if v.ndim < 3 else 0)
    mask = given.get("mask")
    for width in range(1, (lead.shape[1] if lead.ndim > 1 else 1) + 1):
        for row in range(len(lead)):
            if mask is not None and not mask[row, :width].any():
                continue
            part = dict(given)
            for name, value in given.items():
                if isinstance(value, Tensor):
                    cut = value.ndim > 1 and value.shape[:2] == lead.shape[:2]
                    part[name] = value[row : row + 1, :width] if cut else value[row : row + 1]
            yield part


# --- what must not change a result -----------------------------------------------------------------


def broken(mine: Mine, right: Candidate, level: str) -> Iterator[tuple[str, str]]:
    """(name, sentence) of every invariance that does not hold."""
    kind = mine.kind
    batch = mine.levelled(next(b for i in range(7, 99) if mine.fits(b := kind.batch(i))))
    for tag in sentences()["invariances"]:
        given = changed(tag, batch, mine)
        if given is None:
            continue
        compared = {k: v.double() if is_float(v) else v for k, v in given.items()}
        if tag == "nan":
            compared = batch
        try:
            if tag == "split":
                fine = adds_up(mine, right, batch, level)
            elif tag == "detached":
                fine = not mine(*given.values()).requires_grad
            else:
                numbers = measured(mine, kind, given, level)
                fine = all(n.isfinite().all() for n in numbers)
                if tag == "equal_rewards":
                    fine = fine and bool((numbers[0].abs() < 0.05).all())
                elif tag != "empty_row":
                    wanted = measured(right, kind, compared, level)
                    fine = fine and same(numbers, wanted, max(kind.tolerance, 1e-3))
        except (Unusable, RuntimeError):
            fine = False
        if not fine:
            yield tag, sentence("invariances", tag)


DENOMINATORS = ("denominator", "num_items_in_batch", "batch_num_tokens", "global_batch_size")


def adds_up(mine: Mine, right: Candidate, batch: Arguments, level: str) -> bool:
    """Whether two micro-batches with the whole batch's denominator give the whole batch's loss."""
    named = [n for n in inspect.signature(mine.function).parameters if n in DENOMINATORS]
    if not named or level != "scalar" or "mask" not in mine.names:
        return True
    whole = measured(right, mine.kind, batch, level)[0]
    for total in (batch["mask"].sum(), torch.tensor(len(batch["mask"]))):
        sums = torch.zeros((), dtype=torch.float64)
        for half in (slice(0, 1), slice(1, None)):
            part = {k: v[half] if isinstance(v, Tensor) else v for k, v in batch.items()}
            given = {name: part[k] for k, name in mine.names.items()}
            sums = sums + mine.function(**given, **{named[0]: total})
        if close(sums.reshape(-1), whole, 1e-4):
            return True
    return False


def changed(tag: str, batch: Arguments, mine: Mine) -> Arguments | None:
    """The batch with one thing changed; None where it does not apply."""
    given = {k: v.clone() if isinstance(v, Tensor) else v for k, v in batch.items()}
    mask = given.get("mask")
    if tag == "detached":
        floats = [v.requires_grad_() for v in given.values() if is_float(v)]
        return given if mine.kind.constant and floats else None
    if tag == "split":
        return given
    if tag == "float32":
        return {k: v.float() if is_float(v) else v for k, v in given.items()}
    if tag == "order":
        flips = {k: v.flip(0) if isinstance(v, Tensor) else v for k, v in given.items()}
        return flips if any(isinstance(v, Tensor) for v in given.values()) else None
    if tag == "equal_rewards":
        if "group_size" not in given:
            return None
        given["rewards"] = torch.full((24,), 0.1)  # the mean of eight of them is another number
        return {**given, "group_size": 8}
    if tag == "far":
        if "kl" not in mine.kind.name:
            return None
        far = given["ref_log_probs"].clone()
        far[1] = given["log_probs"][1] + 3
        return {**given, "ref_log_probs": far}
    if mask is None or "mask" not in mine.names:
        return None
    if tag == "nan":
        for value in given.values():
            if is_float(value) and value.shape[:2] == mask.shape:
                value[~mask] = float("nan")
    if tag == "observations":
        row = int(mask.sum(1).argmax())
        mask[row, mask[row].nonzero()[1:-1]] = False
    if tag == "empty_row":
        mask[0] = False
    return given
