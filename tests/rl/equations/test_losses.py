"""Losses and reducers against slow definitions, and what they refuse."""

import math

import pytest
import torch

from harness.equation_checks import at_least_float32, finite_inputs
from rl.equations.losses import (
    cispo,
    clip_acted,
    clipped_surrogate,
    constant_length_mean,
    dual_clip,
    gspo,
    gspo_token,
    high_entropy_mask,
    length_normalized_returns,
    likelihood_ratio,
    mean_ratio,
    mixed_sampling_weights,
    off_policy_sequence_mask,
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
from rl.equations.preferences import dpo_loss, ipo_loss


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


N, T = 4, 5
LENGTHS = (5, 2, 1, 0)
REDUCERS = [token_mean, sequence_mean, sequence_sum]
TOKEN_SURROGATES = [
    lambda lp, old, a: clipped_surrogate(lp, old, a, 0.2, 0.28),
    lambda lp, old, a: dual_clip(clipped_surrogate(lp, old, a, 0.2, 0.28), a, 3.0),
    lambda lp, old, a: cispo(lp, old, a, 0.28),
    lambda lp, old, a: sapo(lp, old, a),
    lambda lp, old, a: policy_gradient(lp, a),
]
SEQUENCE_SURROGATES = [sequence_clipped_surrogate, gspo, gspo_token]


@pytest.fixture
def batch():
    """(log_probs, old_log_probs, advantages (N, T), mask), random, NaN in the padding."""
    generator = torch.Generator().manual_seed(1)
    new, old, advantages = torch.randn(3, N, T, generator=generator, dtype=torch.float64)
    mask = torch.arange(T) < torch.tensor(LENGTHS)[:, None]
    return (*(x.where(mask, torch.nan) for x in (new / 3 - 1, old / 3 - 1, advantages)), mask)


def valid_tokens():
    return [(i, t) for i, length in enumerate(LENGTHS) for t in range(length)]


def slow_clip(ratio, advantage, low, high):
    """PPO's four cases, without a min."""
    if advantage >= 0:
        return -advantage * (ratio if ratio < 1 + high else 1 + high)
    return -advantage * (ratio if ratio > 1 - low else 1 - low)


def test_clipped_surrogate_case_by_case(batch):
    new, old, advantages, _ = batch
    loss = clipped_surrogate(new, old, advantages, 0.2, 0.28)
    clipped = clip_acted(likelihood_ratio(new, old), advantages, 0.2, 0.28)
    assert clipped.any() and not clipped.all()
    for i, t in valid_tokens():
        ratio, a = math.exp(new[i, t] - old[i, t]), advantages[i, t].item()
        assert loss[i, t].item() == pytest.approx(slow_clip(ratio, a, 0.2, 0.28))
        assert clipped[i, t].item() == ((a > 0 and ratio > 1.28) or (a < 0 and ratio < 0.8))


def test_dual_clip_bounds_only_negative_advantages():
    log_probs = torch.tensor([[math.log(10), math.log(10)]])
    advantages = torch.tensor([[-1.0, 1.0]])
    loss = clipped_surrogate(log_probs, torch.zeros(1, 2), advantages, 0.2, 0.2)
    loss = dual_clip(loss, advantages, 3)
    assert loss.tolist() == [[3, pytest.approx(-1.2)]]
    with pytest.raises(ValueError, match=r"bound must be in \(1, inf\)"):
        dual_clip(loss, advantages, 1.0)


def test_sequence_ratios_by_loops(batch):
    """The product of the token ratios, and its L-th root."""
    new, old, _, mask = batch
    advantages = torch.tensor([[1.5], [-0.5], [2.0], [torch.nan]], dtype=torch.float64)
    product = sequence_clipped_surrogate(new, old, advantages, mask, 0.2, 0.2)
    geometric = gspo(new, old, advantages, mask, 0.05, 0.05)
    per_token = gspo_token(new, old, advantages, mask, 0.05, 0.05)
    for i, length in enumerate(LENGTHS[:3]):
        change = sum((new[i, t] - old[i, t]).item() for t in range(length))
        a = advantages[i].item()
        expected = slow_clip(math.exp(change), a, 0.2, 0.2)
        assert product[i, :length].tolist() == pytest.approx([expected] * length)
        expected = slow_clip(math.exp(change / length), a, 0.05, 0.05)
        assert geometric[i, :length].tolist() == pytest.approx([expected] * length)
        assert per_token[i, :length].tolist() == pytest.approx([expected] * length)
    for loss in (product, geometric, per_token):
        assert not loss[~mask].any()


def test_gspo_token_takes_an_advantage_for_each_token(batch):
    """s_i is one number per response; each token is clipped by the sign of its own advantage."""
    new, old, advantages, mask = batch
    loss = gspo_token(new, old, advantages, mask, 0.05, 0.05)
    for i, t in valid_tokens():
        change = sum((new[i, u] - old[i, u]).item() for u in range(LENGTHS[i]))
        ratio = math.exp(change / LENGTHS[i])
        assert loss[i, t].item() == pytest.approx(
            slow_clip(ratio, advantages[i, t].item(), 0.05, 0.05)
        )


def test_cispo_and_sapo_by_loops(batch):
    new, old, advantages, _ = batch
    truncated = cispo(new, old, advantages, 0.28)
    soft = sapo(new, old, advantages)
    for i, t in valid_tokens():
        ratio, a = math.exp(new[i, t] - old[i, t]), advantages[i, t].item()
        assert truncated[i, t].item() == pytest.approx(-min(ratio, 1.28) * a * new[i, t].item())
        tau = 1.0 if a > 0 else 1.05
        gate = 4 / tau / (1 + math.exp(-tau * (ratio - 1)))
        assert soft[i, t].item() == pytest.approx(-gate * a)


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


def test_value_loss_by_loops(batch):
    values, old, returns, _ = batch
    loss, clipped_loss = value_loss(values, old, returns), value_loss(values, old, returns, 0.1)
    for i, t in valid_tokens():
        v, v_old, target = (x[i, t].item() for x in (values, old, returns))
        assert loss[i, t].item() == pytest.approx((v - target) ** 2 / 2)
        near = min(max(v, v_old - 0.1), v_old + 0.1)
        expected = max((v - target) ** 2, (near - target) ** 2) / 2
        assert clipped_loss[i, t].item() == pytest.approx(expected)


def test_dpo_and_ipo_by_their_definitions():
    chosen, rejected, ref_chosen, ref_rejected = torch.randn(4, 6, dtype=torch.float64)
    h = (chosen - ref_chosen) - (rejected - ref_rejected)
    loss = dpo_loss(chosen, rejected, ref_chosen, ref_rejected, 0.3, label_smoothing=0.2)
    squared = ipo_loss(chosen, rejected, ref_chosen, ref_rejected, 0.3)
    for i in range(6):
        win = 1 / (1 + math.exp(-0.3 * h[i].item()))
        expected = -0.8 * math.log(win) - 0.2 * math.log(1 - win)
        assert loss[i].item() == pytest.approx(expected)
        assert squared[i].item() == pytest.approx((h[i].item() - 1 / 0.6) ** 2)


def test_dpo_of_no_pairs_is_empty_and_of_bad_pairs_refused():
    empty = torch.zeros(0)
    assert dpo_loss(empty, empty, empty, empty, 0.1).sum() == 0
    pair, other = torch.zeros(2), torch.zeros(3)
    with pytest.raises(ValueError, match=r"must be \(pairs,\)"):
        dpo_loss(pair, pair, pair, other, 0.1)
    with pytest.raises(ValueError, match=r"must be \(pairs,\)"):
        ipo_loss(*[torch.zeros(2, 1)] * 4, 0.1)
    with pytest.raises(ValueError, match=r"beta must be in \(0, inf\)"):
        ipo_loss(pair, pair, pair, pair, 0.0)


def test_length_normalized_returns_by_loops(batch):
    rewards, _, _, mask = batch
    normalized = length_normalized_returns(rewards, mask)
    for i, t in valid_tokens():
        later = [rewards[i, u].item() for u in range(t + 1, LENGTHS[i])]
        expected = sum(later) / len(later) if later else 0
        assert normalized[i, t].item() == pytest.approx(expected)
    assert not normalized[~mask].any()


def test_mixed_sampling_weights_by_loops_and_bound(batch):
    student, teacher, _, mask = batch
    weights = mixed_sampling_weights(student, teacher, mask, 0.2)
    for i, t in valid_tokens():
        q, p = math.exp(student[i, t]), math.exp(teacher[i, t])
        assert weights[i, t].item() == pytest.approx(q / (0.2 * p + 0.8 * q))
    assert weights.max() <= 1.25 and not weights[~mask].any()
    assert torch.equal(mixed_sampling_weights(student, teacher, mask, 0.0), mask.double())
    impossible = torch.full_like(teacher, -torch.inf)  # the teacher never says it: only q is left
    bound = mixed_sampling_weights(student, impossible, mask, 0.2)[mask]
    torch.testing.assert_close(bound, torch.full_like(bound, 1.25))
    for alpha in (1.0, -0.1):
        with pytest.raises(ValueError, match="alpha"):
            mixed_sampling_weights(student, teacher, mask, alpha)


def test_reducers_by_loops(batch):
    loss, _, _, mask = batch
    rows = [[loss[i, t].item() for t in range(length)] for i, length in enumerate(LENGTHS)]
    total, full_rows = sum(map(sum, rows)), [row for row in rows if row]
    assert token_mean(loss, mask).item() == pytest.approx(total / sum(LENGTHS))
    assert sequence_mean(loss, mask).item() == pytest.approx(
        sum(sum(row) / len(row) for row in full_rows) / len(full_rows)
    )
    assert sequence_sum(loss, mask).item() == pytest.approx(total / len(full_rows))
    assert constant_length_mean(loss, mask, 7).item() == pytest.approx(total / (N * 7))
    assert row_sums(loss, mask).tolist() == pytest.approx([sum(row) for row in rows])
    assert row_means(loss, mask).tolist() == pytest.approx(
        [sum(row) / max(len(row), 1) for row in rows]
    )


def test_an_empty_row_counts_only_in_the_constant_length_mean(batch):
    loss, _, _, mask = batch
    for reducer in REDUCERS:
        torch.testing.assert_close(reducer(loss, mask), reducer(loss[:3], mask[:3]))
    with_row = constant_length_mean(loss, mask, 7)
    torch.testing.assert_close(with_row, constant_length_mean(loss[:3], mask[:3], 7) * 3 / 4)


def test_an_empty_batch_costs_zero():
    loss = torch.full((2, 3), torch.nan, requires_grad=True)
    mask = torch.zeros(2, 3, dtype=torch.bool)
    reduced = [reducer(loss, mask) for reducer in REDUCERS]
    reduced += [constant_length_mean(loss, mask, 4), token_mean(loss, mask, denominator=0)]
    for value in reduced:
        assert value.item() == 0
        assert not torch.autograd.grad(value, loss)[0].any()
    for reducer in REDUCERS:
        assert reducer(torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.bool)).item() == 0


