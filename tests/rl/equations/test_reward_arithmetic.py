"""Where rewards are put, what is taken off them, and how parts are added up."""

import pytest
import torch

from rl.equations.token_rewards import (
    at_last_token,
    score_missing_eos,
    token_level_rewards,
)

MASK = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
SCORES = torch.tensor([2.0, -1.0, torch.nan], dtype=torch.float64)  # the last row was filtered


@pytest.fixture
def log_probs():
    generator = torch.Generator().manual_seed(2)
    new, ref = torch.randn(2, 3, 3, generator=generator, dtype=torch.float64)
    return new.where(MASK, torch.nan), ref.where(MASK, -torch.inf)


def test_the_score_lands_on_the_last_valid_token():
    expected = [[0, 0, 2], [-1, 0, 0], [0, 0, 0]]
    assert at_last_token(SCORES, MASK).tolist() == expected
    gap = torch.tensor([[True, False, True], [True, True, False], [False, True, False]])
    scores = torch.tensor([1.0, 2.0, 3.0])
    assert at_last_token(scores, gap).tolist() == [[0, 0, 1], [0, 2, 0], [0, 3, 0]]


def test_no_coefficient_needs_no_reference(log_probs):
    new, ref = log_probs
    without = token_level_rewards(SCORES, new, None, MASK, 0.0)
    assert torch.equal(without, at_last_token(SCORES, MASK))
    assert torch.equal(without, token_level_rewards(SCORES, new, ref, MASK, 0.0))
    with pytest.raises(ValueError):
        token_level_rewards(SCORES, new, None, MASK, 0.1)


def test_a_missing_eos_costs_its_penalty():
    scores, has_eos = torch.tensor([2.0, 3.0]), torch.tensor([True, False])
    assert score_missing_eos(scores, has_eos, 1.5).tolist() == [2, 1.5]
