"""Numbers worked out by hand, in float64: every expectation is a literal, or plain loops give it.

A dot in a comment stands for a masked position; 9 and 99 are garbage written there on purpose. At the end
what happens at the ends: overflow, ties, gaps, empty batches, and on which side a clip acts.
"""

import math
import statistics

import pytest
import torch
from toys import float64 as f

from gpt.log_probs import kl_from_logits
from harness.tensors import masked_mean, masked_sum
from rl.equations.advantages import (
    best_worst_pairs,
    discounted_returns,
    gae,
    gdpo_advantages,
    greedy_baseline_advantages,
    group_advantages,
    leave_one_out_advantages,
    maxrl_advantages,
    ordered_pairs,
    process_advantages,
    score_missing_eos,
    weighted_sum,
    whiten,
)
from rl.equations.ensembles import ensemble_mean, worst_case
from rl.equations.kl import (
    AdaptiveKL,
    absolute,
    k1,
    k1_importance,
    k2,
    k3,
    k3_importance,
    rho_minus_log,
)
from rl.equations.losses import (
    cispo,
    clip_acted,
    clip_cov_tokens,
    clipped_surrogate,
    constant_length_mean,
    dual_clip,
    gmpo,
    grpo_objective,
    gspo,
    kl_cov_tokens,
    length_normalized_returns,
    likelihood_ratio,
    mean_ratio,
    mixed_sampling_weights,
    policy_gradient,
    sapo,
    sequence_clipped_surrogate,
    sequence_mean,
    sequence_ratio,
    sequence_sum,
    token_covariances,
    token_mean,
    value_loss,
)
from rl.equations.preference_losses import (
    dpo_loss,
    hinge_loss,
    ipo_loss,
    kto_loss,
    orpo_loss,
    preference_gap,
    simpo_loss,
)
from rl.equations.token_rewards import at_last_token, overlong_penalty, token_level_rewards


def m(values):
    return torch.tensor(values, dtype=torch.bool)


def equal(actual, expected, tolerance=1e-6):
    torch.testing.assert_close(actual.detach(), f(expected), atol=tolerance, rtol=0)


# --- advantages -------------------------------------------------------------------------------

REWARDS = f([[-0.1, 0, 0.2, 1], [0, 1, 9, 9]])
VALUES = f([[0.5, 0.4, 0.3, 0.2], [0.6, 0.5, 7, 7]])
MASK = m([[1, 1, 1, 1], [1, 1, 0, 0]])


@pytest.mark.parametrize(
    ("gamma", "gae_lambda", "expected"),
    [
        (0.9, 0.8, [[0.00647, 0.34232, 0.656, 0.8], [0.21, 0.5, 0, 0]]),
        (1.0, 0.95, [[0.48115, 0.717, 0.86, 0.8], [0.375, 0.5, 0, 0]]),
        (1.0, 1.0, [[0.6, 0.8, 0.9, 0.8], [0.4, 0.5, 0, 0]]),
    ],
)
def test_gae_advantages(gamma, gae_lambda, expected):
    """A recursion that ignores the mask gives 9.795 at the start of row 2 instead of 0.21."""
    equal(gae(REWARDS, VALUES, MASK, gamma, gae_lambda)[0], expected)


def test_gae_returns():
    equal(gae(REWARDS, VALUES, MASK, 0.9, 0.8)[1], [[0.50647, 0.74232, 0.956, 1], [0.81, 1, 0, 0]])
    equal(gae(REWARDS, VALUES, MASK, 1, 1)[1], [[1.1, 1.2, 1.2, 1], [1, 1, 0, 0]])


def test_whiten():
    x, mask = f([[1, 2, 3], [4, 99, 99]]), m([[1, 1, 1], [1, 0, 0]])
    equal(whiten(x, mask), [[-1.161895, -0.387298, 0.387298], [1.161895, 0, 0]])
    equal(whiten(x, mask, unbiased=False), [[-1.341641, -0.447214, 0.447214], [1.341641, 0, 0]])
    equal(whiten(x, mask, shift_mean=False), [[1.338105, 2.112702, 2.887298], [3.661895, 0, 0]])


def test_group_advantages():
    rewards = f([1, 2, 3, 4, 2, 2, 2, 2])
    expected = [-1.161805, -0.387268, 0.387268, 1.161805, 0, 0, 0, 0]
    equal(group_advantages(rewards, 4).squeeze(1), expected)
    equal(group_advantages(rewards, 4, eps=1e-6)[3], [1.161894])
    biased = group_advantages(rewards, 4, unbiased=False).squeeze(1)
    equal(biased[:4], [-1.341521, -0.447174, 0.447174, 1.341521])
    equal(group_advantages(f([0, 1000]), 2).squeeze(1), [-0.707107, 0.707107])


def test_group_advantages_scaled_by_the_batch():
    """Centred [-1, 1, -3, 3]; the std of the raw rewards [0, 2, 1, 7] is sqrt(29/3) = 3.109126."""
    rewards = f([0, 2, 1, 7])
    expected = [-0.321634, 0.321634, -0.964901, 0.964901]
    equal(group_advantages(rewards, 2, scale="batch", eps=0).squeeze(1), expected)
    equal(group_advantages(rewards, 2, scale="none").squeeze(1), [-1, 1, -3, 3])


