"""The lines around a formula: the shapes it takes, float32, and what padding must not do.

An equation calls them in its body, so that whoever copies the body copies what makes it right.
"""

import torch
from torch import Tensor

LARGEST = 1e9  # beyond it lie fill values such as finfo.min, whose squares overflow


def axes(
    wanted: str,
    *,
    mask: Tensor | None = None,
    **tensors: Tensor | tuple[str, Tensor | None] | None,
) -> None:
    """Refuse what would broadcast by mistake: axes("N T", x=x, y=("N T | N 1", y), mask=mask).

    A tensor has the axes `wanted`, or one of the choices beside it. A name is one size in the whole
    call and "1" is 1; a mask is bool; None is passed over. Raises ValueError.
    """
    sizes = {"1": 1}
    for name, entry in (*tensors.items(), ("mask", mask)):
        choices, tensor = entry if isinstance(entry, tuple) else (wanted, entry)
        if tensor is None:
            continue
        fitting = [c for c in map(str.split, choices.split("|")) if _fits(c, tensor, sizes)]
        if not fitting:
            raise ValueError(f"{name} is {_wrong(tensor, choices.split(' | '), sizes)}")
        sizes.update(zip(fitting[0], tensor.shape, strict=True))
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"mask is {mask.dtype}, wanted bool: True where one takes part")


def _fits(names: list[str], tensor: Tensor, sizes: dict[str, int]) -> bool:
    if not isinstance(tensor, Tensor) or tensor.ndim != len(names):
        return False
    return all(sizes.get(name, n) == n for name, n in zip(names, tensor.shape, strict=True))


def _wrong(tensor: Tensor, choices: list[str], sizes: dict[str, int]) -> str:
    wanted = " or ".join(f"({', '.join(choice.split())})" for choice in choices)
    known = ", ".join(f"{axis} = {size}" for axis, size in sizes.items() if axis != "1")
    if not isinstance(tensor, Tensor):
        return f"{type(tensor).__name__}, wanted a tensor {wanted}"
    why = ": beside (N, T) it would run along time" if tensor.ndim == 1 and "T" in sizes else ""
    return f"{tuple(tensor.shape)}, wanted {wanted}{known and f' with {known}'}{why}"


def at_least_float32(x: Tensor) -> Tensor:
    """`x` in float32, or in float64 if it already is: half precision loses small log-ratios."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


# --- padding --------------------------------------------------------------------------------------


def masked_sum(x: Tensor, mask: Tensor) -> Tensor:
    """Sum of every row of `x` (N, T) over its True positions, (N,); 0 for an empty row."""
    axes("N T", x=x, mask=mask)
    return torch.where(mask, at_least_float32(x), 0.0).sum(1)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean of every row of `x` (N, T) over its True positions, (N,); 0 for an empty row."""
    return masked_sum(x, mask) / mask.sum(1).clamp(min=1)


def where_finite(x: Tensor, *others: Tensor) -> Tensor:
    """`x` in float32 at least, and NaN without a gradient where it or one of the others is not finite.

    For equations per token, which have no mask: the reducer's mask drops the NaN of padding, and a
    token that takes part shows it as a NaN loss. In the reducer alone the mask would be too late,
    because 0 * NaN on the way back is NaN.
    """
    finite = at_least_float32(x).abs() < LARGEST
    for other in others:
        finite = finite & (other.abs() < LARGEST)
    return torch.where(finite, at_least_float32(x), torch.nan)
