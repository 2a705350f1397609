"""The border of the equations: each rule on a function of its own, whose body is one line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.equation_checks import (
    Mask,
    N,
    Nx1,
    NxT,
    Pairs,
    Scalar,
    Trained,
    at_least_float32,
    constant_equation,
    finite_inputs,
    group_equation,
    in_range,
    masked_equation,
    row_equation,
    token_equation,
)

MASK = torch.tensor([[True, True, False], [True, False, False]])


@token_equation
def product(log_probs: Trained[NxT], advantages: NxT | Nx1) -> NxT:
    """log pi A."""
    return log_probs * advantages


@masked_equation
def total(x: Trained[NxT], mask: Mask[NxT], over: float | Scalar | None = None) -> N:
    return x.sum(1) if over is None else x.sum(1) / over


@constant_equation
def doubled(x: Trained[NxT], mask: Mask[NxT]) -> NxT:
    return 2 * x + 1


@masked_equation
def per_response(log_probs: Trained[NxT], advantages: Nx1, mask: Mask[NxT]) -> Nx1:
    return log_probs.sum(1, keepdim=True) * advantages


@group_equation
def above_mean(rewards: N, group_size: int) -> Nx1:
    assert rewards.ndim == 1  # what it declares is what it reads
    groups = rewards.view(-1, group_size)
    return ((groups - groups.mean(1, keepdim=True)) / 1e-30).view(-1, 1)


@row_equation
def gap(chosen: Trained[Pairs], ref_chosen: Pairs, margin: Pairs | None = None) -> Pairs:
    return chosen - ref_chosen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ordinary_inputs_pass_bit_for_bit(dtype: torch.dtype) -> None:
    """Value and gradient, by position and by keyword."""
    generator = torch.Generator().manual_seed(0)
    inner, outer = (
        torch.randn(2, 3, generator=torch.Generator().manual_seed(1), dtype=dtype).requires_grad_()
        for _ in range(2)
    )
    advantages = torch.randn(2, 1, generator=generator, dtype=dtype)
    expected, actual = inner * advantages, product(advantages=advantages, log_probs=outer)
    assert torch.equal(actual, expected) and actual.dtype == dtype
    weights = torch.randn(2, 3, generator=generator, dtype=dtype)
    (expected * weights).sum().backward()
    (actual * weights).sum().backward()
    assert inner.grad is not None and outer.grad is not None
    assert torch.equal(inner.grad, outer.grad)


def test_only_what_is_trained_has_a_gradient() -> None:
    log_probs, advantages = torch.ones(2, 3).requires_grad_(), torch.ones(2, 3).requires_grad_()
    product(log_probs, advantages).sum().backward()
    assert log_probs.grad is not None and advantages.grad is None
    chosen, ref_chosen = torch.ones(2).requires_grad_(), torch.ones(2).requires_grad_()
    gap(chosen, ref_chosen).sum().backward()
    assert chosen.grad is not None and ref_chosen.grad is None
    assert not doubled(torch.ones(2, 3).requires_grad_(), MASK).requires_grad
    over = torch.tensor(2.0, requires_grad=True)
    total(torch.ones(2, 3).requires_grad_(), MASK, over).sum().backward()
    assert over.grad is None


def test_masked_positions_are_zero_before_the_body_and_after_it() -> None:
    x = torch.tensor([[1.0, 2.0, torch.nan], [3.0, torch.inf, torch.nan]]).requires_grad_()
    result = total(x, MASK)
    assert result.tolist() == [3, 3]
    result.sum().backward()
    assert x.grad is not None and x.grad.tolist() == MASK.float().tolist()
    assert doubled(x, MASK).tolist() == [[3, 5, 0], [7, 0, 0]]
    assert total(torch.tensor([[torch.nan, 0, 0], [1, 0, 0]]), MASK).isnan().tolist() == [
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: product(torch.ones(2, 3), torch.ones(2)),
            r"advantages must be \(N, T\) or \(N, 1",
        ),
        (lambda: product(torch.ones(2, 1, 3), torch.ones(2, 1)), r"log_probs must be \(N, T\)"),
        (lambda: product(torch.ones(3, 3), torch.ones(3)), "advantages must be"),  # N = T
        (lambda: total(torch.ones(2, 3), MASK, torch.ones(2)), r"over must be float or \(\)"),
        (lambda: per_response(torch.ones(2, 3), torch.ones(2, 3), MASK), r"must be \(N, 1\)"),
        (lambda: above_mean(torch.ones(3), 2), "3 rewards do not divide into groups of 2"),
        (lambda: above_mean(torch.ones(3), 1), "at least 2"),
        (lambda: above_mean(torch.tensor([1.0, torch.nan]), 2), "must be finite"),
    ],
)
def test_a_wrong_shape_is_refused_by_name(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: product(torch.ones(2, 3), 0.5), "product: advantages must be a tensor.*got float"),
        (lambda: product([[1.0]], torch.ones(1, 1)), "log_probs must be a tensor.*got list"),
        (lambda: product(None, torch.ones(2, 3)), "log_probs must be a tensor.*got NoneType"),
        (lambda: total(torch.ones(2, 3), True), "mask must be a tensor.*got bool"),
        (lambda: gap(torch.ones(2), torch.ones(2), 0.5), "margin must be a tensor.*got float"),
        (
            lambda: above_mean(torch.ones(4), torch.tensor(2)),
            "group_size must be int: got a tensor",
        ),
        (lambda: kept(torch.ones(2), 1, 1), "share must be float: got a tensor of shape"),
    ],
)
def test_a_number_is_no_tensor_and_a_tensor_no_number(
    call: Callable[[], object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def bare(weighted_advantages: Tensor) -> Tensor:
    return weighted_advantages


def untyped(advantages):
    return advantages


def anything(advantages: Any) -> Tensor:
    return advantages


def in_a_mapping(advantages: NxT, parts: Mapping[str, Tensor]) -> Tensor:
    return advantages


def half_declared(advantages: NxT | Tensor) -> Tensor:
    return advantages


@pytest.mark.parametrize("body", [bare, untyped, anything, in_a_mapping, half_declared])
@pytest.mark.parametrize("decorate", [token_equation, row_equation, in_range(), group_equation])
def test_a_parameter_without_a_declaration_is_refused_on_import(
    body: Callable[..., Tensor], decorate: Callable[..., object]
) -> None:
    """The decorator itself raises, names the parameter and shows what to write."""
    name = "parts" if body is in_a_mapping else list(inspect.signature(body).parameters)[0]
    with pytest.raises(ValueError, match=rf"{body.__name__}: .*{name} must declare.*NxT"):
        decorate(body)


def test_a_declaration_that_its_decorator_cannot_keep_is_refused_on_import() -> None:
    """An (N,) beside (N, T) would run along time; a masked equation needs one mask of the tokens."""

    def along_time(log_probs: Trained[NxT], rewards: N) -> NxT:
        return log_probs * rewards

    def unmasked(x: NxT, has_eos: Mask[N]) -> NxT:
        return x

    def two_masks(x: NxT, mask: Mask[NxT], other: Mask[NxT]) -> NxT:
        return x

    with pytest.raises(ValueError, match="rewards must be NxT or Nx1"):
        token_equation(along_time)
    for body in (unmasked, two_masks):
        for decorate in (masked_equation, constant_equation):
            with pytest.raises(ValueError, match=rf"{body.__name__}: one parameter .* Mask\[NxT\]"):
                decorate(body)


def test_finite_inputs_are_zero_wherever_one_of_them_is_not() -> None:
    x, y = torch.tensor([[1.0, torch.nan, 3.0]]), torch.tensor([[1.0, 2.0, torch.inf]])
    finite, clean_x, clean_y = finite_inputs(x, y)
    assert finite.tolist() == [[True, False, False]]
    assert clean_x.tolist() == [[1, 0, 0]] and clean_y.tolist() == [[1, 0, 0]]
    fill = torch.tensor([[torch.finfo(torch.float32).min, 1e8]])  # a large advantage is kept
    assert finite_inputs(fill)[1].tolist() == [[0, 1e8]]
    finite, wide = finite_inputs(torch.ones(1, 3), torch.tensor([[torch.nan]]))[:2]
    assert not finite.any() and wide.shape == (1, 3)


def test_half_precision_computes_in_float32() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.float32):
        assert at_least_float32(torch.ones(1, dtype=dtype)).dtype == torch.float32
    assert at_least_float32(torch.ones(1, dtype=torch.float64)).dtype == torch.float64
    half = torch.full((1, 2), 0.1, dtype=torch.bfloat16)
    assert product(half, half).dtype == torch.float32
    assert gap(half[0], half[0].double()).dtype == torch.float64
    counts = torch.tensor([[1, 2, 7], [3, 7, 7]])
    assert total(counts, MASK).tolist() == [3, 3]  # whole numbers are masked as well


@in_range(share="(0, 1]", count="[1, limit]")
def kept(share: float, count: int, limit: int) -> float:
    return share * count
