"""KL estimators at single points, and the rules for their coefficient."""

import math

import pytest
import torch

from gpt.log_probs import kl_from_logits
from rl.equations.kl import (
    AdaptiveKL,
    DoublingKL,
    FixedKL,
    absolute,
    k1,
    k1_importance,
    k2,
    k3,
    k3_importance,
    loss_estimator,
    reward_penalty,
)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


ESTIMATORS = [k1, k2, k3, absolute]


def test_every_estimator_is_zero_at_the_reference():
    log_probs = torch.randn(3, 4)
    for estimator in ESTIMATORS:
        assert not estimator(log_probs, log_probs).any()
    assert not kl_from_logits(torch.randn(2, 3, 5), torch.zeros(2, 3, 5)).eq(0).any()
    logits = torch.randn(2, 3, 5)
    assert not kl_from_logits(logits, logits).any()


def test_estimators_point_by_point():
    """Against math.*, and the direction: a token the policy prefers has a positive k1."""
    log_probs, ref = torch.randn(2, 3, 4, dtype=torch.float64)
    for i in range(3):
        for t in range(4):
            delta = (ref[i, t] - log_probs[i, t]).item()
            assert k1(log_probs, ref)[i, t].item() == pytest.approx(-delta)
            assert k2(log_probs, ref)[i, t].item() == pytest.approx(delta**2 / 2)
            assert k3(log_probs, ref)[i, t].item() == pytest.approx(math.exp(delta) - delta - 1)
            assert absolute(log_probs, ref)[i, t].item() == pytest.approx(abs(delta))
    assert k1(torch.tensor([[-1.0]]), torch.tensor([[-3.0]])).item() == 2


def test_importance_forms_are_the_ratio_times_the_estimator():
    log_probs, old, ref = torch.randn(3, 3, 4, dtype=torch.float64)
    ratio = (log_probs - old).exp()
    torch.testing.assert_close(k1_importance(log_probs, old, ref), ratio * k1(log_probs, ref))
    torch.testing.assert_close(k3_importance(log_probs, old, ref), ratio * k3(log_probs, ref))
    torch.testing.assert_close(k3_importance(log_probs, log_probs, ref), k3(log_probs, ref))


def test_full_kl_against_torch_distributions():
    logits, ref_logits = torch.randn(2, 2, 3, 5, dtype=torch.float64)
    expected = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=logits),
        torch.distributions.Categorical(logits=ref_logits),
    )
    torch.testing.assert_close(kl_from_logits(logits, ref_logits), expected)


def test_k3_keeps_its_pull_far_below_and_stays_finite_far_above():
    """delta = -50 is worth 49 with slope 1; a result clamped at 10 would have no slope at all."""
    log_probs = torch.tensor([[0.0, -200.0]], requires_grad=True)
    ref = torch.tensor([[-50.0, 0.0]])
    value = k3(log_probs, ref)
    assert value[0, 0].item() == pytest.approx(49)
    gradient = torch.autograd.grad(value.sum(), log_probs)[0]
    assert gradient[0, 0].item() == pytest.approx(1)
    assert value.isfinite().all() and gradient.isfinite().all()


def test_half_precision_is_compared_in_float32():
    half = torch.randn(2, 3).bfloat16()
    for estimator in ESTIMATORS:
        assert estimator(half, half).dtype == torch.float32
        assert estimator(half.double(), half.double()).dtype == torch.float64
    assert k3_importance(half, half, half).dtype == torch.float32


def test_wrong_shapes_are_refused():
    x = torch.zeros(2, 3)
    for estimator in ESTIMATORS:
        with pytest.raises(ValueError, match="one size per axis"):
            estimator(x, x[:, :1])
        with pytest.raises(ValueError, match="one size per axis"):
            estimator(x[0], x[0])
    with pytest.raises(ValueError, match="one size per axis"):
        k3_importance(x, x, x[:, :1])


# --- coefficients -----------------------------------------------------------------------------


def test_fixed_coefficient_never_moves():
    controller = FixedKL(0.05)
    controller.update(100.0, 8)
    assert controller.coef == 0.05


def test_adaptive_coefficient_settles_where_the_kl_meets_its_target():
    """A toy policy whose KL is 1/coef: the fixed point of the rule is coef = 1/target."""
    controller = AdaptiveKL(coef=5.0, target=4.0, horizon=100)
    for _ in range(2000):
        controller.update(1 / controller.coef, 10)
    assert controller.coef == pytest.approx(0.25, rel=1e-3)


@pytest.mark.parametrize("controller", [AdaptiveKL(0.2, 6, 100), DoublingKL(0.2, 6)])
def test_too_much_kl_raises_the_coefficient_and_too_little_lowers_it(controller):
    before = controller.coef
    controller.update(60.0, 10)
    raised = controller.coef
    assert raised > before
    controller.update(0.0, 10)
    assert 0 < controller.coef < raised


@pytest.mark.parametrize(
    ("controller", "fresh"),
    [
        (FixedKL(0.1), FixedKL(0.7)),
        (AdaptiveKL(0.1, 6, 100), AdaptiveKL(0.7, 6, 100)),
        (DoublingKL(0.1, 6), DoublingKL(0.7, 6)),
    ],
)
def test_state_round_trip(controller, fresh):
    """A resumed run goes on with the coefficient it had reached, and then moves alike."""
    controller.update(60.0, 10)
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
        lambda: DoublingKL(0.2, -1),
        lambda: DoublingKL(0.2, 0),
        lambda: DoublingKL(0.0, 6),
    ):
        with pytest.raises(ValueError, match="coef"):
            make()
    for controller in (FixedKL(0.2), AdaptiveKL(0.2, 6, 100), DoublingKL(0.2, 6)):
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


def test_penalties_in_the_reward_by_name():
    names = {"k1": k1, "absolute": absolute, "squared": k2}
    assert {name: reward_penalty(name) for name in names} == names
    for name in ("k3", "k2", "full"):
        with pytest.raises(ValueError, match="k1, absolute, squared"):
            reward_penalty(name)
