"""Precision and range: half-precision inputs, and log-ratios that float32 can hardly hold."""

from __future__ import annotations

import pytest
import torch
from toys import float64 as f

from reward_model.loss import bradley_terry_loss
from rl.equations.kl import k3_importance
from rl.equations.losses import dual_clip, mixed_sampling_weights


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
