"""Gradients: float64 finite differences, the clip's table, and garbage behind a response's end."""

import math

import pytest
import torch

from gpt.log_probs import kl_from_logits
from rl.equations.kl import absolute, k1, k1_importance, k2, k3, k3_importance
from rl.equations.losses import (
    cispo,
    clip_acted,
    clipped_surrogate,
    constant_length_mean,
    dual_clip,
    gspo,
    gspo_token,
    likelihood_ratio,
    mean_ratio,
    policy_gradient,
    row_means,
    row_sums,
    sapo,
    sequence_clipped_surrogate,
    sequence_mean,
    sequence_ratio,
    sequence_sum,
    token_mean,
    value_loss,
)
from rl.equations.preferences import dpo_loss, hinge_loss, ipo_loss, simpo_loss

N, T, V = 3, 4, 5
MASK = torch.arange(T) < torch.tensor([4, 2, 0])[:, None]  # the last row is empty


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Away from every kink: ratios far from the clip ranges, no sampled zero.
LOG_PROBS, OLD, REF = (0.7 * draw(N, T, seed=seed) - 1 for seed in (1, 2, 3))
ADVANTAGES, ROW_ADVANTAGES = draw(N, T, seed=4), draw(N, 1, seed=5)

TOKEN_LOSSES = {
    "policy_gradient": lambda x, y, a: policy_gradient(x, a),
    "clipped_surrogate": lambda x, y, a: clipped_surrogate(x, y, a, 0.2, 0.28),
    "dual_clip": lambda x, y, a: dual_clip(clipped_surrogate(x, y, a, 0.2, 0.28), a, 1.6),
    "sapo": lambda x, y, a: sapo(x, y, a),
    "cispo": lambda x, y, a: cispo(x, y, a, 0.28),
    "value_loss": lambda x, y, a: value_loss(x, y, a),
    "clipped_value_loss": lambda x, y, a: value_loss(x, y, a, 0.2),
    "k1": lambda x, y, a: k1(x, y),
    "k2": lambda x, y, a: k2(x, y),
    "k3": lambda x, y, a: k3(x, y),
    "absolute": lambda x, y, a: absolute(x, y),
    "k1_importance": lambda x, y, a: k1_importance(x, y, a),
    "k3_importance": lambda x, y, a: k3_importance(x, y, a),
}
STOPPED = {"cispo"}  # its weight is a constant, so finite differences measure something else
SEQUENCE_LOSSES = {
    "sequence_clipped_surrogate": sequence_clipped_surrogate,
    "gspo": gspo,
    "gspo_token": gspo_token,
}
REDUCERS = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "sequence_sum": sequence_sum,
    "constant_length_mean": lambda loss, mask: constant_length_mean(loss, mask, 6),
    "row_sums": lambda loss, mask: row_sums(loss, mask).sum(),
    "row_means": lambda loss, mask: row_means(loss, mask).sum(),
}


def finite_differences(function, *inputs):
    assert torch.autograd.gradcheck(
        function, tuple(x.clone().requires_grad_() for x in inputs), atol=1e-7, rtol=1e-5
    )


# --- finite differences -----------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(TOKEN_LOSSES.keys() - STOPPED))
def test_token_losses(name):
    finite_differences(lambda x: TOKEN_LOSSES[name](x, OLD, ADVANTAGES), LOG_PROBS)


@pytest.mark.parametrize("name", SEQUENCE_LOSSES)
def test_sequence_losses_under_the_sequence_mean(name):
    """Reduced, because GSPO-token's stop-gradient is exact only for the mean over the row."""

    def loss(log_probs):
        token_loss = SEQUENCE_LOSSES[name](log_probs, OLD, ROW_ADVANTAGES, MASK, 0.1, 0.1)
        return sequence_mean(token_loss, MASK)

    finite_differences(loss, LOG_PROBS)


@pytest.mark.parametrize("name", REDUCERS)
def test_reducers(name):
    finite_differences(lambda x: REDUCERS[name](x, MASK), LOG_PROBS)