def test_sum_then_normalised_and_normalised_then_sum():
    """Two rewards of 0 or 1, G = 2: the first group differs in one of them, the second in both.

    The sum is (1, 0) and (2, 0): by GRPO all four are +-.707107, and the second reward says nothing. By
    GDPO the z-scores +-.707107 add up to +-.707107 and +-1.414214, whose deviation is sqrt(5/3).
    """
    columns = f([[1, 0], [0, 0], [1, 1], [0, 0]])
    total = weighted_sum(columns, (1, 1))
    equal(total, [1, 0, 2, 0])
    root = 0.5**0.5
    equal(group_advantages(total, 2, eps=0).squeeze(1), [root, -root, root, -root])
    found = gdpo_advantages(columns, (1, 1), 2, eps=0).squeeze(1)
    equal(found, [0.547723, -0.547723, 1.095445, -1.095445])
    half = gdpo_advantages(columns, (1, 0.5), 2, eps=0).squeeze(1)  # sums +-.707107, +-1.060660
    equal(half, [0.679366, -0.679366, 1.019049, -1.019049])
    equal(gdpo_advantages(columns * f([1, 1000]), (1, 1), 2, eps=0).squeeze(1), found.tolist())


def test_a_reward_that_does_not_judge_a_row_is_left_out_of_its_sum():
    columns = f([[1, math.nan], [2, 4], [3, 8], [4, math.nan]])
    equal(weighted_sum(columns, (1, 0.5)), [1, 4, 7, 4])
    """Second column: only rows 2 and 3 of the group are compared, at +-.707107."""
    z = [-1.161895, -0.387298, 0.387298, 1.161895]
    sums = [z[0], z[1] - 0.707107, z[2] + 0.707107, z[3]]
    deviation = (sum(value * value for value in sums) / 3) ** 0.5
    found = gdpo_advantages(columns, (1, 1), 4, eps=0).squeeze(1)
    equal(found, [value / deviation for value in sums])


def test_maxrl():
    """One of four is right: (1 - 1/4) / (1/4) = 3 and -1; none: 0, not 0 / 0; all: 0."""
    rewards = f([1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1])
    third = 1 / 3  # (1 - 3/4) / (3/4)
    expected = [3, -1, -1, -1, 0, 0, 0, 0, third, third, third, -1, 0, 0, 0, 0]
    equal(maxrl_advantages(rewards, 4).squeeze(1), expected)
    equal(maxrl_advantages(f([1, 0, 0, 0, 0, 0, 0, 0]), 8).squeeze(1), [7, *[-1] * 7])
    equal(maxrl_advantages(rewards[:3], 1).squeeze(1), [1, 0, 0])


def test_covariances_of_tokens_and_who_is_chosen_by_them():
    """log pi = [-1, -3, ., -2] has the mean -2, A = [2, 2, ., -1] the mean 1: 1, -1 and 0.

    Of three tokens a third is one, and so are a hundredth and 1.98; two thirds are two.
    """
    log_probs, mask = f([[-1, -3, 9], [-2, 99, 99]]), m([[1, 1, 0], [1, 0, 0]])
    covariances = token_covariances(log_probs, f([[2], [-1]]), mask)
    equal(covariances[mask], [1, -1, 0])
    first, third = [0, 0], [1, 0]
    both = [first, third]
    for share, chosen in ((0, []), (0.01, [first]), (0.66, [first]), (0.67, both)):
        assert kl_cov_tokens(covariances, mask, share).nonzero().tolist() == chosen
    draws = f([[0.1, 0.9, 1], [0.2, 1, 1]])
    for share, high, chosen in ((0.66, 2, [third]), (0.7, 2, both), (0.7, 1, [third]), (0, 2, [])):
        dropped = clip_cov_tokens(covariances, draws, mask, share, -0.5, high)
        assert dropped.nonzero().tolist() == chosen
    assert not kl_cov_tokens(covariances, ~mask & mask, 0.5).any()
    assert kl_cov_tokens(covariances, mask, 1).equal(mask)
    hundred = torch.arange(100.0).view(10, 10)
    assert kl_cov_tokens(hundred, hundred >= 0, 0.29).sum() == 29  # 0.29 * 100 is a little less


def test_leave_one_out():
    """With the factor n/(n-1) applied twice, the ends would be -2.667 and 2.667."""
    equal(leave_one_out_advantages(f([1, 2, 3, 4]), 4).squeeze(1), [-2, -2 / 3, 2 / 3, 2])


def test_the_greedy_answer_as_the_baseline():
    """R = 1 and 0, k1 = [2, -1] and [1], beta = 0.1: r = [-.2, 1.1] and [-.1]; R(greedy) = .5, .25."""
    log_probs, ref_log_probs = f([[-1, -3], [-2, 9]]), f([[-3, -2], [-3, 9]])
    mask = m([[1, 1], [1, 0]])
    rewards = token_level_rewards(f([1, 0]), log_probs, ref_log_probs, mask, 0.1)
    equal(rewards, [[-0.2, 1.1], [-0.1, 0]])
    advantages = greedy_baseline_advantages(rewards, f([0.5, 0.25]), mask)
    equal(advantages, [[0.4, 0.6], [-0.35, 0]])
    loss = sequence_sum(policy_gradient(f([[-1, -3], [-2, 0]]), advantages), mask)
    equal(loss, 0.75)  # (0.4 + 1.8 - 0.7) / 2


