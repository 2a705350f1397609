"""The pairwise loss of the reward model."""

import pytest
import torch

from reward_model.loss import bradley_terry_loss


def f(values):
    return torch.tensor(values, dtype=torch.float64)


CHOSEN, REJECTED = f([1, 0.2]), f([0.5, 0.8])


def test_worked_numbers():
    """Per pair [.474077, 1.037488]; the squared sums are 2.25 and 1."""
    assert bradley_terry_loss(CHOSEN[:1], REJECTED[:1]).item() == pytest.approx(0.474077, abs=1e-6)
    assert bradley_terry_loss(CHOSEN, REJECTED).item() == pytest.approx(0.755782, abs=1e-6)
    margin = bradley_terry_loss(CHOSEN, REJECTED, margin=f([0.3, 0]))
    assert margin.item() == pytest.approx(0.817813, abs=1e-6)
    centred = bradley_terry_loss(CHOSEN, REJECTED, centering=0.01)
    assert centred.item() == pytest.approx(0.772032, abs=1e-6)


def test_weights_make_it_a_mean_over_prompts():
    """One prompt with three pairs, one that has a single pair left; each mean by itself, then both.

    -log sigmoid of the gaps 0.5, -0.6, 0 and 1: .474077, 1.037488, .693147 and .313262.
    """
    chosen, rejected = f([1, 0.2, 0.4, 2]), f([0.5, 0.8, 0.4, 1])
    weights = f([1 / 3, 1 / 3, 1 / 3, 1])
    loss = bradley_terry_loss(chosen, rejected, weights=weights)
    assert loss.item() == pytest.approx(((0.474077 + 1.037488 + 0.693147) / 3 + 0.313262) / 2)
    assert loss.item() == pytest.approx(0.524083, abs=1e-6)
    assert bradley_terry_loss(chosen, rejected).item() == pytest.approx(0.629494, abs=1e-6)
    centred = bradley_terry_loss(chosen, rejected, weights=weights, centering=0.01)
    squares = ((1.5**2 + 1.0**2 + 0.8**2) / 3 + 3.0**2) / 2
    assert (centred - loss).item() == pytest.approx(0.01 * squares)
    plain = bradley_terry_loss(chosen, rejected)
    torch.testing.assert_close(bradley_terry_loss(chosen, rejected, weights=f([2] * 4)), plain)


def test_stays_linear_far_on_the_wrong_side():
    """log(1 + exp(1000)) is infinite, log sigmoid is not; and the gradient is 1, not NaN."""
    chosen = torch.tensor([-500.0], requires_grad=True)
    loss = bradley_terry_loss(chosen, torch.tensor([500.0]))
    loss.backward()
    assert loss.item() == 1000
    assert chosen.grad.item() == -1


def test_the_true_scores_minimise_the_expected_loss():
    """Label every pair by its Bradley-Terry probability: at the true scores the gradient is 0."""
    scores = f([0.0, 0.7, -1.1, 2.0]).requires_grad_()
    expected_loss = f(0.0)
    for i in range(4):
        for j in range(4):
            if i != j:
                win = torch.sigmoid(scores[i] - scores[j]).detach()
                expected_loss = expected_loss + win * bradley_terry_loss(
                    scores[i : i + 1], scores[j : j + 1]
                )
    expected_loss.backward()
    torch.testing.assert_close(scores.grad, torch.zeros_like(scores), atol=1e-12, rtol=0)


def test_half_precision_weights_of_pairs_are_summed_in_float32() -> None:
    """In bfloat16 257 is no number: 257 weights of 1 would add up to 256."""
    scores = torch.zeros(257)
    weights = torch.ones(257, dtype=torch.bfloat16)
    assert bradley_terry_loss(scores, scores, weights=weights).item() == pytest.approx(0.693147181)
