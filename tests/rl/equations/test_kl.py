"""k3 far away, the rules for a KL coefficient, and which estimator may stand where."""

import math

import pytest
import torch

from rl.equations.kl import (
    AdaptiveKL,
    FixedKL,
    k2,
    k3,
    loss_estimator,
    rho_minus_log,
)


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


def test_rho_minus_log_in_float32_and_at_the_edges():
    """A tiny drift keeps its digits; fill values give NaN and no gradient; nothing overflows."""
    tiny = rho_minus_log(torch.full((1, 1), 1e-4), torch.zeros(1, 1))
    assert float(tiny) == pytest.approx(5.0e-9, rel=0.02)
    log_probs = torch.tensor([[torch.nan, -torch.inf, 90.0, -90.0]], requires_grad=True)
    value = rho_minus_log(log_probs, torch.zeros(1, 4))
    assert value[0, :2].isnan().all() and value[0, 2:].isfinite().all()
    assert value[0, 3].item() == pytest.approx(89.0)
    (gradient,) = torch.autograd.grad(value[0, 2:].sum(), log_probs)
    assert gradient[0, 3] == -1 and gradient.isfinite().all()


# --- coefficients -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("controller", "fresh"),
    [
        (FixedKL(0.1), FixedKL(0.7)),
        (AdaptiveKL(0.1, 6, 100), AdaptiveKL(0.7, 6, 100)),
    ],
)
def test_state_round_trip(controller, fresh):
    """A resumed run goes on with the coefficient it had reached, and then moves alike."""
    before = controller.coef
    controller.update(60.0, 10)
    assert (controller.coef > before) != isinstance(controller, FixedKL)
    state = controller.state_dict()
    assert all(type(value) is float for value in state.values())
    fresh.load_state_dict(state)
    for _ in range(3):
        controller.update(1.0, 10)
        fresh.update(1.0, 10)
    assert fresh.coef == controller.coef
    with pytest.raises(ValueError, match="KL state"):
        fresh.load_state_dict({})


def test_senseless_settings_and_measurements_are_refused():
    for make in (
        lambda: FixedKL(-0.1),
        lambda: FixedKL(math.nan),
        lambda: AdaptiveKL(0.0, 6, 100),
        lambda: AdaptiveKL(0.2, 0, 100),
        lambda: AdaptiveKL(0.2, 6, 0),
    ):
        with pytest.raises(ValueError, match="coef"):
            make()
    for controller in (FixedKL(0.2), AdaptiveKL(0.2, 6, 100)):
        for kl_per_response, responses in ((math.nan, 8), (math.inf, 8), (1.0, 0)):
            with pytest.raises(ValueError, match="finite KL of at least one response"):
                controller.update(kl_per_response, responses)
    with pytest.raises(ValueError, match="could reach 0"):
        AdaptiveKL(0.2, 6, 10).update(0.0, 50)


def test_k1_is_refused_as_a_loss():
    with pytest.raises(ValueError, match="regularises nothing"):
        loss_estimator("k1")
    with pytest.raises(ValueError, match="k2 or k3"):
        loss_estimator("absolute")
    assert (loss_estimator("k2"), loss_estimator("k3")) == (k2, k3)
