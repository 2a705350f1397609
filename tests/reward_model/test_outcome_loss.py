"""The cross-entropy of an outcome reward model."""

import math

import pytest
import torch

from reward_model.loss import bradley_terry_loss, outcome_loss


def f(values):
    return torch.tensor(values, dtype=torch.float64)


def test_worked_numbers():
    """-log sigmoid(1) = .313262, -log sigmoid(-0.5) = .974077 and, of a bad text, -log sigmoid(-2)."""
    scores, labels = f([1, -0.5, 2]), f([1, 1, 0])
    each = [outcome_loss(scores[i : i + 1], labels[i : i + 1]).item() for i in range(3)]
    assert each == pytest.approx([0.313262, 0.974077, 2.126928], abs=1e-6)
    assert outcome_loss(scores, labels).item() == pytest.approx(sum(each) / 3)
    assert outcome_loss(f([0, 0]), f([0, 1])).item() == pytest.approx(math.log(2))


def test_parts_of_a_batch_add_up():
    scores, labels = f([0.3, -1, 2, 0.1]), f([1, 0, 0, 1])
    parts = [outcome_loss(scores[i::2], labels[i::2], denominator=4) for i in range(2)]
    assert sum(parts).item() == pytest.approx(outcome_loss(scores, labels).item())
    assert outcome_loss(scores[:0], labels[:0]).item() == 0


def test_gradient_is_the_error_of_the_probability():
    scores, labels = f([0.4, -3, 12]).requires_grad_(), f([1, 0, 0])
    outcome_loss(scores, labels).backward()
    torch.testing.assert_close(scores.grad, (scores.detach().sigmoid() - labels) / 3)


def test_stays_linear_far_on_the_wrong_side():
    scores = f([-1000.0]).requires_grad_()
    loss = outcome_loss(scores, f([1]))
    loss.backward()
    assert (loss.item(), scores.grad.item()) == pytest.approx((1000, -1))


def test_a_label_is_a_win_against_a_score_of_zero():
    """The Bradley-Terry model against an opponent of score 0 is this loss."""
    scores, none = f([0.7, -0.2]), f([0, 0])
    won = bradley_terry_loss(scores, none)
    lost = bradley_terry_loss(none, scores)
    torch.testing.assert_close(outcome_loss(scores, f([1, 1])), won)
    torch.testing.assert_close(outcome_loss(scores, f([0, 0])), lost)
