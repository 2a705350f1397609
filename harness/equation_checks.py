"""The border of an equation: what protects its body, so that the body is the formula alone.

An equation says in its signature what it reads and trains, and a decorator holds its callers to that:

    @token_equation
    def policy_gradient(log_probs: Trained[NxT], advantages: NxT | Nx1) -> NxT:
        return -advantages * log_probs

- A tensor of another shape is refused with a ValueError that names the axes. So is a mask that is
  not bool, a number in place of a tensor, and a tensor in place of a number.
- Only what is `Trained`, a quantity of the model in training, carries a gradient. Everything else
  (old log-probs, advantages, returns) is detached here, whatever the caller passes.
- Numbers are float32 at least, whatever precision the model computed in.
- What does not take part becomes 0 *before* the arithmetic: `torch.where` around a finished
  0 * NaN would be too late for the backward pass.

A parameter without a declaration, such as a bare `Tensor`, is refused on import.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, wraps
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import torch
from torch import Tensor

from harness.flag_ranges import Range

P = ParamSpec("P")
R = TypeVar("R")
Declared = TypeVar("Declared")
Axes = tuple[str, ...]

LARGEST_INPUT = 1e9  # beyond it lie fill values such as finfo.min, whose squares overflow

# --- what a signature declares ------------------------------------------------------------------
# A type is its shape: N responses, T padded response length, K steps of a response or members of an
# ensemble. One size per axis in a call. An annotation of a result is not checked.

NxT = Annotated[Tensor, ("N", "T")]  # one number per token
Nx1 = Annotated[Tensor, ("N", "1")]  # one per response, to stand beside (N, T)
N = Annotated[Tensor, ("N",)]  # one per response
NxK = Annotated[Tensor, ("N", "K")]  # one per step of a response
KxN = Annotated[Tensor, ("K", "N")]  # one per member of an ensemble and response
PxN = Annotated[Tensor, ("prompts", "N")]  # one per prompt and answer
Pairs = Annotated[Tensor, ("pairs",)]  # one per preference pair
Scalar = Annotated[Tensor, ()]  # one number as a tensor: a count on the device

Trained = Annotated[Declared, "trained"]  # Trained[NxT] has a gradient
Mask = Annotated[Declared, "mask"]  # Mask[NxT] is bool, True where one takes part
Whole = Annotated[Declared, "whole"]  # Whole[NxK] holds integers, such as positions


@dataclass(frozen=True)
class Parameter:
    """What one argument of an equation may be."""

    wanted: str  # in words: "(N, T)", "float"
    shapes: tuple[Axes, ...]  # of a tensor; none where no tensor may stand
    marks: tuple[str, ...]  # of `Trained`, `Mask` and `Whole`
    tensor_only: bool  # no number, name or function may stand in its place
    optional: bool  # None may

    @cached_property
    def is_number(self) -> bool:
        """Is it a tensor to compute with, and no mask or position?"""
        return bool(self.shapes) and "mask" not in self.marks and "whole" not in self.marks

    @cached_property
    def per_token(self) -> bool:
        """Does the mask of the tokens fit all of its shapes?"""
        return all(axes in (("N", "T"), ("N", "1")) for axes in self.shapes)


def declared(equation: Callable[..., Any]) -> dict[str, Parameter]:
    """The parameters, those with a choice of shapes last; ValueError for a bare `Tensor`."""
    hints = get_type_hints(equation, include_extras=True)
    parameters = {
        name: _parameter(equation.__name__, name, hints.get(name, Any))
        for name in inspect.signature(equation).parameters
    }
    return dict(sorted(parameters.items(), key=lambda item: len(item[1].shapes)))


def _parameter(equation: str, name: str, hint: Any) -> Parameter:
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    shapes: list[Axes] = []
    marks: list[str] = []
    words: list[str] = []
    for kind in kinds:
        if get_origin(kind) is Annotated and kind.__origin__ is Tensor:
            axes, *more = kind.__metadata__
            shapes.append(axes)
            marks.extend(more)
            words.append(str(axes).replace("'", ""))
        elif kind in (bool, int, float, str) or get_origin(kind) in (Literal, Callable):
            words.append(inspect.formatannotation(kind))
        elif kind is not type(None):
            raise ValueError(
                f"{equation}: the parameter {name} must declare what it is, as in `{name}: NxT` or "
                f"`{name}: float` (harness/equation_checks.py lists the shapes): got {kind}"
            )
    return Parameter(
        " or ".join(words),
        tuple(sorted(shapes, key=lambda axes: "1" not in axes)),  # (N, 1) is a case of (N, T)
        tuple(marks),
        tensor_only=bool(shapes) and len(words) == len(shapes),
        optional=type(None) in kinds,
    )


def at_least_float32(x: Tensor) -> Tensor:
    """`x` in float32, or in float64 if it already is: half precision loses small log-ratios."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