def test_rloo_with_the_kl_in_the_reward():
    """R' = R - 0.1 * sum of k1 = [.8, .5, .1]; loss = -1/3 sum of A * log pi(y)."""
    log_probs, ref_log_probs = f([[-3], [-4], [-5]]), f([[-5], [-4], [-4]])
    mask = m([[1], [1], [1]])
    rewards = token_level_rewards(f([1, 0.5, 0]), log_probs, ref_log_probs, mask, 0.1).sum(1)
    equal(rewards, [0.8, 0.5, 0.1])
    advantages = leave_one_out_advantages(rewards, 3)
    equal(advantages.squeeze(1), [0.5, 0.05, -0.55])
    equal(sequence_sum(policy_gradient(log_probs, advantages), mask), -0.35)


def test_rloo_with_a_clipped_sequence_ratio():
    """The ratios are [1.105171, .740818, .904837]; no row is clipped on its bad side."""
    new, old = f([[-1.9, -1, 9], [-2, -2.3, 9], [-5.1, 9, 9]]), f([[-2, -1], [-2, -2], [-5, 99]])
    old = torch.cat([old, torch.full((3, 1), math.nan)], 1)
    mask = m([[1, 1, 0], [1, 1, 0], [1, 0, 0]])
    advantages = f([[0.5], [0.05], [-0.55]])
    loss = sequence_clipped_surrogate(new, old, advantages, mask, 0.2, 0.2)
    equal(sequence_mean(loss, mask), -0.030655)


def test_discounted_returns():
    rewards, mask = f([[0.1, 0.2, 1, 5], [-0.5, 1, 0, 0]]), m([[1, 1, 1, 0], [1, 1, 0, 0]])
    equal(discounted_returns(rewards, mask, 0.9), [[1.09, 1.1, 1, 0], [0.4, 1, 0, 0]])
    equal(discounted_returns(rewards, mask, 1), [[1.3, 1.2, 1, 0], [0.5, 1, 0, 0]])
    reinforce_plus_plus = whiten(discounted_returns(rewards, mask, 0.9), mask)
    expected = [[0.586106, 0.620182, 0.279423, 0], [-1.765134, 0.279423, 0, 0]]
    equal(reinforce_plus_plus, expected)


def test_reinforce_plus_plus_baseline():
    """Normalised over responses, or over the tokens they are broadcast to."""
    centred = group_advantages(f([1, 0, 1, 1]), 2, scale="none")
    equal(centred.squeeze(1), [0.5, -0.5, 0, 0])
    rows = whiten(centred, m([[1], [1], [1], [1]]))
    equal(rows.squeeze(1), [1.224745, -1.224745, 0, 0])
    mask = m([[1, 1], [1, 0], [1, 1], [1, 1]])
    tokens = whiten(centred.expand(4, 2), mask)
    equal(tokens[:, 0], [1.242118, -1.656157, -0.207020, -0.207020])


def test_process_supervision():
    """Output 1 ends steps at tokens 1 and 3 with rewards 2 and 1, output 2 at 0 and 2 with 0, 1."""
    rewards, ends = f([[2, 1], [0, 1]]), torch.tensor([[1, 3], [0, 2]])
    steps, mask = m([[1, 1], [1, 1]]), m([[1, 1, 1, 1], [1, 1, 1, 0]])
    expected = [[1.224745, 1.224745, 0, 0], [-1.224745, 0, 0, 0]]
    equal(process_advantages(rewards, ends, steps, mask, 2, eps=0), expected)
    biased = process_advantages(rewards, ends, steps, mask, 2, eps=0, unbiased=False)
    equal(biased, [[1.414214, 1.414214, 0, 0], [-1.414214, 0, 0, 0]])


# --- rewards ----------------------------------------------------------------------------------


def test_token_level_rewards():
    """The sum is R - beta * log(pi / pi_ref)(y)."""
    log_probs, ref_log_probs = f([[-1, -2, -0.5, 9]]), f([[-1.2, -1.5, -0.5, 99]])
    mask = m([[1, 1, 1, 0]])
    rewards = token_level_rewards(f([1]), log_probs, ref_log_probs, mask, 0.1)
    equal(rewards, [[-0.02, 0.05, 1.0, 0]])
    equal(rewards.sum(), 1.03)
    equal(discounted_returns(rewards, mask, 1), [[1.03, 1.05, 1.0, 0]])


def test_the_score_lands_on_the_last_valid_token():
    """A row without a token has none; a gap is stepped over."""
    mask = m([[1, 1, 1], [1, 0, 0], [0, 0, 0]])
    equal(at_last_token(f([2, -1, math.nan]), mask), [[0, 0, 2], [-1, 0, 0], [0, 0, 0]])
    gap = m([[1, 0, 1], [1, 1, 0], [0, 1, 0]])
    equal(at_last_token(f([1, 2, 3]), gap), [[0, 0, 1], [0, 2, 0], [0, 3, 0]])
    without = token_level_rewards(f([1, 2, 3]), f([[9] * 3] * 3), None, gap, 0.0)
    equal(without, [[0, 0, 1], [0, 2, 0], [0, 3, 0]])
    with pytest.raises(ValueError):
        token_level_rewards(f([1, 2, 3]), f([[9] * 3] * 3), None, gap, 0.1)


