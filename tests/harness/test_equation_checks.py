"""The border of the equations: each rule on a function of its own, whose body is one line."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor

from harness.equation_checks import (
    SHAPES,
    TRAINED,
    constant_equation,
    group_equation,
    in_range,
    masked_equation,
    one_of,
    response_equation,
    row_equation,
    token_equation,
)

MASK = torch.tensor([[True, True, False], [True, False, False]])


@token_equation
def product(log_probs: Tensor, advantages: Tensor) -> Tensor:
    """log pi A."""
    return log_probs * advantages


@masked_equation
def total(x: Tensor, mask: Tensor) -> Tensor:
    return x.sum(1)


@constant_equation
def doubled(x: Tensor, mask: Tensor) -> Tensor:
    return 2 * x + 1


@response_equation
def per_response(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    return log_probs.sum(1, keepdim=True) * advantages


@group_equation
def above_mean(rewards: Tensor, group_size: int) -> Tensor:
    return (rewards - rewards.mean(1, keepdim=True)) / 1e-30


@row_equation
def gap(chosen: Tensor, ref_chosen: Tensor) -> Tensor:
    return chosen - ref_chosen


def test_getsource_shows_the_formula() -> None:
    source = inspect.getsource(product)
    assert "return log_probs * advantages" in source and product.__doc__ == "log pi A."
    assert list(inspect.signature(product).parameters) == ["log_probs", "advantages"]


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


@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, -torch.inf, -1e30])
@pytest.mark.parametrize("where", [0, 1])
def test_what_is_not_finite_becomes_nan_without_a_gradient(garbage: float, where: int) -> None:
    inputs = [torch.ones(2, 3), torch.full((2, 3), 5.0)]
    inputs[where][0, 1] = garbage
    log_probs = inputs[0].requires_grad_()
    result = product(log_probs, inputs[1])
    assert result.isnan().tolist() == [[False, True, False], [False] * 3]
    torch.where(result.isnan(), 0.0, result).sum().backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [[5, 0, 5], [5, 5, 5]]


def test_only_what_is_trained_has_a_gradient() -> None:
    log_probs, advantages = torch.ones(2, 3).requires_grad_(), torch.ones(2, 3).requires_grad_()
    product(log_probs, advantages).sum().backward()
    assert log_probs.grad is not None and advantages.grad is None
    chosen, ref_chosen = torch.ones(2).requires_grad_(), torch.ones(2).requires_grad_()
    gap(chosen, ref_chosen).sum().backward()
    assert chosen.grad is not None and ref_chosen.grad is None
    assert not doubled(torch.ones(2, 3).requires_grad_(), MASK).requires_grad
    assert {"old_log_probs", "ref_log_probs", "advantages", "returns", "rewards"} <= set(SHAPES)
    assert not {"old_log_probs", "ref_log_probs", "advantages", "returns", "rewards"} & TRAINED


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
        (lambda: product(torch.ones(2, 3), torch.ones(2)), r"product: advantages must be \(N, T\)"),
        (lambda: product(torch.ones(2, 3), torch.ones(3, 1)), r"\(N, T\) or \(N, 1\)"),
        (lambda: product(torch.ones(3), torch.ones(3)), r"log_probs must be \(N, T\)"),
        (lambda: total(torch.ones(2, 2), MASK), "one size per axis in all: got x"),
        (lambda: total(torch.ones(2, 3), MASK.long()), "mask must be bool"),
        (lambda: per_response(torch.ones(2, 3), torch.ones(2, 3), MASK), r"must be \(N, 1\)"),
        (lambda: gap(torch.ones(2), torch.ones(3)), r"ref_chosen must be \(pairs,\)"),
        (lambda: above_mean(torch.ones(2, 2), 2), r"rewards must be \(N,\)"),
        (lambda: above_mean(torch.ones(3), 2), "3 rewards do not divide into groups of 2"),
        (lambda: above_mean(torch.ones(3), 1), "at least 2"),
        (lambda: above_mean(torch.tensor([1.0, torch.nan]), 2), "must be finite"),
    ],
)
def test_a_wrong_shape_is_refused_by_name(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_the_shape_1_1_and_a_single_token() -> None:
    """With T = 1 the two shapes of an advantage are one."""
    assert product(torch.ones(4, 1), torch.ones(4, 1)).shape == (4, 1)
    with pytest.raises(ValueError, match="advantages"):
        product(torch.ones(4, 2), torch.ones(1, 2))


def test_half_precision_computes_in_float32() -> None:
    half = torch.full((1, 2), 0.1, dtype=torch.bfloat16)
    assert product(half, half).dtype == torch.float32
    assert gap(half[0], half[0].double()).dtype == torch.float64
    counts = torch.tensor([[1, 2, 7], [3, 7, 7]])
    assert total(counts, MASK).tolist() == [3, 3]  # whole numbers are masked as well


def test_a_group_without_a_spread_gets_exactly_zero() -> None:
    """The mean of ten times 0.1 is not 0.1 in float32; / 1e-30 would show it."""
    rewards = torch.tensor([0.1] * 10)
    assert not above_mean(rewards, 10).any()
    assert above_mean(torch.tensor([0.0, 1.0, 5.0, 5.0]), 2)[:, 0].tolist() == [
        pytest.approx(-5e29),
        pytest.approx(5e29),
        0,
        0,
    ]


@in_range(share="(0, 1]", count="[1, limit]")
def kept(share: float, count: int, limit: int) -> float:
    return share * count


@one_of(scale=("group", "none"))
def scaled(scale: str) -> str:
    return scale


def test_numbers_and_names_outside_their_range_are_refused() -> None:
    assert kept(1, 1, 1) == 1 and kept(0.5, 3, 3) == 1.5 and scaled("none") == "none"
    for share in (0, 1.01, float("nan")):
        with pytest.raises(ValueError, match=r"share must be in \(0, 1\]: got"):
            kept(share, 1, 1)
    for count in (0, 4):
        with pytest.raises(ValueError, match=r"count must be in \[1, limit\]"):
            kept(1, count, limit=3)
    with pytest.raises(ValueError, match="scale must be one of group, none: got 'batch'"):
        scaled("batch")
