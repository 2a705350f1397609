"""k3 far away, another policy as the reference, and which estimator may stand where."""

import pytest
import torch

from rl.equations.kl import k2, k3, loss_estimator, rho_minus_log


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


# --- coefficients -----------------------------------------------------------------------------


def test_k1_is_refused_as_a_loss():
    with pytest.raises(ValueError):
        loss_estimator("k1")
    with pytest.raises(ValueError):
        loss_estimator("absolute")
    assert (loss_estimator("k2"), loss_estimator("k3")) == (k2, k3)
