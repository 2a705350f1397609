"""What corrects for another sampler: worked numbers, and every answer of a small language listed."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import test_enumeration as enumeration
import torch
from test_enumeration import OLD as MU
from test_enumeration import THETA, token_log_probs
from torch import Tensor

from rl.equations.losses import clipped_surrogate
from rl.equations.sampler_correction import (
    CORRECTIONS,
    Correction,
    Name,
    binary_kl,
    binary_tv,
    dppo,
    dppo_left_out,
    effective_share,
    sampler_weights,
)

OVER_MU = torch.tensor([[0.4, 1.5, 3.0, 9], [0.6, 1.9, 9, 9]], dtype=torch.float64)  # pi_old / mu
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]).bool()
OLD = torch.full((2, 4), -2.0, dtype=torch.float64)
WEIGHTED = [name for name, row in CORRECTIONS.items() if row.of is not None]


def test_the_names_of_the_flag_are_the_rows_of_the_table():
    assert list(CORRECTIONS) == list(get_args(Name))


# Worked numbers


@pytest.mark.parametrize(
    ("of", "limit", "floor", "cap", "first", "second"),
    [
        ("token", "all", 0.5, 2.0, [0.4, 1.5, 3], [0.6, 1.9]),
        ("token", "truncate", 0.5, 2.0, [0.4, 1.5, 2], [0.6, 1.9]),
        ("token", "mask", 0.5, 2.0, [0, 1.5, 0], [0.6, 1.9]),
        ("sequence", "all", 0.5, 2.0, [1.8] * 3, [1.14] * 2),  # the products
        ("sequence", "truncate", 0.5, 1.7, [1.7] * 3, [1.14] * 2),
        ("sequence", "mask", 0.5, 1.7, [0] * 3, [1.14] * 2),
        ("sequence", "mask", 1.9, 9.0, [0] * 3, [0] * 2),
        ("geometric", "all", 0.5, 2.0, [1.21644] * 3, [1.067708] * 2),  # the geometric means
        ("geometric", "truncate", 0.5, 1.2, [1.2] * 3, [1.067708] * 2),
        ("geometric", "mask", 0.5, 1.2, [0] * 3, [1.067708] * 2),
        ("geometric", "mask", 1.1, 1.3, [1.21644] * 3, [0] * 2),
    ],
)
def test_weights(of, limit, floor, cap, first, second):
    """Padding weighs 0."""
    found = sampler_weights(OLD, OLD - OVER_MU.log(), MASK, of, limit, floor, cap)
    expected = torch.tensor([[*first, 0], [*second, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", WEIGHTED)
def test_where_mu_is_the_old_policy_every_weight_is_one_to_the_last_bit(name):
    old = -torch.rand(5, 7, generator=torch.Generator().manual_seed(0)) * 9
    mask, row = torch.arange(7) < torch.tensor([[7], [5], [1], [3], [0]]), CORRECTIONS[name]
    found = sampler_weights(old, old.clone(), mask, row.of, row.limit, 0.5, 2.0)
    assert torch.equal(found, mask.float())


def test_effective_share():
    """(1 + 2 + 3)^2 / (3 * 14); equal weights count whatever they are."""
    assert effective_share(torch.tensor([1.0, 2, 3])).item() == pytest.approx(36 / 42)
    assert effective_share(torch.full((5,), 0.3)).item() == pytest.approx(1)
    assert effective_share(torch.tensor([1.0, 0, 0, 0])).item() == pytest.approx(0.25)


def test_binary_divergences():
    """mu 0.5 against pi 0.8 and back, and a rare token whose ratio of 10 is a small step."""
    pi, mu = torch.tensor([[0.8, 0.5, 0.01]]).log(), torch.tensor([[0.5, 0.8, 0.001]]).log()
    assert binary_tv(pi, mu)[0].tolist() == pytest.approx([0.3, 0.3, 0.009], abs=1e-6)
    by_hand = [
        0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(0.5 / 0.2),
        0.8 * math.log(0.8 / 0.5) + 0.2 * math.log(0.2 / 0.5),
        0.001 * math.log(0.1) + 0.999 * math.log(0.999 / 0.99),
    ]
    assert by_hand[:2] == pytest.approx([0.223144, 0.192745], abs=1e-6)
    assert binary_kl(pi, mu)[0].tolist() == pytest.approx(by_hand, abs=1e-6)
    certain = binary_kl(torch.zeros(1, 1), torch.tensor([[-0.1]]))  # pi = 1
    assert certain.isfinite().all()


def test_dppo():
    """By hand, A = 1 and -1: kept where it moves back or not too far; the ratio is bounded by 20."""
    pi = torch.tensor([[0.8, 0.5, 0.5], [0.8, 0.2, 0.5]], dtype=torch.float64)
    mu = torch.tensor([[0.5, 0.8, 0.02], [0.5, 0.5, 0.5]], dtype=torch.float64)
    advantages = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    left_out = [[True, False, True], [False, True, False]]
    log_probs = pi.log().requires_grad_()
    given = (mu.log(), advantages, "tv", 0.2)
    assert dppo_left_out(log_probs, *given).tolist() == left_out
    loss = dppo(log_probs, *given)
    (gradient,) = torch.autograd.grad(loss.sum(), log_probs)
    torch.testing.assert_close(
        gradient, torch.tensor([[0, -0.625, 0], [1.6, 0, 1.0]], dtype=torch.float64)
    )
    assert loss[0, 1].item() == pytest.approx(-0.625 * math.log(0.5))
    (bounded,) = torch.autograd.grad(
        dppo(log_probs, mu.log(), advantages, "tv", 1.0).sum(), log_probs
    )
    assert bounded[0, 2].item() == pytest.approx(-20)
    border = binary_kl(log_probs, mu.log())[0, 0].item()  # 0.223, which is kept itself
    for delta, kept in ((0.25, True), (border, True), (0.2, False)):
        found = dppo_left_out(log_probs, mu.log(), advantages, "kl", delta)
        assert bool(found[0, 0]) is not kept


# Every answer listed: of the language of test_enumeration.py, drawn from another policy, mu

DELTA = {"tv": 0.2, "kl": 0.05}
EXACT = -enumeration.gradient(enumeration.expected_reward)


def off_by(row: Correction, sampler: Tensor = MU, floor: float = 0.5, cap: float = 2.0) -> float:
    """How far a correction's expected gradient at pi = pi_old is from the policy gradient."""
    old, drew = token_log_probs(THETA), token_log_probs(sampler)
    A = enumeration.REWARDS[:, None]

    def token_loss(log_probs: Tensor) -> Tensor:
        if row.divergence is not None:
            return dppo(log_probs, drew, A, row.divergence, DELTA[row.divergence])
        anchor = drew if row.against == "sampler" else old
        loss = clipped_surrogate(log_probs, anchor, A, 0.2, 0.2)
        if row.of is None:
            return loss
        return loss * sampler_weights(old, drew, enumeration.MASK, row.of, row.limit, floor, cap)

    found = enumeration.expected_gradient(token_loss, sampler=sampler)
    return float((found - EXACT).norm() / EXACT.norm())


def test_the_whole_ratio_of_a_response_is_unbiased():
    """E_mu[pi(y) / mu(y) R grad log pi(y)] is the gradient under pi; wide bounds change nothing."""
    assert off_by(Correction("", "sequence", "all")) < 1e-12
    for name in ("sequence_tis", "sequence_mask"):
        assert off_by(CORRECTIONS[name], floor=0.0, cap=math.inf) < 1e-12


@pytest.mark.parametrize("name", CORRECTIONS)
def test_no_row_of_the_table_is_unbiased(name):
    """Where mu is not pi. Where it is, each is the policy gradient."""
    assert off_by(CORRECTIONS[name]) > 0.01
    assert off_by(CORRECTIONS[name], sampler=THETA) < 1e-12