def test_preference_losses():
    chosen, rejected, ref_chosen, ref_rejected = draw(4, 6, seed=6)
    for smoothing in (0.0, 0.2):
        finite_differences(
            lambda c, r, s=smoothing: dpo_loss(
                c, r, ref_chosen, ref_rejected, 0.3, label_smoothing=s
            ),
            chosen,
            rejected,
        )
    finite_differences(lambda c, r: ipo_loss(c, r, ref_chosen, ref_rejected, 0.3), chosen, rejected)


def test_full_kl():
    finite_differences(lambda x: kl_from_logits(x, draw(2, 3, V, seed=8)), draw(2, 3, V, seed=7))


def test_cispo_is_reinforce_with_a_constant_weight():
    """The same gradient as policy_gradient with min(ratio, 1.28) * A for advantages."""
    weight = (LOG_PROBS - OLD).exp().clamp(max=1.28)
    log_probs = LOG_PROBS.clone().requires_grad_()
    actual = torch.autograd.grad(cispo(log_probs, OLD, ADVANTAGES, 0.28).sum(), log_probs)
    expected = torch.autograd.grad(policy_gradient(log_probs, weight * ADVANTAGES).sum(), log_probs)
    torch.testing.assert_close(actual, expected)


# --- what is constant, and where the clip stops the gradient ----------------------------------


@pytest.mark.parametrize("name", TOKEN_LOSSES)
def test_only_the_first_argument_learns(name):
    """Old log-probs, advantages, returns and references are constants, even if they need grad."""
    inputs = [x.clone().requires_grad_() for x in (LOG_PROBS, OLD, ADVANTAGES)]
    TOKEN_LOSSES[name](*inputs).sum().backward()
    assert inputs[0].grad is not None
    assert inputs[1].grad is None and inputs[2].grad is None


@pytest.mark.parametrize("name", SEQUENCE_LOSSES)
def test_only_the_first_argument_of_a_sequence_loss_learns(name):
    inputs = [x.clone().requires_grad_() for x in (LOG_PROBS, OLD, ROW_ADVANTAGES)]
    SEQUENCE_LOSSES[name](*inputs, MASK, 0.2, 0.2).sum().backward()
    assert inputs[0].grad is not None
    assert inputs[1].grad is None and inputs[2].grad is None


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
        (gspo_token(log_probs, old, A, mask, 0.2, 0.2), mean_ratio(log_probs, old, mask)),
    ):
        assert torch.autograd.grad(loss.sum(), log_probs)[0].item() == pytest.approx(slope)
        assert clip_acted(of, A, 0.2, 0.2).item() == (slope == 0)


def test_dual_clip_stops_the_gradient_beyond_its_ratio():
    log_probs = torch.tensor([[math.log(2), math.log(5)]], requires_grad=True)
    advantages = -torch.ones(1, 1)
    loss = clipped_surrogate(log_probs, torch.zeros(1, 2), advantages, 0.2, 0.2)
    loss = dual_clip(loss, advantages, 3)
    gradient = torch.autograd.grad(loss.sum(), log_probs)[0]
    assert gradient.tolist() == [[pytest.approx(2), 0]]


def test_value_clip_stops_the_gradient_only_away_from_the_old_value():
    """The value has already moved by more than the range towards the return: no further pull."""
    values = torch.tensor([[1.0, 0.0]], requires_grad=True)
    old, returns = torch.full((1, 2), 0.5), torch.full((1, 2), 2.0)
    value_loss(values, old, returns, 0.2).sum().backward()
    assert values.grad.tolist() == [[0, pytest.approx(-2)]]