def test_a_missing_eos_costs_its_penalty():
    equal(score_missing_eos(f([2, 3]), m([True, False]), 1.5), [2, 1.5])


def test_an_ensemble_of_three():
    equal(ensemble_mean(f([[1], [2], [4]])), [7 / 3])
    equal(worst_case(f([[1], [2], [4]])), [1])


def test_overlong_penalty():
    lengths = torch.tensor([15, 16, 17, 18, 20, 21])
    expected = torch.tensor([0, 0, -0.25, -0.5, -1, -1])
    assert torch.equal(overlong_penalty(lengths, 20, 4), expected)


# --- policy losses ----------------------------------------------------------------------------

RATIOS = f([[0.5, 0.9, 1, 1.1, 1.5]])


@pytest.mark.parametrize(
    ("advantage", "loss", "gradient", "clipped"),
    [
        (1.0, [[-0.5, -0.9, -1, -1.1, -1.2]], [[-0.5, -0.9, -1, -1.1, 0]], [[0, 0, 0, 0, 1]]),
        (-1.0, [[0.8, 0.9, 1, 1.1, 1.5]], [[0, 0.9, 1, 1.1, 1.5]], [[1, 0, 0, 0, 0]]),
    ],
)
def test_clipped_surrogate(advantage, loss, gradient, clipped):
    """max in place of min for A < 0 would give a loss of .5 at the first ratio, not .8."""
    log_probs = RATIOS.log().requires_grad_()
    value = clipped_surrogate(log_probs, torch.zeros_like(RATIOS), f([[advantage]]), 0.2, 0.2)
    equal(value, loss)
    assert torch.equal(clip_acted(RATIOS, f([[advantage]]), 0.2, 0.2), m(clipped))
    equal(torch.autograd.grad(value.sum(), log_probs)[0], gradient)


def test_clip_higher_and_dual_clip():
    loss = clipped_surrogate(RATIOS.log(), torch.zeros_like(RATIOS), f([[1]]), 0.2, 0.28)
    equal(loss[:, -1], [-1.28])
    ratios = f([[0.5, 2, 5]])
    loss = clipped_surrogate(ratios.log(), torch.zeros_like(ratios), f([[-1]]), 0.2, 0.2)
    equal(dual_clip(loss, f([[-1]]), 3), [[0.8, 2, 3]])
    equal(dual_clip(f([[-2]]), f([[1]]), 3), [[-2]])  # good ones are left alone: -c A is -3


def test_gspo():
    log_probs = f([[0.1, -0.2, 0.4, 9], [0.0003, 0.0001, 9, 9]]).requires_grad_()
    mask = m([[1, 1, 1, 0], [1, 1, 0, 0]])
    old, advantages = torch.zeros(2, 4, dtype=torch.float64), f([[1], [-1]])
    token_loss = gspo(log_probs, old, advantages, mask, 0.2, 0.2)
    equal(token_loss[:, 0], [-1.105171, 1.000200])
    loss = sequence_mean(token_loss, mask)
    equal(loss, -0.052485)
    gradient = torch.autograd.grad(loss, log_probs)[0]
    equal(gradient, [[-0.184195, -0.184195, -0.184195, 0], [0.250050, 0.250050, 0, 0]])
    token_loss = gspo(log_probs, old, advantages, mask, 3e-4, 4e-4)
    ratio = mean_ratio(log_probs, old, mask)
    equal(ratio, [[1.105171], [1.000200]])
    clipped = clip_acted(ratio, advantages, 3e-4, 4e-4)
    equal(sequence_mean(token_loss, mask), -0.000099990, 1e-9)
    assert clipped.tolist() == [[True], [False]]


def test_gmpo():
    """Log-ratios [.1, -.2, .4] within .15: A > 0 caps .4, A < 0 lifts -.2; the means .05/3, .35/3."""
    log_probs = f([[0.1, -0.2, 0.4, 9], [0.1, -0.2, 0.4, 9]]).requires_grad_()
    mask = m([[1, 1, 1, 0], [1, 1, 1, 0]])
    old, advantages = torch.zeros(2, 4, dtype=torch.float64), f([[1], [-1]])
    token_loss = gmpo(log_probs, old, advantages, mask, 0.15, 0.15)
    equal(token_loss[:, 0], [-1.016806, 1.123745])
    gradient = torch.autograd.grad(sequence_mean(token_loss, mask), log_probs)[0]
    equal(gradient, [[-0.169468, -0.169468, 0, 0], [0.187291, 0, 0.187291, 0]])


def test_sapo():
    ratios = f([[0.5, 1, 1.5]])
    expected = {
        1: ([[-1.510163, -2, -2.489837]], [[-0.470007, -1, -1.410022]]),
        -1: ([[1.415938, 1.904762, 2.393585]], [[0.467070, 1, 1.401210]]),
    }
    for advantage, (loss, gradient) in expected.items():
        log_probs = ratios.log().requires_grad_()
        value = sapo(log_probs, torch.zeros_like(ratios), f([[advantage]]))
        equal(value, loss)
        equal(torch.autograd.grad(value.sum(), log_probs)[0], gradient)


