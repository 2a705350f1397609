"""Losses at their ends: overflow, bounds, ties, and batches that are empty."""

import math

import pytest
import torch

from rl.equations.losses import (
    clipped_surrogate,
    constant_length_mean,
    dual_clip,
    gmpo,
    likelihood_ratio,
    mean_ratio,
    sequence_mean,
    sequence_ratio,
    sequence_sum,
    token_mean,
)
from rl.equations.preference_losses import dpo_loss


def test_a_huge_log_ratio_stays_finite():
    """exp(200) overflows float32; the loss and its gradient must not."""
    log_probs = torch.tensor([[0.0, -200.0]], requires_grad=True)
    old = torch.tensor([[-200.0, 0.0]])
    for advantage in (1.0, -1.0):
        loss = clipped_surrogate(log_probs, old, torch.tensor([[advantage]]), 0.2, 0.2)
        gradient = torch.autograd.grad(loss.sum(), log_probs)[0]
        assert loss.isfinite().all() and gradient.isfinite().all()
    ratio = likelihood_ratio(log_probs, old)
    torch.testing.assert_close(ratio.log(), torch.tensor([[20.0, -20.0]]))


def test_the_ratio_of_a_response_is_held_within_exp_of_20_too():
    """200 nats away, and as a mean 100: exp(20) or exp(-20), without a gradient."""
    new = torch.tensor([[0.0, 0.0], [-100.0, -100.0]], requires_grad=True)
    old, mask, ones = new.detach().flip(0), torch.ones(2, 2).bool(), torch.ones(2, 1)
    for ratio in (
        sequence_ratio(new, old, mask),
        mean_ratio(new, old, mask),
        -gmpo(new, old, ones, mask, 1e9, 1e9)[:, :1],
    ):
        torch.testing.assert_close(ratio.log(), torch.tensor([[20.0], [-20.0]]))
        assert not torch.autograd.grad(ratio.sum(), new)[0].any()


def test_ratios_of_responses_are_the_product_and_its_root():
    """exp(.5 + .25), and the square root of it: two tokens take part."""
    new, mask = torch.tensor([[0.5, 0.25, torch.nan]]), torch.tensor([[True, True, False]])
    for ratio, power in ((sequence_ratio, 0.75), (mean_ratio, 0.375)):
        assert ratio(new, torch.zeros(1, 3), mask).tolist() == [[pytest.approx(math.exp(power))]]


def test_the_dual_clip_leaves_a_positive_advantage_alone():
    """-c A = -3 would be the smaller number."""
    assert dual_clip(torch.tensor([[-2.0]]), torch.ones(1, 1), 3.0).item() == -2


def test_an_empty_batch_costs_zero():
    no_rows = torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.bool)
    for reducer in (token_mean, sequence_mean, sequence_sum):
        assert reducer(*no_rows).item() == 0
        assert reducer(torch.ones(2, 3), torch.zeros(2, 3).bool(), denominator=0).item() == 0
    assert constant_length_mean(*no_rows, 4).item() == 0
    empty = torch.zeros(0)
    assert dpo_loss(empty, empty, empty, empty, 0.1).sum() == 0
