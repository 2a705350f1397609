"""Where rewards are put, what is taken off them, and how parts are added up."""

import math

import pytest
import torch

from rl.equations.token_rewards import (
    at_last_token,
    overlong_penalty,
    score_missing_eos,
    teacher_rewards,
    token_level_rewards,
    weighted_sum,
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


def test_token_rewards_by_loops(log_probs):
    new, ref = log_probs
    rewards = token_level_rewards(SCORES, new, ref, MASK, 0.3)
    for i, length in enumerate((3, 1, 0)):
        for t in range(3):
            expected = -0.3 * (new[i, t] - ref[i, t]).item() if t < length else 0
            if t == length - 1:
                expected += SCORES[i].item()
            assert rewards[i, t].item() == pytest.approx(expected)


def test_the_sequence_mean_form_pays_everything_at_the_end(log_probs):
    new, ref = log_probs
    rewards = token_level_rewards(SCORES, new, ref, MASK, 0.3, kl="sequence_mean")
    mean_kl = (new - ref)[0].mean().item()
    assert rewards[0].tolist() == pytest.approx([0, 0, 2 - 0.3 * mean_kl])
    assert rewards[1, 0].item() == pytest.approx(-1 - 0.3 * (new - ref)[1, 0].item())
    assert not rewards[2].any()


def test_moving_away_from_the_reference_costs_reward():
    """With log pi_ref - log pi in the place of k1, drifting would be paid for."""
    logits, ref_logits = torch.tensor([2.0, 0.0, 0.0]), torch.zeros(3)
    new, ref = logits.log_softmax(0)[:, None], ref_logits.log_softmax(0)[:, None]
    rewards = token_level_rewards(torch.zeros(3), new, ref, torch.ones(3, 1, dtype=torch.bool), 1.0)
    assert (logits.softmax(0) @ rewards).item() < -0.3


def test_no_coefficient_needs_no_reference(log_probs):
    new, ref = log_probs
    without = token_level_rewards(SCORES, new, None, MASK, 0.0)
    assert torch.equal(without, at_last_token(SCORES, MASK))
    assert torch.equal(without, token_level_rewards(SCORES, new, ref, MASK, 0.0))
    with pytest.raises(ValueError, match="needs ref_log_probs"):
        token_level_rewards(SCORES, new, None, MASK, 0.1)


def test_rewards_are_constants():
    new = torch.randn(3, 3, requires_grad=True)
    assert not token_level_rewards(SCORES, new, new, MASK, 0.1).requires_grad


def test_rules_for_a_missing_eos():
    scores, has_eos = torch.tensor([2.0, 3.0]), torch.tensor([True, False])
    assert score_missing_eos(scores, has_eos, "replace", -1.0).tolist() == [2, -1]
    assert score_missing_eos(scores, has_eos, "subtract", 1.5).tolist() == [2, 1.5]
    assert score_missing_eos(scores, has_eos, "none", 1.5).tolist() == [2, 3]
    with pytest.raises(ValueError, match="one of replace, subtract, none"):
        score_missing_eos(scores, has_eos, "drop", 1.0)
    with pytest.raises(ValueError, match="has_eos must be bool"):
        score_missing_eos(scores, has_eos.long(), "none", 1.0)


def test_overlong_penalty_is_a_ramp():
    """Corner by corner: flat at 0, linear over the buffer, flat at -1."""
    for length in range(0, 30):
        expected = 0 if length <= 16 else max((16 - length) / 4, -1)
        penalty = overlong_penalty(torch.tensor([length]), 20, 4)
        assert penalty.item() == expected
    for buffer in (0, 21):
        with pytest.raises(ValueError, match="buffer"):
            overlong_penalty(torch.tensor([3]), 20, buffer)


def test_weighted_sum_and_its_parts():
    parts = {"correct": torch.tensor([1.0, 0.0]), "format": torch.tensor([1, 1])}
    total, weighted = weighted_sum(parts, {"correct": 2.0, "format": 0.5})
    assert total.tolist() == [2.5, 0.5]
    assert {name: part.tolist() for name, part in weighted.items()} == {
        "correct": [2, 0],
        "format": [0.5, 0.5],
    }


def test_weighted_sum_refuses_what_it_would_drop_or_broadcast():
    parts = {"correct": torch.ones(2)}
    for bad_parts, weights in (
        ({}, {}),
        (parts, {}),
        (parts, {"correct": 1.0, "format": 1.0}),  # a weight without a part: a typing error
    ):
        with pytest.raises(ValueError, match="one weight"):
            weighted_sum(bad_parts, weights)
    uneven = {"correct": torch.ones(2), "format": torch.ones(1)}
    with pytest.raises(ValueError, match="one value per response"):
        weighted_sum(uneven, {"correct": 1.0, "format": 1.0})


def test_wrong_shapes_are_refused(log_probs):
    new, ref = log_probs
    for scores in (torch.zeros(3, 1), torch.zeros(2)):
        with pytest.raises(ValueError, match="one size per axis in all: got scores"):
            token_level_rewards(scores, new, ref, MASK, 0.1)
        with pytest.raises(ValueError, match=r"must be \(N,\)"):
            score_missing_eos(scores, torch.ones(3, dtype=torch.bool), "none", 0.0)
    with pytest.raises(ValueError, match="one size per axis"):
        token_level_rewards(SCORES, new, ref[:, :2], MASK, 0.1)
    with pytest.raises(ValueError, match="bool"):
        at_last_token(SCORES, MASK.long())
    with pytest.raises(ValueError, match="kl must be one of token, sequence_mean"):
        token_level_rewards(SCORES, new, ref, MASK, 0.1, kl="sequence")


def test_an_infinite_score_is_not_hidden():
    assert math.isinf(at_last_token(torch.tensor([math.inf]), MASK[:1])[0, 2].item())


def test_no_reward_has_a_gradient_and_padding_earns_nothing():
    """Of a teacher's log-probs, of lengths and of weighted parts; garbage in the padding included."""
    teacher = torch.tensor([[-1.0, -2.0, torch.nan]]).requires_grad_()
    mask = torch.tensor([[True, True, False]])
    for reverse_kl, expected in ((False, [-1.0, -2.0, 0.0]), (True, [0.0, -1.0, 0.0])):
        rewards = teacher_rewards(teacher, torch.full((1, 3), -1.0), mask, reverse_kl=reverse_kl)
        assert rewards[0].tolist() == expected and not rewards.requires_grad
    lengths = torch.tensor([18.0]).requires_grad_()
    assert not overlong_penalty(lengths, 20, 4).requires_grad
    total, parts = weighted_sum({"a": torch.ones(2).requires_grad_()}, {"a": 2.0})
    assert not total.requires_grad and not parts["a"].requires_grad