def test_cispo():
    """Ratios .5 and 2, upper clip .28: weights .5 and 1.28, both of them with a gradient."""
    log_probs = f([[math.log(0.5), math.log(2)]]).requires_grad_()
    loss = cispo(log_probs, torch.zeros(1, 2, dtype=torch.float64), f([[2]]), 0.28)
    equal(loss, [[0.693147, -1.774457]])
    equal(torch.autograd.grad(loss.sum(), log_probs)[0], [[-1, -2.56]])


# --- value loss, reducers, whole objectives ---------------------------------------------------


def test_value_loss():
    """Squares [1, 1, .3025] against clipped ones [1.69, 1.69, .3025]; without the half, double."""
    values, old, returns = f([[1, 0, 0.55]]), f([[0.5, 0.5, 0.5]]), f([[2, -1, 0]])
    mask = m([[1, 1, 1]])
    equal(value_loss(values, old, returns, 0.2), [[0.845, 0.845, 0.15125]])
    equal(token_mean(value_loss(values, old, returns, 0.2), mask), 0.61375)
    equal(token_mean(value_loss(values, old, returns), mask), 0.38375)


def test_reducers():
    loss = f([[1, 2, 3, 99], [4, 99, 99, 99], [99, 99, 99, 99]])
    mask = m([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]])
    equal(token_mean(loss, mask), 2.5)
    equal(sequence_mean(loss, mask), 3.0)
    equal(sequence_mean(loss, mask, denominator=3), 2.0)
    equal(sequence_sum(loss, mask), 5.0)
    equal(constant_length_mean(loss, mask, 4), 0.833333)  # an empty row counts
    equal(masked_sum(loss, mask), [6, 4, 0])
    equal(masked_mean(loss, mask), [2, 4, 0])


def test_grpo_objective_by_hand():
    """Two answers of 2 and 1 tokens, advantages 1 and -1, epsilon 0.2, beta 0.1, in a batch of four.

    Ratios 1.5 (clipped to 1.2), 1 | 0.5 (clipped to 0.8): -min is -1.2, -1 | 0.8. k3 with pi_ref / pi
    = 2, 1 | 1: 2 - ln 2 - 1 = 0.306853, 0 | 0. Means -1.1 + 0.1 * 0.153426 and 0.8, over 4.
    """
    old = f([[-1.0, -1.0], [-1.0, 9.0]])
    new = old + f([[1.5, 1.0], [0.5, 9.0]]).log()
    ref, mask = new + f([[2.0, 1.0], [1.0, 9.0]]).log(), torch.tensor([[True, True], [True, False]])
    given = new, old, f([[1.0], [-1.0]]), mask, k3(new, ref)
    loss = grpo_objective(*given, clip_range=0.2, kl_coef=0.1, responses=4)
    assert loss.item() == pytest.approx((-1.1 + 0.1 * 0.1534264 + 0.8) / 4, abs=1e-8)
    without = grpo_objective(*given, clip_range=0.2, kl_coef=0.0)
    assert without.item() == pytest.approx((-1.1 + 0.8) / 2)


def test_token_mean_of_micro_batches():
    """The mean of two micro-batch means would be 3.0."""
    loss, mask = f([[1, 2, 3], [4, 99, 99]]), m([[1, 1, 1], [1, 0, 0]])
    parts = [token_mean(loss[i : i + 1], mask[i : i + 1], denominator=4) for i in (0, 1)]
    equal(parts[0] + parts[1], 2.5)


def test_grpo_from_end_to_end():
    log_probs, old = f([[-1, -0.5, -2], [-0.7, -1.2, 9]]), f([[-1.2, -0.5, -1.8], [-0.7, -0.9, 99]])
    ref, mask = f([[-1.1, -0.6, -2], [-0.5, -1.2, 9]]), m([[1, 1, 1], [1, 1, 0]])
    advantages = f([[0.7071], [-0.7071]])
    surrogate = clipped_surrogate(log_probs, old, advantages, 0.2, 0.2)
    clipped = clip_acted(likelihood_ratio(log_probs, old), advantages, 0.2, 0.2)
    loss = surrogate + 0.04 * k3(log_probs, ref)
    equal(loss[0], [-0.848327, -0.706907, -0.578925])
    equal(loss[1, :2], [0.707956, 0.565680])
    equal(sequence_mean(loss, mask), -0.037284)
    equal(token_mean(loss, mask), -0.172104)
    equal(constant_length_mean(loss, mask, 4), -0.107565)
    equal(token_mean(clipped.double(), mask), 0.4)


# --- KL ---------------------------------------------------------------------------------------


def test_kl_estimators():
    log_probs, ref = f([[0.5, 0.25, 0.1]]).log(), f([[0.25, 0.25, 0.4]]).log()
    equal(k1(log_probs, ref), [[0.693147, 0, -1.386294]])
    equal(k2(log_probs, ref), [[0.240227, 0, 0.960906]])
    equal(k3(log_probs, ref), [[0.193147, 0, 1.613706]])
    equal(absolute(log_probs, ref), [[0.693147, 0, 1.386294]])


def test_importance_weighted_kl():
    """pi = .5, pi_old = .25, pi_ref = .25: ratio 2 times log 2, and times 1/2 - 1 + log 2."""
    log_probs, old, ref = f([[0.5]]).log(), f([[0.25]]).log(), f([[0.25]]).log()
    equal(k1_importance(log_probs, old, ref), [[1.386294]])
    equal(k3_importance(log_probs, old, ref), [[0.386294]])