# --- the decorators -----------------------------------------------------------------------------


def token_equation(body: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """An equation per token, (N, T): where an input is not finite the result is NaN, without a gradient.

    A reducer's mask then drops it behind the end of a response; elsewhere it shows as a NaN loss.
    """
    parameters = declared(body)
    others = [name for name, parameter in parameters.items() if not parameter.per_token]
    if others:  # beside (N, T) an (N,) would run along time
        raise ValueError(
            f"{body.__name__}: {others[0]} must be NxT or Nx1 in an equation per token"
        )

    def inside(arguments: dict[str, Any]) -> Tensor:
        given = numbers(arguments, parameters)
        finite, *clean = finite_inputs(*given.values())
        result = _call(body, arguments | dict(zip(given, clean, strict=True)))
        return torch.where(finite, result, torch.nan)

    return _bordered(body, inside, parameters)


def masked_equation(body: Callable[P, R]) -> Callable[P, R]:
    """An equation of whole responses: what is (N, T) is 0 where its mask is False."""
    parameters = declared(body)
    mask = token_mask(body.__name__, parameters)

    def inside(arguments: dict[str, Any]) -> R:
        return _call(body, arguments | masked_numbers(arguments, parameters, mask))

    return _bordered(body, inside, parameters)


def constant_equation(body: Callable[P, R]) -> Callable[P, R]:
    """A `masked_equation` whose results have no gradient and are 0 where the mask is False."""
    parameters = declared(body)
    mask = token_mask(body.__name__, parameters)

    def inside(arguments: dict[str, Any]) -> Any:
        with torch.no_grad():
            result = _call(body, arguments | masked_numbers(arguments, parameters, mask))
        if isinstance(result, tuple):
            return tuple(torch.where(arguments[mask], part, 0.0) for part in result)
        return torch.where(arguments[mask], result, 0.0)  # type: ignore[call-overload]

    return _bordered(body, inside, parameters)


def group_equation(body: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """An equation of `rewards` (N,) in groups of `group_size` neighbours; (N, 1), without a gradient.

    ValueError for rewards that are not finite, groups of one and groups that are not whole. A group of
    equal rewards gets exactly 0: in float32 their mean can be off by one ulp, which a division by a
    tiny standard deviation would blow up to an advantage of order one.
    """
    parameters = declared(body)

    def inside(arguments: dict[str, Any]) -> Tensor:
        groups = grouped(arguments["rewards"], arguments["group_size"])
        equal = groups.amax(1, keepdim=True) == groups.amin(1, keepdim=True)
        with torch.no_grad():
            result = _call(body, arguments | numbers(arguments, parameters)).view_as(groups)
        return torch.where(equal, 0.0, result).view(-1, 1)

    return _bordered(body, inside, parameters)


def row_equation(body: Callable[P, R]) -> Callable[P, R]:
    """An equation without a mask, of one number per response or pair: only the rules for all hold."""
    parameters = declared(body)

    def inside(arguments: dict[str, Any]) -> R:
        return _call(body, arguments | numbers(arguments, parameters))

    return _bordered(body, inside, parameters)


def in_range(**intervals: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Refuse a number outside its interval, as in `@in_range(alpha="[0, 1)")`, with a ValueError.

    An end may name another argument: "[1, max_length]".
    """

    def check(name: str, value: float, arguments: Mapping[str, Any]) -> None:
        if not Range(intervals[name]).holds(value, arguments):
            raise ValueError(f"{name} must be in {intervals[name]}: got {value}")

    return _checked(intervals, check)


def one_of(**choices: tuple[str, ...]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Refuse a name that is none of the choices, with a ValueError that lists them."""

    def check(name: str, value: str, arguments: Mapping[str, Any]) -> None:
        if value not in choices[name]:
            raise ValueError(f"{name} must be one of {', '.join(choices[name])}: got {value!r}")

    return _checked(choices, check)


def zero_or_one(*names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Refuse a tensor that holds anything but 0 and 1, with a ValueError that names the first."""

    def check(name: str, value: Tensor, arguments: Mapping[str, Any]) -> None:
        others = value[(value != 0) & (value != 1)]  # NaN, too
        if len(others):
            raise ValueError(
                f"{name} must be 0 or 1, right or wrong: got {float(others[0]):g}; use a rule that "
                "checks answers, without further parts or penalties"
            )

    return _checked(names, check)


def _checked(
    names: Iterable[str], check: Callable[[str, Any, Mapping[str, Any]], None]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator that checks the named arguments before the equation is called."""

    def decorate(body: Callable[P, R]) -> Callable[P, R]:
        def inside(arguments: dict[str, Any]) -> R:
            for name in names:
                check(name, arguments[name], arguments)
            return _call(body, arguments)

        return _bordered(body, inside, declared(body))

    return decorate


def _bordered(
    body: Callable[P, R],
    inside: Callable[[dict[str, Any]], R],
    parameters: Mapping[str, Parameter],
) -> Callable[P, R]:
    """A function with body's name and signature: it checks the arguments and calls `inside`."""
    signature = inspect.signature(body)

    @wraps(body)
    def equation(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        check_shapes(body.__name__, bound.arguments, parameters)
        return inside(bound.arguments)

    return equation


def _call(body: Callable[..., R], arguments: Mapping[str, Any]) -> R:
    return body(**arguments)


# --- the rules ----------------------------------------------------------------------------------


def check_shapes(
    equation: str, arguments: Mapping[str, Any], parameters: Mapping[str, Parameter]
) -> None:
    """Raise a ValueError unless every argument is what its parameter declares, with one size per axis."""
    sizes: dict[str, int] = {}
    for name, parameter in parameters.items():
        value = arguments[name]
        if not isinstance(value, Tensor):
            if parameter.tensor_only and not (value is None and parameter.optional):
                raise ValueError(
                    f"{equation}: {name} must be a tensor, {parameter.wanted}: "
                    f"got {type(value).__name__}"
                )
            continue
        if not parameter.shapes:
            raise ValueError(
                f"{equation}: {name} must be {parameter.wanted}: "
                f"got a tensor of shape {tuple(value.shape)}"
            )
        axes = next((axes for axes in parameter.shapes if _fits(axes, value, sizes)), None)
        if axes is None:
            got = ", ".join(
                f"{other} {tuple(tensor.shape)}"
                for other, tensor in arguments.items()
                if isinstance(tensor, Tensor)
            )
            raise ValueError(
                f"{equation}: {name} must be {parameter.wanted}, one size per axis in all: got {got}"
            )
        sizes |= dict(zip(axes, value.shape, strict=True))
        if "mask" in parameter.marks and value.dtype != torch.bool:
            raise ValueError(
                f"{equation}: {name} must be bool, True where one takes part: got {value.dtype}"
            )
        if "whole" in parameter.marks and value.dtype.is_floating_point:
            raise ValueError(f"{equation}: {name} must be whole numbers: got {value.dtype}")


def _fits(axes: Axes, value: Tensor, sizes: Mapping[str, int]) -> bool:
    return value.ndim == len(axes) and all(
        size == (1 if axis == "1" else sizes.get(axis, size))
        for axis, size in zip(axes, value.shape, strict=True)
    )


def numbers(arguments: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> dict[str, Tensor]:
    """The tensors to compute with by name: float32 at least, detached unless they are `Trained`."""
    return {
        name: at_least_float32(value if "trained" in parameter.marks else value.detach())
        for name, parameter in parameters.items()
        if parameter.is_number and isinstance(value := arguments[name], Tensor)
    }


def finite_inputs(*tensors: Tensor) -> tuple[Tensor, ...]:
    """(finite, *inputs), broadcast: bool, and 0 where any is NaN, infinite or beyond 1e9."""
    inputs = torch.broadcast_tensors(*(at_least_float32(tensor) for tensor in tensors))
    finite = torch.stack([tensor.abs() < LARGEST_INPUT for tensor in inputs]).all(0)
    return (finite, *(torch.where(finite, tensor, 0.0) for tensor in inputs))


def token_mask(equation: str, parameters: Mapping[str, Parameter]) -> str:
    """The name of the one parameter that says which tokens take part."""
    names = [
        name
        for name, parameter in parameters.items()
        if "mask" in parameter.marks and parameter.per_token
    ]
    if len(names) != 1:
        raise ValueError(f"{equation}: one parameter must be a Mask[NxT]: got {names}")
    return names[0]


def masked_numbers(
    arguments: Mapping[str, Any], parameters: Mapping[str, Parameter], mask: str
) -> dict[str, Tensor]:
    """`numbers`, with 0 where the mask is False in all that has a number per token or (N, 1)."""
    return {
        name: torch.where(arguments[mask], value, 0.0) if parameters[name].per_token else value
        for name, value in numbers(arguments, parameters).items()
    }


def grouped(rewards: Tensor, group_size: int, *, smallest: int = 2) -> Tensor:
    """`rewards` (N,) as (prompts, group_size), refusing what cannot be a group baseline."""
    if group_size < smallest:
        raise ValueError(
            f"group_size must be at least {smallest}, the group is the baseline: {group_size}"
        )
    if len(rewards) % group_size:
        raise ValueError(f"{len(rewards)} rewards do not divide into groups of {group_size}")
    if not rewards.isfinite().all():
        raise ValueError("rewards must be finite: one NaN would spread over its whole group")
    return at_least_float32(rewards.detach()).reshape(-1, group_size)