def test_a_nan_that_takes_part_is_seen():
    """Only the padding is forgiven: NaN at a valid position makes the loss NaN."""
    log_probs = torch.tensor([[-1.0, torch.nan]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    for surrogate in TOKEN_SURROGATES:
        loss = surrogate(log_probs, torch.zeros(1, 2), torch.ones(1, 1))
        assert token_mean(loss, mask).isnan() and loss[0, 0].isfinite()


def test_finite_inputs_are_zero_wherever_one_of_them_is_not():
    x, y = torch.tensor([[1.0, torch.nan, 3.0]]), torch.tensor([[1.0, 2.0, torch.inf]])
    finite, clean_x, clean_y = finite_inputs(x, y)
    assert finite.tolist() == [[True, False, False]]
    assert clean_x.tolist() == [[1, 0, 0]] and clean_y.tolist() == [[1, 0, 0]]
    fill = torch.tensor([[torch.finfo(torch.float32).min, 1e8]])  # a large advantage is kept
    assert finite_inputs(fill)[1].tolist() == [[0, 1e8]]
    finite, wide = finite_inputs(torch.ones(1, 3), torch.tensor([[torch.nan]]))[:2]
    assert not finite.any() and wide.shape == (1, 3)


@pytest.mark.parametrize("surrogate", TOKEN_SURROGATES)
def test_one_dimensional_advantages_are_refused(surrogate):
    """With N == T an (N,) tensor broadcasts silently, token t getting response t's advantage."""
    x = torch.zeros(3, 3)
    with pytest.raises(ValueError, match=r"advantages must be \(N, T\) or \(N, 1\)"):
        surrogate(x, x, torch.zeros(3))
    for shape in ((1, 3), (2, 3), (1, 1)):
        with pytest.raises(ValueError, match=r"\(N, T\) or \(N, 1\)"):
            surrogate(x, x, torch.zeros(shape))


@pytest.mark.parametrize("surrogate", SEQUENCE_SURROGATES)
def test_sequence_surrogates_refuse_wrong_shapes(surrogate):
    x, mask = torch.zeros(3, 3), torch.ones(3, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="advantages must be"):
        surrogate(x, x, torch.zeros(3), mask, 0.2, 0.2)
    if surrogate is not gspo_token:
        with pytest.raises(ValueError, match=r"advantages must be \(N, 1\)"):
            surrogate(x, x, x, mask, 0.2, 0.2)
    with pytest.raises(ValueError, match="one size per axis"):
        surrogate(x, x[:, :2], torch.zeros(3, 1), mask, 0.2, 0.2)
    with pytest.raises(ValueError, match="bool"):
        surrogate(x, x, torch.zeros(3, 1), mask.long(), 0.2, 0.2)


def test_other_wrong_shapes_are_refused():
    x, mask = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
    for call in (
        lambda: clipped_surrogate(x, x[:1], torch.zeros(2, 1), 0.2, 0.2),
        lambda: value_loss(x, x, torch.zeros(2, 1)),
        lambda: token_mean(x, mask[:, :1]),
        lambda: sequence_mean(x[0], mask[0]),
        lambda: mixed_sampling_weights(x, x[:, :1], mask, 0.2),
    ):
        with pytest.raises(ValueError, match="one size per axis"):
            call()
    with pytest.raises(ValueError, match=r"length must be in \[1, inf\)"):
        constant_length_mean(x, mask, 0)


def test_at_least_float32_and_what_it_keeps():
    for dtype in (torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.float32):
        assert at_least_float32(torch.ones(1, dtype=dtype)).dtype == torch.float32
    assert at_least_float32(torch.ones(1, dtype=torch.float64)).dtype == torch.float64
    half = torch.zeros(2, 3, dtype=torch.bfloat16)
    mask = torch.ones(2, 3, dtype=torch.bool)
    for surrogate in TOKEN_SURROGATES:
        assert surrogate(half, half, half).dtype == torch.float32
    assert token_mean(half, mask).dtype == torch.float32
    assert token_mean(half.double(), mask, denominator=6).dtype == torch.float64


# --- ratios and masks stand at the border too --------------------------------------------------


@pytest.mark.parametrize("ratio", [sequence_ratio, mean_ratio])
def test_ratios_of_responses_read_the_valid_tokens_and_give_the_old_policy_no_gradient(ratio):
    new = torch.tensor([[0.5, 0.25, torch.nan]]).requires_grad_()
    old = torch.zeros(1, 3).requires_grad_()
    mask = torch.tensor([[True, True, False]])
    power = 0.75 if ratio is sequence_ratio else 0.375
    value = ratio(new, old, mask)
    assert value.tolist() == [[pytest.approx(math.exp(power))]]
    value.sum().backward()
    assert old.grad is None
    assert new.grad is not None and new.grad[0, 2] == 0 and (new.grad[0, :2] > 0).all()
    with pytest.raises(ValueError, match="one size per axis"):
        ratio(new, old[:, :2], mask)


def test_the_off_policy_mask_drops_a_bad_response_only_once_it_has_drifted_past_the_threshold():
    """Good and drifted stays, bad and near stays, bad and at the threshold stays."""
    old = torch.zeros(4, 2)
    new = torch.tensor([[-2.0, -2.0], [-0.25, -0.25], [-1.0, -0.0], [-1.5, -0.0]])
    advantages = torch.tensor([[1.0], [-1.0], [-1.0], [-1.0]])
    keep = off_policy_sequence_mask(new, old, advantages, torch.ones(4, 2, dtype=torch.bool), 0.5)
    assert keep.tolist() == [[True], [True], [True], [False]]


def test_the_high_entropy_mask_takes_the_share_of_valid_tokens_and_all_ties():
    entropy = torch.tensor([[3.0, 1.0, 9.0], [2.0, 3.0, 0.5]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    kept = high_entropy_mask(entropy, mask, 0.2)  # ceil(0.2 * 5) = 1, and what ties with it
    assert kept.tolist() == [[True, False, False], [False, True, False]]
    assert high_entropy_mask(entropy, mask, 1.0).equal(mask)
    assert not high_entropy_mask(entropy, torch.zeros_like(mask), 0.5).any()
    with pytest.raises(ValueError, match=r"share must be in \(0, 1\]"):
        high_entropy_mask(entropy, mask, 0.0)
    with pytest.raises(ValueError, match="mask must be bool"):
        high_entropy_mask(entropy, mask.long(), 0.5)
