"""The lines around a formula: each on an equation of its own, whose body is one line."""

from __future__ import annotations

import pytest
import torch

from harness.tensors import at_least_float32, axes, masked_mean, masked_sum, where_finite

MASK = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
X, ROWS = torch.ones(3, 3), torch.ones(3, 1)


def product(log_probs, advantages, mask=None):
    axes("N T", log_probs=log_probs, advantages=("N T | N 1", advantages), mask=mask)
    return where_finite(log_probs, advantages) * advantages.detach()


@pytest.mark.parametrize("given", [(X, X), (X, ROWS), (X, X, MASK), (X, ROWS, None)])
def test_what_fits_passes(given):
    assert torch.equal(product(*given), X)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ((X, torch.ones(3)), "advantages"),  # N = T: it would run along time
        ((X, torch.ones(1, 3)), "advantages"),
        ((torch.ones(3), torch.ones(3, 3)), "log_probs"),
        ((X, torch.ones(2, 3)), "advantages"),
        ((X, 0.5), "advantages"),
        ((X, ROWS, MASK[:2]), "mask"),
        ((X, ROWS, MASK.float()), "mask"),
    ],
)
def test_what_would_broadcast_by_mistake_is_refused_by_name(given, named):
    with pytest.raises(ValueError, match=named):
        product(*given)


def test_axes_pass_through_torch_compile():
    compiled = torch.compile(product, fullgraph=True, backend="eager")
    assert torch.equal(compiled(X, ROWS, MASK), X)


def test_sums_and_means_read_what_takes_part_alone():
    x = torch.tensor([[1.0, 2.0, torch.nan], [3.0, torch.inf, -torch.inf], [torch.nan] * 3])
    for reducer, expected, slope in ((masked_sum, [3, 3, 0], 1.0), (masked_mean, [1.5, 3, 0], 0.5)):
        leaf = x.clone().requires_grad_()
        result = reducer(leaf, MASK)
        assert result.tolist() == expected
        result.sum().backward()
        assert leaf.grad.tolist() == [[slope, slope, 0], [1, 0, 0], [0, 0, 0]]


def test_where_finite_gives_nan_and_no_gradient_wherever_one_is_not():
    x = torch.tensor([[1.0, torch.nan, 3.0, 4.0, 5.0]], requires_grad=True)
    y = torch.tensor([[2.0, 1.0, torch.inf, torch.finfo(torch.float32).min, 1e8]])
    result = where_finite(x, y) * y
    assert result.isfinite().tolist() == [[True, False, False, False, True]]
    torch.where(result.isfinite(), result, 0.0).sum().backward()
    assert x.grad.tolist() == [[2, 0, 0, 0, 1e8]]


def test_half_precision_becomes_float32():
    for dtype in (torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.float32):
        assert at_least_float32(torch.ones(1, dtype=dtype)).dtype == torch.float32
        assert masked_sum(torch.ones(3, 3, dtype=dtype), MASK).dtype == torch.float32
        assert where_finite(torch.ones(1, dtype=dtype)).dtype == torch.float32
    assert at_least_float32(torch.ones(1, dtype=torch.float64)).dtype == torch.float64
