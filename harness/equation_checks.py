"""The border of an equation: what protects its body, so that the body is the formula alone.

Every equation names its tensors with the field's terms, and a name has one shape everywhere
(`SHAPES`). The decorators of this file read the names. Then the same rules hold for all equations:

- A tensor of another shape is refused with a ValueError that names the axes, and so is a mask that
  is not bool.
- Only the quantities of the model in training carry a gradient (`TRAINED`). Everything else (old
  log-probs, advantages, returns) is detached here, whatever the caller passes.
- Numbers are float32 at least, whatever precision the model computed in.
- What does not take part becomes 0 *before* the arithmetic: `torch.where` around a finished
  0 * NaN would be too late for the backward pass.

Ordinary inputs pass untouched, bit for bit, and `inspect.getsource` shows the equation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")
Axes = tuple[str, ...]

LARGEST_INPUT = 1e9  # beyond it lie fill values such as finfo.min, whose squares overflow

PER_TOKEN = (
    *("log_probs", "old_log_probs", "ref_log_probs", "teacher_log_probs", "entropy", "penalty"),
    *("values", "old_values", "returns", "token_rewards", "loss", "x", "mask", "response_mask"),
)
PER_RESPONSE = (
    *("rewards", "scores", "lengths", "has_eos", "bootstrap_values"),
    *("outcome_scores", "labels"),
)
PER_STEP = ("step_rewards", "step_ends", "step_mask")
PER_PAIR = (
    *("chosen", "rejected", "margin", "weights"),
    *("policy_chosen", "policy_rejected", "ref_chosen", "ref_rejected"),
)
SHAPES: dict[str, tuple[Axes, ...]] = {  # by name, the shapes that a tensor may have
    **dict.fromkeys(PER_TOKEN, (("N", "T"),)),
    **dict.fromkeys(PER_RESPONSE, (("N",),)),
    **dict.fromkeys(PER_STEP, (("N", "K"),)),
    **dict.fromkeys(PER_PAIR, (("pairs",),)),
    "advantages": (("N", "T"), ("N", "1")),
}
MASKS = ("mask", "response_mask", "step_mask", "has_eos")
TRAINED = {
    *("log_probs", "values", "entropy", "loss", "x"),
    *("chosen", "rejected", "policy_chosen", "policy_rejected", "outcome_scores"),
}


def at_least_float32(x: Tensor) -> Tensor:
    """`x` in float32, or in float64 if it already is: half precision loses small log-ratios."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


# --- the decorators -----------------------------------------------------------------------------