def test_one_step_raises_the_probability_of_a_good_token():
    logits = torch.zeros(3, requires_grad=True)
    old = logits.detach().log_softmax(0)
    for surrogate in (
        lambda lp, a: clipped_surrogate(lp, old[None], a, 0.2, 0.2),
        lambda lp, a: cispo(lp, old[None], a, 0.2),
        lambda lp, a: sapo(lp, old[None], a),
        lambda lp, a: policy_gradient(lp, a),
    ):
        loss = surrogate(logits.log_softmax(0)[None], torch.tensor([[1.0, 0.0, 0.0]])).sum()
        (gradient,) = torch.autograd.grad(loss, logits)
        assert gradient[0] < 0 < gradient[1]  # descending raises token 0 and lowers the others


# --- garbage at masked positions --------------------------------------------------------------

GARBAGE = [torch.nan, torch.inf, -torch.inf, torch.finfo(torch.float64).min]


def poisoned(x, mask, garbage):
    return x.where(mask.expand(x.shape) if mask.shape[1] == 1 else mask, garbage)


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("name", TOKEN_LOSSES)
def test_garbage_in_the_padding_reaches_no_gradient(name, which, garbage):
    """0 * NaN is NaN: a where around the finished loss alone would let it through backwards."""
    inputs = [LOG_PROBS, OLD, ADVANTAGES]
    clean = LOG_PROBS.clone().requires_grad_()
    expected = token_mean(TOKEN_LOSSES[name](clean, OLD, ADVANTAGES), MASK)
    inputs[which] = poisoned(inputs[which], MASK, garbage)
    log_probs = inputs[0].clone().requires_grad_()
    with torch.autograd.set_detect_anomaly(True):
        loss = token_mean(TOKEN_LOSSES[name](log_probs, *inputs[1:]), MASK)
        (gradient,) = torch.autograd.grad(loss, log_probs)
    assert torch.equal(loss, expected)
    assert torch.equal(gradient, torch.autograd.grad(expected, clean)[0])
    assert not gradient[~MASK].any()


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("name", SEQUENCE_LOSSES)
def test_garbage_in_the_padding_of_a_sequence_loss(name, garbage):
    def reduced(log_probs, old, advantages):
        token_loss = SEQUENCE_LOSSES[name](log_probs, old, advantages, MASK, 0.1, 0.1)
        return sequence_mean(token_loss, MASK)

    clean = LOG_PROBS.clone().requires_grad_()
    expected = reduced(clean, OLD, ROW_ADVANTAGES)
    dirty = poisoned(LOG_PROBS, MASK, garbage).requires_grad_()
    advantages = poisoned(ROW_ADVANTAGES, MASK.any(1, keepdim=True), garbage)
    with torch.autograd.set_detect_anomaly(True):
        loss = reduced(dirty, poisoned(OLD, MASK, garbage), advantages)
        (gradient,) = torch.autograd.grad(loss, dirty)
    assert torch.equal(loss, expected)
    assert torch.equal(gradient, torch.autograd.grad(expected, clean)[0])


def test_an_empty_row_with_garbage_advantages_leaves_the_model_alone():
    """A filtered response whose reward was NaN: (N, 1) advantages with NaN in an empty row."""
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([[1.0], [-1.0], [torch.nan]])
    loss = clipped_surrogate(weight * LOG_PROBS, OLD, advantages, 0.2, 0.2)
    clipped = clip_acted(likelihood_ratio(weight * LOG_PROBS, OLD), advantages, 0.2, 0.2)
    sequence_mean(loss + 0.1 * k3(weight * LOG_PROBS, REF), MASK).backward()
    assert weight.grad.isfinite() and weight.grad != 0
    assert not clipped[2].any()


def test_hinge_and_simpo():
    """Away from the hinge's corner; SimPO moves both sides alike, in opposite directions."""
    chosen, rejected, ref_chosen, ref_rejected = draw(4, 6, seed=6)
    h = (chosen - ref_chosen) - (rejected - ref_rejected)
    assert ((1 - 0.3 * h).abs() > 0.01).all()
    finite_differences(
        lambda c, r: hinge_loss(c, r, ref_chosen, ref_rejected, 0.3), chosen, rejected
    )
    finite_differences(lambda c, r: simpo_loss(c, r, 1.5, 0.4), chosen, rejected)
