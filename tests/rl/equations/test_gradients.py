"""Where a clip stops a gradient; finite differences are in test_every_equation.py."""

import math

import pytest
import torch

from gpt.log_probs import kl_from_logits
from rl.equations.losses import (
    clip_acted,
    clipped_surrogate,
    gspo,
    likelihood_ratio,
    mean_ratio,
    sequence_clipped_surrogate,
    sequence_ratio,
    value_loss,
)


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
