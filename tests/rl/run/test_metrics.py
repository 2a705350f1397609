"""Logged numbers against arithmetic on paper."""

from __future__ import annotations

import math

import pytest
import torch

from data.collate import ResponseBatch, join_responses
from gpt.log_probs import TokenScores
from rl.batches.rollout import Rollout
from rl.run.metrics import UpdateMeter, clip_mask, exceeds, explained_variance, rollout_metrics

# Two groups of two; lengths 2, 3, 1, 2; the second row was cut off.
LENGTHS = torch.tensor([2, 3, 1, 2])
MASK = torch.arange(3) < LENGTHS[:, None]
HAS_EOS = torch.tensor([True, False, True, True])


def rollout(group_size: int = 2) -> Rollout:
    tokens = torch.ones(4, 3, dtype=torch.long)
    return Rollout(
        records=[None] * 4,
        responses=["text"] * 4,
        sequences=join_responses([[1]] * 4, tokens, MASK, HAS_EOS),
        log_probs=torch.zeros(4, 3),
        group_size=group_size,
    )


# The rollout


def test_rewards_lengths_and_eos():
    metrics = rollout_metrics(rollout(), torch.tensor([1.0, 1, 2, 4]), torch.zeros(4, 3), None)
    assert metrics == pytest.approx(
        {
            "reward": 2.0,
            "reward_std": math.sqrt((1 + 1 + 0 + 4) / 3),
            "response_length": 2.0,
            "eos_rate": 0.75,
            "distinct_responses": 0.25,  # four texts that are one
            "zero_spread_groups": 0.5,  # the first group's rewards are equal
        }
    )


def test_kl_is_summed_over_a_response_and_averaged_over_responses():
    """log pi - log pi_ref is 0.5 at each valid token: 0.5 * (2 + 3 + 1 + 2) / 4 = 1 nat.

    Padding holds garbage that no sum may see.
    """
    old = torch.where(MASK, -1.0, 77.0)
    reference = torch.where(MASK, -1.5, -999.0)
    metrics = rollout_metrics(rollout(), torch.zeros(4), old, reference)
    assert metrics["kl"] == pytest.approx(1.0)
    assert metrics["kl_k3"] == pytest.approx(2 * (math.exp(-0.5) + 0.5 - 1), rel=1e-5)


# The updates


def scores(ratios: list[list[float]], entropy: list[list[float]]) -> TokenScores:
    return TokenScores(torch.tensor(ratios).log(), torch.tensor(entropy))


def batch(mask: torch.Tensor) -> ResponseBatch:
    rows = [[1]] * len(mask)
    return join_responses(rows, torch.zeros_like(mask).long(), mask, mask.any(1))


def test_update_metrics_are_means_over_tokens():
    """Five valid tokens in two micro-batches of 4 and 1 token: no mean of means."""
    meter = UpdateMeter(clip_mask(0.2))
    mask = torch.tensor([[True, True, False], [True, True, False]])
    meter.add_tokens(
        scores([[1.0, 1.5, 9], [0.5, 1, 9]], [[1.0, 2, 77], [3, 4, 77]]),
        torch.zeros(2, 3),
        torch.tensor([[1.0], [-1.0]]),
        batch(mask),
    )
    meter.add_tokens(
        scores([[2.0]], [[10.0]]), torch.zeros(1, 1), torch.tensor([[1.0]]),
        batch(torch.tensor([[True]])),
    )  # fmt: skip
    approx_kl = sum(r - 1 - math.log(r) for r in (1, 1.5, 0.5, 1, 2)) / 5
    assert meter.approx_kl == pytest.approx(approx_kl, rel=1e-5)  # of both micro-batches
    meter.add_update(torch.tensor(3.0), torch.tensor(0.5))
    meter.add_update(torch.tensor(1.0), torch.tensor(1.5))
    assert meter.metrics() == pytest.approx(
        {
            "clip_high_fraction": 2 / 5,  # A > 0: the ratios 1.5 and 2
            "clip_low_fraction": 1 / 5,  # A < 0: 0.5
            "entropy": 20 / 5,
            "approx_kl": approx_kl,
            "loss": 2.0,
            "grad_norm": 1.0,
            "ratio_error_at_start": 1.0,  # the ratio of 2, in the second micro-batch
        },
        rel=1e-5,
    )


def test_the_kl_of_a_minibatch_is_over_its_own_tokens():
    """Three tokens of an update before do not thin out the two that follow it: (0 + 1 - log 2) / 2."""
    meter = UpdateMeter()
    for ratios in ([1.5, 1.5, 1.5], [1.0, 2.0]):
        meter.add_update(torch.tensor(0.0), torch.tensor(1.0))
        mask = torch.ones(1, len(ratios), dtype=torch.bool)
        given = torch.zeros(mask.shape), torch.ones(1, 1), batch(mask)
        meter.add_tokens(scores([ratios], [[0.0] * len(ratios)]), *given)
    assert meter.approx_kl == pytest.approx((1 - math.log(2)) / 2, rel=1e-5)
    assert (
        meter.metrics()["ratio_error_at_start"] == 0
    )  # ratios after an update are none at the start


# A KL that no float holds


def meter_of(log_ratios: list[float]) -> UpdateMeter:
    meter, count = UpdateMeter(), len(log_ratios)
    mask = torch.ones(1, count, dtype=torch.bool)
    meter.add_tokens(
        TokenScores(torch.tensor([log_ratios]), torch.zeros(1, count)), torch.zeros(1, count),
        torch.ones(1, 1), batch(mask),
    )  # fmt: skip
    return meter


@pytest.mark.parametrize("log_ratio", [89.0, 500.0, -500.0])
def test_a_huge_log_ratio_is_a_kl_above_every_limit(log_ratio):
    """exp(89) is infinite in float32: inf - 1 - inf is NaN, and NaN > limit is False."""
    meter = meter_of([0.0, log_ratio])
    assert meter.moved_beyond(100.0) and not meter.moved_beyond(None)
    assert math.isfinite(meter.approx_kl) and math.isfinite(meter.metrics()["approx_kl"])
    assert math.isfinite(meter.metrics()["ratio_error_at_start"])


@pytest.mark.parametrize("log_prob", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_above_every_limit(log_prob):
    assert meter_of([0.0, log_prob]).moved_beyond(100.0)
    assert math.isnan(meter_of([0.0, log_prob]).metrics()["ratio_error_at_start"])
    assert exceeds(math.nan, 5.0) and exceeds(log_prob, 5.0) == (log_prob != -math.inf)


# The critic


def test_explained_variance_of_constants_of_truth_and_of_padding():
    """Any constant scores 0, the truth 1, an error twice as wide -3; nothing to explain: no number."""
    returns, mask = torch.tensor([[0.0, 1.0, 2.0, 3.0]]), torch.ones(1, 4, dtype=torch.bool)
    for values, expected in ((torch.full((1, 4), 7.0), 0), (returns, 1), (-returns, -3)):
        found = explained_variance(values, returns, mask)["explained_variance"]
        assert found == pytest.approx(expected, abs=1e-6)
    assert explained_variance(returns, torch.ones(1, 4), mask) == {}
    assert explained_variance(returns, returns, torch.arange(4)[None] < 1) == {}