def test_k3_of_a_tiny_drift_in_float32():
    """In float32 exp(x) - 1 - x gives 1.66e-8 and exp(x) - x - 1 gives 0."""
    tiny = k3(torch.zeros(1, 1), torch.full((1, 1), 1e-4))
    assert tiny.item() == pytest.approx(5.0e-9, rel=1e-3)


def test_full_kl():
    logits, ref_logits = f([[[0.5, 0.3, 0.2]]]).log(), f([[[0.2, 0.5, 0.3]]]).log()
    equal(kl_from_logits(logits, ref_logits), [[0.223805]])
    equal(kl_from_logits(ref_logits, logits), [[0.193794]])


def test_adaptive_kl_coefficient():
    """Ratios of 1.5, 5/6 and 1/6 to the target: errors of +.2, the clip, of -1/6, and of -.2, the clip."""
    for kl_per_response, expected in ((9, 0.201024), (5, 0.199146667), (1, 0.198976), (6, 0.2)):
        controller = AdaptiveKL(coef=0.2, target=6, horizon=10000)
        controller.update(kl_per_response, 256)
        assert controller.coef == pytest.approx(expected, abs=1e-9)
    for nothing in (dict(coef=0.0), dict(target=0.0), dict(horizon=0)):
        with pytest.raises(ValueError):
            AdaptiveKL(**(dict(coef=0.2, target=6.0, horizon=10000) | nothing))


# --- preferences and distillation ---------------------------------------------------------------


def test_dpo_and_ipo():
    """h = 1.5; dividing the log-probabilities by the length would change every number."""
    pair = f([-10]), f([-12]), f([-11]), f([-11.5])
    equal(dpo_loss(*pair, 0.1), [0.620957])
    equal(dpo_loss(*pair, 0.1, label_smoothing=0.1), [0.635957])
    equal(dpo_loss(*pair, 0.5), [0.386871])
    equal(ipo_loss(*pair, 0.1), [12.25])
    chosen = f([-10]).requires_grad_()
    dpo_loss(chosen, *pair[1:], 0.1).sum().backward()
    equal(chosen.grad, [-0.046257])
    same = f([-10]), f([-12]), f([-10]), f([-12])
    equal(dpo_loss(*same, 0.1), [0.693147])


def test_minillm():
    teacher, student = f([[-1, -0.5, -2.4, 9]]), f([[-0.8, -1, -1.5, 99]])
    mask = m([[1, 1, 1, 0]])
    rewards = teacher - student
    equal(rewards[:, :3], [[-0.2, 0.5, -0.9]])
    equal(discounted_returns(rewards, mask, 1), [[-0.6, -0.4, -0.9, 0]])
    equal(length_normalized_returns(rewards, mask), [[-0.2, -0.9, 0, 0]])
    weights = mixed_sampling_weights(student, teacher, mask, 0.2)
    equal(weights, [[1.037618, 0.885156, 1.134669, 0]])


# --- more preference losses ---------------------------------------------------------------------


def test_ipo_of_means_per_token():
    """Lengths 5 and 4: h = (-10 + 11) / 5 - (-12 + 11.5) / 4 = .325, and (.325 - 5)^2."""
    pair = f([-10 / 5]), f([-12 / 4]), f([-11 / 5]), f([-11.5 / 4])
    equal(preference_gap(*pair), [0.325])
    equal(ipo_loss(*pair, 0.1), [21.855625])


def test_simpo():
    """Means -2 and -3: 2 (-2) - 2 (-3) - .5 = 1.5; turned over -2.5."""
    equal(simpo_loss(f([-10 / 5]), f([-12 / 4]), 2, 0.5), [0.201413])
    equal(simpo_loss(f([-12 / 4]), f([-10 / 5]), 2, 0.5), [2.578890])
    chosen = f([-2]).requires_grad_()
    simpo_loss(chosen, f([-3]), 2, 0.5).sum().backward()
    equal(chosen.grad, [-0.364851])


def test_orpo():
    """Means -2 and -3: odds .156518 and .052396, so 2 + .1 log(1 + .052396 / .156518)."""
    equal(orpo_loss(f([-2]), f([-3]), 0.1), [2.028875])
    equal(orpo_loss(f([-3]), f([-2]), 0.1), [3.138309])  # the log odds ratio is turned over
    chosen = f([-2, 0]).requires_grad_()
    orpo_loss(chosen, f([-3, 0]), 0.1).sum().backward()
    equal(chosen.grad[:1], [-1.029006])  # -1 - .1 sigmoid(-1.094344) / (1 - e^-2)
    assert chosen.grad.isfinite().all()  # also where the model is certain


def test_kto():
    """r = 1 and -.5 around z = .4: 1 - sigmoid(.06) of a good answer, 1 - sigmoid(.09) of a bad one.

    Weights of 1.5 and .5 multiply them. Far away it is flat.
    """
    ref, good = f([-11, -11.5]), torch.tensor([True, False])
    policy = f([-10, -12]).requires_grad_()
    loss = kto_loss(policy, ref, good, 0.1, 0.4)
    equal(loss, [0.485004, 0.477515])
    (gradient,) = torch.autograd.grad(loss.sum(), policy)
    equal(gradient, [-0.024978, 0.024949])
    weights = dict(desirable_weight=1.5, undesirable_weight=0.5)
    equal(kto_loss(policy, ref, good, 0.1, 0.4, **weights), [0.727507, 0.238758])
    point = torch.tensor(0.4, requires_grad=True)
    assert not kto_loss(ref, ref, good, 0.1, point).requires_grad  # z is a constant
    far = f([500, -500]).requires_grad_()
    kto_loss(far, ref, good, 0.1, 0.4).sum().backward()
    equal(far.grad, [0, 0], 1e-12)