def token_equation(body: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """An equation per token, (N, T): where an input is not finite the result is NaN, without a gradient.

    A reducer's mask then drops it, so garbage after the end of a response reaches neither the loss
    nor a gradient, and at a position that takes part it shows as a NaN loss.
    """

    def inside(arguments: dict[str, Any]) -> Tensor:
        given = numbers(arguments)
        finite, *clean = finite_inputs(*given.values())
        result = _call(body, arguments | dict(zip(given, clean, strict=True)))
        return torch.where(finite, result, torch.nan)

    return _bordered(body, inside)


def masked_equation(body: Callable[P, R]) -> Callable[P, R]:
    """An equation that reads whole responses: what is (N, T) is 0 where `mask` is False.

    A NaN at a position that takes part stays one.
    """

    def inside(arguments: dict[str, Any]) -> R:
        return _call(body, arguments | masked_numbers(arguments))

    return _bordered(body, inside)


def response_equation(body: Callable[P, R]) -> Callable[P, R]:
    """A `masked_equation` with one advantage per response, (N, 1), because its ratio is one as well."""

    def inside(arguments: dict[str, Any]) -> R:
        return _call(body, arguments | masked_numbers(arguments))

    return _bordered(body, inside, advantages=("N", "1"))


def constant_equation(body: Callable[P, R]) -> Callable[P, R]:
    """A `masked_equation` whose results have no gradient and are 0 where the mask is False."""

    def inside(arguments: dict[str, Any]) -> Any:
        with torch.no_grad():
            result = _call(body, arguments | masked_numbers(arguments))
        mask = mask_of(arguments)
        if isinstance(result, tuple):
            return tuple(torch.where(mask, part, 0.0) for part in result)
        return torch.where(mask, result, 0.0)  # type: ignore[call-overload]

    return _bordered(body, inside)


def group_equation(body: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """An equation of `rewards` in groups: its body reads them as (prompts, G), its caller as (N,).

    Returns (N, 1) without a gradient. Rewards that are not finite, groups of one and groups that
    are not whole are refused with a ValueError. A group whose rewards are all equal gets exactly 0:
    in float32 their mean can be off by one ulp, which a division by a tiny standard deviation would
    blow up to an advantage of order one.
    """

    def inside(arguments: dict[str, Any]) -> Tensor:
        groups = grouped(arguments["rewards"], arguments["group_size"])
        equal = groups.amax(1, keepdim=True) == groups.amin(1, keepdim=True)
        with torch.no_grad():
            return torch.where(equal, 0.0, _call(body, arguments | {"rewards": groups})).view(-1, 1)

    return _bordered(body, inside)


def row_equation(body: Callable[P, R]) -> Callable[P, R]:
    """An equation of one number per response or pair, (N,) or (pairs,) each."""

    def inside(arguments: dict[str, Any]) -> R:
        return _call(body, arguments | numbers(arguments))

    return _bordered(body, inside)


def in_range(**intervals: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Refuse a number outside its interval, as in `@in_range(alpha="[0, 1)")`, with a ValueError.

    An end may name another argument: "[1, max_length]".
    """

    def check(name: str, value: float, arguments: Mapping[str, Any]) -> None:
        """`value` against the interval as written: square ends belong to it, round ones do not."""
        interval = intervals[name]
        low, high = (
            arguments[end] if end in arguments else float(end) for end in interval[1:-1].split(", ")
        )
        above = value >= low if interval[0] == "[" else value > low
        below = value <= high if interval[-1] == "]" else value < high
        if not (above and below):
            raise ValueError(f"{name} must be in {interval}: got {value}")

    return _checked(intervals, check)


def one_of(**choices: tuple[str, ...]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Refuse a name that is none of the choices, with a ValueError that lists them."""

    def check(name: str, value: str, arguments: Mapping[str, Any]) -> None:
        """`value` against the choices of this argument alone."""
        if value not in choices[name]:
            raise ValueError(f"{name} must be one of {', '.join(choices[name])}: got {value!r}")

    return _checked(choices, check)


def _checked(
    names: Iterable[str], check: Callable[[str, Any, Mapping[str, Any]], None]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator that checks the named arguments before the equation is called."""

    def decorate(body: Callable[P, R]) -> Callable[P, R]:
        def inside(arguments: dict[str, Any]) -> R:
            for name in names:
                check(name, arguments[name], arguments)
            return _call(body, arguments)

        return _bordered(body, inside)

    return decorate


def _bordered(
    body: Callable[P, R], inside: Callable[[dict[str, Any]], R], **shapes: Axes
) -> Callable[P, R]:
    """`inside` called with the arguments by name, once their shapes are checked, in body's clothes."""
    signature = inspect.signature(body)
    allowed = SHAPES | {name: (axes,) for name, axes in shapes.items()}

    @wraps(body)
    def equation(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        check_shapes(body.__name__, bound.arguments, allowed)
        return inside(bound.arguments)

    return equation


def _call(body: Callable[..., R], arguments: Mapping[str, Any]) -> R:
    return body(**arguments)


# --- the rules ----------------------------------------------------------------------------------


def check_shapes(
    equation: str,
    arguments: Mapping[str, Any],
    allowed: Mapping[str, tuple[Axes, ...]] = SHAPES,
) -> None:
    """Raise a ValueError unless every tensor has the shape of its name, with one size per axis."""
    tensors = {
        name: value
        for name, value in arguments.items()
        if isinstance(value, Tensor) and name in allowed
    }
    sizes: dict[str, int] = {}
    for name, value in sorted(tensors.items(), key=lambda item: len(allowed[item[0]])):
        axes = next((axes for axes in allowed[name] if _fits(axes, value, sizes)), None)
        if axes is None:
            wanted = " or ".join(str(axes).replace("'", "") for axes in allowed[name])
            got = ", ".join(f"{other} {tuple(tensor.shape)}" for other, tensor in tensors.items())
            raise ValueError(
                f"{equation}: {name} must be {wanted}, one size per axis in all: got {got}"
            )
        sizes |= dict(zip(axes, value.shape, strict=True))
        if name in MASKS and value.dtype != torch.bool:
            raise ValueError(
                f"{equation}: {name} must be bool, True where one takes part: got {value.dtype}"
            )


def _fits(axes: Axes, value: Tensor, sizes: Mapping[str, int]) -> bool:
    return value.ndim == len(axes) and all(
        size == (1 if axis == "1" else sizes.get(axis, size))
        for axis, size in zip(axes, value.shape, strict=True)
    )


def numbers(arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors that are no masks by name: float32 at least, detached unless they are `TRAINED`."""
    return {
        name: at_least_float32(value if name in TRAINED else value.detach())
        for name, value in arguments.items()
        if isinstance(value, Tensor) and name in SHAPES and name not in (*MASKS, "step_ends")
    }


def finite_inputs(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The inputs, broadcast, with 0 wherever any of them is NaN, infinite or beyond 1e9.

    Returns (finite, *inputs); `finite` is a bool tensor, True where every input was usable.
    """
    inputs = torch.broadcast_tensors(*(at_least_float32(tensor) for tensor in tensors))
    finite = torch.stack([tensor.abs() < LARGEST_INPUT for tensor in inputs]).all(0)
    return (finite, *(torch.where(finite, tensor, 0.0) for tensor in inputs))


def mask_of(arguments: Mapping[str, Any]) -> Tensor:
    """The argument that says which tokens take part."""
    return arguments["mask"] if "mask" in arguments else arguments["response_mask"]


def masked_numbers(arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    """`numbers`, with 0 where the mask is False in all that has a row for each of the mask's."""
    mask = mask_of(arguments)
    return {
        name: torch.where(mask, value, 0.0) if value.ndim == 2 else value
        for name, value in numbers(arguments).items()
    }


def grouped(rewards: Tensor, group_size: int) -> Tensor:
    """`rewards` (N,) as (prompts, group_size), refusing what cannot be a group baseline."""
    if group_size < 2:
        raise ValueError(f"group_size must be at least 2, the group is the baseline: {group_size}")
    if len(rewards) % group_size:
        raise ValueError(f"{len(rewards)} rewards do not divide into groups of {group_size}")
    if not rewards.isfinite().all():
        raise ValueError("rewards must be finite: one NaN would spread over its whole group")
    return at_least_float32(rewards.detach()).reshape(-1, group_size)
