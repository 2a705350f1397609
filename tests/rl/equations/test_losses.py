"""Losses at their ends: overflow, bounds, ties, and batches that are empty."""

import math

import pytest
import torch

from rl.equations.losses import (
    clipped_surrogate,
    constant_length_mean,
    high_entropy_mask,
    likelihood_ratio,
    mean_ratio,
    off_policy_sequence_mask,
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


def test_ratios_of_responses_are_the_product_and_its_root():
    """exp(.5 + .25), and the square root of it: two tokens take part."""
    new, mask = torch.tensor([[0.5, 0.25, torch.nan]]), torch.tensor([[True, True, False]])
    for ratio, power in ((sequence_ratio, 0.75), (mean_ratio, 0.375)):
        assert ratio(new, torch.zeros(1, 3), mask).tolist() == [[pytest.approx(math.exp(power))]]


def test_an_empty_batch_costs_zero():
    no_rows = torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.bool)
    for reducer in (token_mean, sequence_mean, sequence_sum):
        assert reducer(*no_rows).item() == 0
        assert reducer(torch.ones(2, 3), torch.zeros(2, 3).bool(), denominator=0).item() == 0
    assert constant_length_mean(*no_rows, 4).item() == 0
    empty = torch.zeros(0)
    assert dpo_loss(empty, empty, empty, empty, 0.1).sum() == 0


def test_the_off_policy_mask_drops_a_bad_response_only_once_it_has_drifted_past_the_threshold():
    """Good and drifted stays, bad and near stays, bad and at the threshold stays."""
    old = torch.zeros(4, 2)
    new = torch.tensor([[-2.0, -2.0], [-0.25, -0.25], [-1.0, -0.0], [-1.5, -0.0]])
    advantages = torch.tensor([[1.0], [-1.0], [-1.0], [-1.0]])
    keep = off_policy_sequence_mask(new, old, advantages, torch.ones(4, 2, dtype=torch.bool), 0.5)
    assert keep.tolist() == [[True], [True], [True], [False]]


def test_the_high_entropy_mask_takes_the_share_of_valid_tokens_and_all_ties():
    entropy = torch.tensor([[3.0, 1.0, 9.0], [2.0, 3.0, 0.5]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    kept = high_entropy_mask(entropy, mask, 0.2)  # ceil(0.2 * 5) = 1, and what ties with it
    assert kept.tolist() == [[True, False, False], [False, True, False]]
    assert high_entropy_mask(entropy, mask, 1.0).equal(mask)
    assert not high_entropy_mask(entropy, torch.zeros_like(mask), 0.5).any()
    thirty = torch.arange(30.0).view(5, 6)  # 0.1 of them are three, though 0.1 * 30 is above 3
    for share, least in ((0.1, 27), (0.001, 29)):
        assert high_entropy_mask(thirty, thirty >= 0, share).equal(thirty >= least)