def test_hinge():
    """h = 1.5: 1 - .15; beyond h = 1 / beta it rests, on the wrong side it grows in proportion."""
    pair = f([-10]), f([-12]), f([-11]), f([-11.5])
    equal(hinge_loss(*pair, 0.1), [0.85])
    equal(hinge_loss(*pair, 1.0), [0.0])
    equal(hinge_loss(pair[1], pair[0], pair[3], pair[2], 0.1), [1.15])


# --- advantages: gaps, equal rewards, steps, pairs ----------------------------------------------


def test_a_gap_is_stepped_over():
    """A masked position in the middle is not the end of the response, and costs no discount.

    delta = 1 + .9 .25 - .5 = .725, then 2 - .25 = 1.75; .725 + .9 .8 1.75 = 1.985.
    """
    rewards, values = f([[1, torch.nan, 2]]), f([[0.5, torch.nan, 0.25]])
    mask = torch.tensor([[True, False, True]])
    assert discounted_returns(rewards, mask, 0.5).tolist() == [[2, 0, 2]]
    assert gae(rewards, values, mask, 0.9, 0.8)[0][0].tolist() == pytest.approx([1.985, 0, 1.75])
    mask, steps = torch.stack([mask[0], torch.ones(3).bool()]), torch.ones(2, 1, dtype=torch.bool)
    advantages = process_advantages(f([[1], [0]]), torch.tensor([[2], [2]]), steps, mask, 2, eps=0)
    assert advantages[0].tolist() == pytest.approx([0.5**0.5, 0, 0.5**0.5])


def off_by_one_ulp():
    """Equal float32 values whose mean is another number, for some lengths."""
    cases = [torch.full((n,), value) for n in range(2, 40) for value in (0.1, 1 / 3, 1000.1)]
    rounded = [x for x in cases if x.mean() != x[0]]
    assert rounded
    return rounded


def test_whiten_without_spread_is_zero():
    """A mean that is off by one ulp must not become an advantage."""
    for x in off_by_one_ulp():
        assert not whiten(x[:, None], torch.ones(len(x), 1, dtype=torch.bool)).any()
    one = torch.tensor([[True, False]])
    assert not whiten(torch.tensor([[5.0, torch.nan]]), one).any()
    assert not whiten(torch.full((2, 2), torch.nan), torch.zeros(2, 2, dtype=torch.bool)).any()


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_equal_rewards_give_exactly_zero(scale):
    """The rounded mean over a std of the same size would be an advantage of order one."""
    for rewards in off_by_one_ulp():
        size = len(rewards)
        assert not group_advantages(rewards, size, scale=scale, eps=1e-8).any()
        assert not group_advantages(rewards, size, scale=scale, eps=0.0).any()
        assert not leave_one_out_advantages(rewards, size).any()
        ones = torch.ones(2, size, dtype=torch.bool)
        steps, ends = rewards.expand(2, -1), torch.arange(size).expand(2, -1)
        assert not process_advantages(steps, ends, ones, ones, 2, eps=1e-8).any()


def slow_gdpo(columns, weights, size, eps):
    """z-scores within groups, weighted and added, then one z-score over the batch; plain Python."""
    totals = [0.0] * len(columns)
    for k, weight in enumerate(weights):
        for start in range(0, len(columns), size):
            values = [float(columns[row, k]) for row in range(start, start + size)]
            known = [value for value in values if not math.isnan(value)]
            for i, value in enumerate(values):
                if len(known) > 1 and not math.isnan(value):
                    spread = statistics.stdev(known) + eps
                    totals[start + i] += weight * (value - statistics.mean(known)) / spread
    mean, std = statistics.mean(totals), statistics.stdev(totals)
    return [(total - mean) / (std + eps) for total in totals]


