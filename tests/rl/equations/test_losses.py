"""Losses and estimators of the KL at their ends: overflow, bounds, ties, empty batches, clips."""

from __future__ import annotations

import math

import pytest
import torch
from toys import float64 as f

from gpt.log_probs import kl_from_logits
from reward_model.loss import bradley_terry_loss
from rl.equations.kl import k3, k3_importance, rho_minus_log
from rl.equations.losses import (
    clip_acted,
    clipped_surrogate,
    constant_length_mean,
    dual_clip,
    gmpo,
    gspo,
    likelihood_ratio,
    mean_ratio,
    mixed_sampling_weights,
    sequence_clipped_surrogate,
    sequence_mean,
    sequence_ratio,
    sequence_sum,
    token_mean,
    value_loss,
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


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_full_kl():
    logits, ref_logits = draw(2, 3, 5, seed=7).requires_grad_(), draw(2, 3, 5, seed=8)
    assert torch.autograd.gradcheck(lambda x: kl_from_logits(x, ref_logits), logits, atol=1e-7)


@pytest.mark.parametrize(
    ("ratio", "advantage", "slope"),
    [(0.5, 1, -0.5), (1.5, 1, 0), (0.5, -1, 0), (1.5, -1, 1.5), (1.0, 1, -1), (1.0, -1, 1)],
)
def test_the_clip_stops_the_gradient_only_on_the_bad_side(ratio, advantage, slope):
    """Clipping without the min would also stop (0.5, +1) and (1.5, -1), the way back."""
    log_probs = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    old = torch.zeros(1, 1, dtype=torch.float64)
    A, mask = torch.tensor([[float(advantage)]]), old == 0
    for loss, of in (
        (clipped_surrogate(log_probs, old, A, 0.2, 0.2), likelihood_ratio(log_probs, old)),
        (
            sequence_clipped_surrogate(log_probs, old, A, mask, 0.2, 0.2),
            sequence_ratio(log_probs, old, mask),
        ),
        (gspo(log_probs, old, A, mask, 0.2, 0.2), mean_ratio(log_probs, old, mask)),
    ):
        assert torch.autograd.grad(loss.sum(), log_probs)[0].item() == pytest.approx(slope)
        assert clip_acted(of, A, 0.2, 0.2).item() == (slope == 0)


def test_value_clip_stops_the_gradient_only_away_from_the_old_value():
    """The value has already moved by more than the range towards the return: no further pull."""
    values = torch.tensor([[1.0, 0.0]], requires_grad=True)
    old, returns = torch.full((1, 2), 0.5), torch.full((1, 2), 2.0)
    value_loss(values, old, returns, 0.2).sum().backward()
    assert values.grad.tolist() == [[0, pytest.approx(-2)]]


def test_k3_keeps_its_pull_far_below_and_stays_finite_far_above():
    """delta = -50 is worth 49 with slope 1; a result clamped at 10 would have no slope at all."""
    log_probs = torch.tensor([[0.0, -200.0]], requires_grad=True)
    ref = torch.tensor([[-50.0, 0.0]])
    value = k3(log_probs, ref)
    assert value[0, 0].item() == pytest.approx(49)
    gradient = torch.autograd.grad(value.sum(), log_probs)[0]
    assert gradient[0, 0].item() == pytest.approx(1)
    assert value.isfinite().all() and gradient.isfinite().all()


def test_rho_minus_log_is_the_kl_from_the_old_policy():
    """KL(old || new) = 0.193794 in value, and in gradient: pi - pi_old. Listed symbol by symbol."""
    before = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    logits = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log().requires_grad_()
    penalties = rho_minus_log(logits.log_softmax(-1)[:, None], before.log()[:, None])
    value = (before[:, None] * penalties).sum()
    (gradient,) = torch.autograd.grad(value, logits)
    assert value.item() == pytest.approx(0.193794, abs=1e-6)
    assert gradient.tolist() == pytest.approx([0.3, -0.2, -0.1])


def test_dual_clip_multiplies_a_half_precision_advantage_in_float32() -> None:
    """3 * 1.0078125 is 3.0234375, which bfloat16 would round to 3.03125."""
    advantages = torch.tensor([[-1.0078125]], dtype=torch.bfloat16)
    assert dual_clip(torch.tensor([[9.0]]), advantages, 3.0).item() == 3.0234375


@pytest.mark.parametrize("delta", [0.5, 1.5, 5.0, 15.0, 19.9])
def test_the_gradient_of_k3_importance_is_exact_in_float32(delta: float) -> None:
    """-ratio delta, to 1e-5, and the value e^(ref - old) - ratio (1 + delta)."""
    new = torch.tensor([[-0.75 - delta]], requires_grad=True)
    old, ref = torch.tensor([[-0.5 - delta]]), torch.tensor([[-0.75]])
    value = k3_importance(new, old, ref)
    value.backward()
    ratio, exact = f(-0.25).exp(), (f(ref.item()) - f(new.item()))
    assert new.grad.item() == pytest.approx(-(ratio * exact).item(), rel=1e-5)
    by_hand = (f(ref.item()) - f(old.item())).exp() - ratio * (1 + exact)
    assert value.item() == pytest.approx(by_hand.item(), rel=1e-5)


@pytest.mark.parametrize(("alpha", "weight"), [(0.0, 1.0), (0.2, 0.0)])
def test_the_weights_of_a_mixture_are_finite_however_far_the_teacher_is(alpha, weight) -> None:
    """The teacher is 200 nats above: e^200 is no float32."""
    student, teacher = torch.tensor([[-200.0]]), torch.zeros(1, 1)
    given = mixed_sampling_weights(student, teacher, torch.ones(1, 1, dtype=torch.bool), alpha)
    assert given.item() == pytest.approx(weight, abs=1e-30)


def test_half_precision_weights_of_pairs_are_summed_in_float32() -> None:
    """In bfloat16 257 is no number: 257 weights of 1 would add up to 256."""
    scores = torch.zeros(257)
    weights = torch.ones(257, dtype=torch.bfloat16)
    assert bradley_terry_loss(scores, scores, weights=weights).item() == pytest.approx(0.693147181)