def test_gdpo_by_loops():
    """Three rewards of very different spreads and weights, three groups of four, some not judged."""
    columns = torch.randn(12, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    columns *= torch.tensor([1.0, 100.0, 0.1], dtype=torch.float64)
    for row, k in ((0, 0), (5, 1), (8, 2), (9, 2), (10, 2)):
        columns[row, k] = math.nan
    found = gdpo_advantages(columns, (1.0, 0.5, -2.0), 4)
    assert found.shape == (12, 1)
    expected = slow_gdpo(columns, (1.0, 0.5, -2.0), 4, 1e-4)
    assert found[:, 0].tolist() == pytest.approx(expected, abs=1e-12)
    assert not gdpo_advantages(torch.full((4, 2), 0.1), (1.0, 2.0), 2).any()
    for broken in (columns[:, :2], columns[:11]):
        with pytest.raises(ValueError):
            gdpo_advantages(broken, (1.0, 0.5, -2.0), 4)


def test_process_advantages_by_loops():
    """Uneven numbers of steps: the pooled statistics weigh steps, and NaN fills the gaps."""
    steps = [[(0, 1.0), (2, -2.0), (3, 0.5)], [(1, 4.0)], [], [(0, 0.25), (1, 3.0)]]
    lengths = torch.tensor([4, 3, 2, 2])
    rewards = torch.full((4, 3), torch.nan, dtype=torch.float64)
    ends, step_mask = torch.full((4, 3), -1), torch.zeros(4, 3, dtype=torch.bool)
    for i, row in enumerate(steps):
        for j, (end, reward) in enumerate(row):
            rewards[i, j], ends[i, j], step_mask[i, j] = reward, end, True
    mask = torch.arange(4) < lengths[:, None]
    advantages = process_advantages(rewards, ends, step_mask, mask, 2, eps=0.01)
    for i in range(4):
        pooled = [reward for j in (i // 2 * 2, i // 2 * 2 + 1) for _, reward in steps[j]]
        mean, std = statistics.mean(pooled), statistics.stdev(pooled) + 0.01
        expected = [
            sum((reward - mean) / std for end, reward in steps[i] if end >= t) for t in range(4)
        ]
        assert advantages[i].tolist() == pytest.approx(
            [a if mask[i, t] else 0 for t, a in enumerate(expected)]
        )


def test_steps_without_another_to_compare_with_give_no_advantage():
    """One step in the whole group; no step at all, padded to no column or to one without use."""
    mask = torch.ones(2, 2, dtype=torch.bool)
    for rewards, ends, steps in (
        (f([[3.0], [torch.nan]]), [[1], [0]], [[True], [False]]),
        (torch.zeros(2, 0), [[], []], [[], []]),
        (torch.full((2, 1), torch.nan), [[-1], [-1]], [[False], [False]]),
    ):
        given = torch.tensor(ends).long(), torch.tensor(steps).bool(), mask
        for unbiased in (True, False):
            advantages = process_advantages(rewards, *given, 2, unbiased=unbiased, eps=0)
            assert advantages.shape == (2, 2) and not advantages.any()


def test_best_and_worst_by_literals():
    """The first of several best and worst; no pair from equal rewards or a gap of just `margin`."""
    rewards = torch.tensor([1.0, 3, 3, 0, 2, 2, 2, 2, 0, 1, 0.5, 0])
    assert best_worst_pairs(rewards, 4).tolist() == [[1, 3], [9, 8]]
    assert best_worst_pairs(rewards, 4, margin=1.0).tolist() == [[1, 3]]
    assert best_worst_pairs(rewards, 4, margin=3.0).tolist() == []
    assert best_worst_pairs(rewards, 4, margin=3.0).shape == (0, 2)


def test_ordered_pairs_by_literals():
    rewards = torch.tensor([1.0, 3, 3, 0.0, 0.0, 0.0])
    assert ordered_pairs(rewards, 3).tolist() == [[1, 0], [2, 0]]
    rewards = torch.tensor([1.0, 3, 0, 5, 5, 5.5])
    assert ordered_pairs(rewards, 3).tolist() == [[0, 2], [1, 0], [1, 2], [5, 3], [5, 4]]
    assert ordered_pairs(rewards, 3, margin=1.0).tolist() == [[1, 0], [1, 2]]


# --- losses: overflow, clips, empty batches, half precision -------------------------------------


def test_a_huge_log_ratio_stays_finite():
    """exp(200) overflows float32; the loss and its gradient must not."""
    log_probs = torch.tensor([[0.0, -200.0]], requires_grad=True)
    old = torch.tensor([[-200.0, 0.0]])
    for advantage in (1.0, -1.0):
        loss = clipped_surrogate(log_probs, old, torch.tensor([[advantage]]), 0.2, 0.2)
        gradient = torch.autograd.grad(loss.sum(), log_probs)[0]
        assert loss.isfinite().all() and gradient.isfinite().all()
    ratio = likelihood_ratio(log_probs, old)
    torch.testing.assert_close(ratio.log(), torch.tensor([[20.0, -20.0]]))


def test_the_ratio_of_a_response_is_held_within_exp_of_20_too():
    """200 nats away, and as a mean 100: exp(20) or exp(-20), without a gradient."""
    new = torch.tensor([[0.0, 0.0], [-100.0, -100.0]], requires_grad=True)
    old, mask, ones = new.detach().flip(0), torch.ones(2, 2).bool(), torch.ones(2, 1)
    for ratio in (
        sequence_ratio(new, old, mask),
        mean_ratio(new, old, mask),
        -gmpo(new, old, ones, mask, 1e9, 1e9)[:, :1],
    ):
        torch.testing.assert_close(ratio.log(), torch.tensor([[20.0], [-20.0]]))
        assert not torch.autograd.grad(ratio.sum(), new)[0].any()


def test_an_empty_batch_costs_zero():
    no_rows = torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.bool)
    for reducer in (token_mean, sequence_mean, sequence_sum):
        assert reducer(*no_rows).item() == 0
        assert reducer(torch.ones(2, 3), torch.zeros(2, 3).bool(), denominator=0).item() == 0
    assert constant_length_mean(*no_rows, 4).item() == 0
    empty = torch.zeros(0)
    assert dpo_loss(empty, empty, empty, empty, 0.1).sum() == 0


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_slope_of_the_full_kl_is_its_finite_difference():
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
