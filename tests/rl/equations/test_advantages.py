"""Advantages against slow definitions written from the papers, and what they refuse."""

import statistics

import pytest
import torch

from rl.equations.advantages import (
    best_worst_pairs,
    discounted_returns,
    gae,
    gdpo_advantages,
    group_advantages,
    leave_one_out_advantages,
    ordered_pairs,
    process_advantages,
    whiten,
)

N, T = 4, 6
LENGTHS = (6, 3, 1, 0)


def f(values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture
def batch():
    """(token_rewards, values, mask): random rows of length 6, 3, 1 and 0, NaN in the padding."""
    generator = torch.Generator().manual_seed(0)
    rewards, values = torch.randn(2, N, T, generator=generator, dtype=torch.float64)
    mask = torch.arange(T) < torch.tensor(LENGTHS)[:, None]
    return rewards.where(mask, torch.nan), values.where(mask, torch.inf), mask


def gae_by_the_double_sum(rewards, values, length, gamma, gae_lambda, last_value=0.0):
    """A_t = sum_l (gamma lambda)^l delta_{t+l}, one row, plain Python."""
    v = [values[t].item() for t in range(length)] + [last_value]
    delta = [rewards[t].item() + gamma * v[t + 1] - v[t] for t in range(length)]
    return [
        sum((gamma * gae_lambda) ** (u - t) * delta[u] for u in range(t, length))
        for t in range(length)
    ]


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(0.9, 0.8), (1.0, 0.95), (1, 1), (0.99, 0)])
def test_gae_is_the_double_sum(batch, gamma, gae_lambda):
    rewards, values, mask = batch
    last_values = f([0.7, 0.0, -0.4, 5.0])
    for bootstrap in (None, last_values):
        advantages, returns = gae(
            rewards, values, mask, gamma, gae_lambda, bootstrap_values=bootstrap
        )
        for i, length in enumerate(LENGTHS):
            last = 0.0 if bootstrap is None else last_values[i].item()
            expected = gae_by_the_double_sum(rewards[i], values[i], length, gamma, gae_lambda, last)
            assert advantages[i, :length].tolist() == pytest.approx(expected)
            torch.testing.assert_close(
                returns[i, :length], advantages[i, :length] + values[i, :length]
            )
            assert not advantages[i, length:].any() and not returns[i, length:].any()


def test_gae_with_lambda_one_gives_monte_carlo_returns(batch):
    rewards, values, mask = batch
    _, returns = gae(rewards, values, mask, 0.9, 1.0)
    torch.testing.assert_close(returns, discounted_returns(rewards, mask, 0.9))


def test_gae_steps_over_a_gap(batch):
    """A masked position in the middle is skipped, not treated as the end of the response."""
    rewards, values = f([[1, torch.nan, 2]]), f([[0.5, torch.nan, 0.25]])
    advantages, _ = gae(rewards, values, torch.tensor([[True, False, True]]), 0.9, 0.8)
    expected = gae_by_the_double_sum(f([1, 2]), f([0.5, 0.25]), 2, 0.9, 0.8)
    assert advantages[0].tolist() == pytest.approx([expected[0], 0, expected[1]])


def test_discounted_returns_step_over_a_gap():
    """One step of discount between the two valid tokens, not two."""
    rewards = f([[1, torch.nan, 2]])
    returns = discounted_returns(rewards, torch.tensor([[True, False, True]]), 0.5)
    assert returns.tolist() == [[2, 0, 2]]


def test_discounted_returns_are_the_double_sum(batch):
    rewards, _, mask = batch
    returns = discounted_returns(rewards, mask, 0.9)
    for i, length in enumerate(LENGTHS):
        expected = [
            sum(0.9 ** (u - t) * rewards[i, u].item() for u in range(t, length))
            for t in range(length)
        ]
        assert returns[i].tolist() == pytest.approx(expected + [0] * (T - length))


def test_whiten_uses_all_valid_tokens_of_the_batch_at_once(batch):
    rewards, _, mask = batch
    valid = rewards[mask].tolist()
    for unbiased, variance in ((True, statistics.variance), (False, statistics.pvariance)):
        whitened = whiten(rewards, mask, unbiased=unbiased)
        scale = (variance(valid) + 1e-8) ** 0.5
        expected = [(x - statistics.mean(valid)) / scale for x in valid]
        assert whitened[mask].tolist() == pytest.approx(expected)
        assert not whitened[~mask].any()
        kept_mean = whiten(rewards, mask, unbiased=unbiased, shift_mean=False)
        assert kept_mean[mask].mean().item() == pytest.approx(statistics.mean(valid))
        assert not kept_mean[~mask].any()


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


def test_group_advantages_are_z_scores_of_each_group():
    rewards = f([0.3, -1.0, 2.0, 5.0, 5.5, -3.0])
    for unbiased, std in ((True, statistics.stdev), (False, statistics.pstdev)):
        advantages = group_advantages(rewards, 3, unbiased=unbiased, eps=1e-6).squeeze(1)
        for group, actual in zip(rewards.view(2, 3).tolist(), advantages.view(2, 3), strict=True):
            expected = [(x - statistics.mean(group)) / (std(group) + 1e-6) for x in group]
            assert actual.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_equal_rewards_give_exactly_zero(scale):
    """The rounded mean over a std of the same size would be an advantage of order one."""
    for rewards in off_by_one_ulp():
        size = len(rewards)
        assert not group_advantages(rewards, size, scale=scale, eps=1e-8).any()
        assert not group_advantages(rewards, size, scale=scale, eps=0.0).any()
        assert not leave_one_out_advantages(rewards, size).any()


def test_equal_step_rewards_give_exactly_zero():
    for rewards in off_by_one_ulp():
        ones = torch.ones(2, len(rewards), dtype=torch.bool)
        ends = torch.arange(len(rewards)).expand(2, -1)
        steps = rewards.expand(2, -1)
        assert not process_advantages(steps, ends, ones, ones, 2, eps=1e-8).any()


def test_process_advantages_are_zero_in_a_gap():
    mask = torch.tensor([[True, False, True], [True, True, True]])
    steps = torch.ones(2, 1, dtype=torch.bool)
    advantages = process_advantages(f([[1], [0]]), torch.tensor([[2], [2]]), steps, mask, 2, eps=0)
    assert advantages[0].tolist() == pytest.approx([0.5**0.5, 0, 0.5**0.5])


def test_leave_one_out_is_the_reward_minus_the_others_mean():
    rewards = f([0.3, -1.0, 2.0, 5.0, 5.5, -3.0])
    advantages = leave_one_out_advantages(rewards, 3).squeeze(1)
    for i, reward in enumerate(rewards.tolist()):
        group = range(i // 3 * 3, i // 3 * 3 + 3)
        others = [rewards[j].item() for j in group if j != i]
        assert advantages[i].item() == pytest.approx(reward - statistics.mean(others))


def test_one_step_per_response_is_outcome_supervision():
    rewards = f([0.3, -1.0, 2.0, 5.0])
    lengths = torch.tensor([3, 1, 2, 4])
    mask = torch.arange(4) < lengths[:, None]
    process = process_advantages(
        rewards[:, None], lengths[:, None] - 1, torch.ones(4, 1, dtype=torch.bool), mask, 2
    )
    outcome = group_advantages(rewards, 2)
    torch.testing.assert_close(process, torch.where(mask, outcome, 0.0))


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


def test_a_single_pooled_step_has_no_advantage():
    steps = torch.tensor([[True], [False]])
    ends, rewards = torch.tensor([[1], [0]]), f([[3.0], [torch.nan]])
    mask = torch.ones(2, 2, dtype=torch.bool)
    for unbiased in (True, False):
        assert not process_advantages(rewards, ends, steps, mask, 2, unbiased=unbiased, eps=0).any()


def test_no_steps_at_all_give_no_advantage():
    """Nothing was segmented: padded to no column, or to one that no response uses."""
    mask = torch.ones(2, 3, dtype=torch.bool)
    for columns in (0, 1):
        steps = torch.zeros(2, columns, dtype=torch.bool)
        ends = torch.full((2, columns), -1)
        advantages = process_advantages(torch.full((2, columns), torch.nan), ends, steps, mask, 2)
        assert advantages.shape == (2, 3) and not advantages.any()


def test_a_step_must_end_inside_its_response():
    mask = torch.tensor([[True, True], [True, False]])
    steps = torch.ones(2, 1, dtype=torch.bool)
    for bad_end in (1, 2, -1):
        ends = torch.tensor([[1], [bad_end]])
        with pytest.raises(ValueError, match="row 1 has a step that ends outside its response"):
            process_advantages(torch.zeros(2, 1), ends, steps, mask, 2)


@pytest.mark.parametrize("estimator", [group_advantages, leave_one_out_advantages])
def test_what_cannot_be_a_group_is_refused(estimator):
    with pytest.raises(ValueError, match="at least 2"):
        estimator(torch.zeros(4), 1)
    with pytest.raises(ValueError, match="do not divide into groups of 3"):
        estimator(torch.zeros(4), 3)
    with pytest.raises(ValueError, match=r"must be \(N,\)"):
        estimator(torch.zeros(4, 1), 2)
    with pytest.raises(ValueError, match="finite"):
        estimator(torch.tensor([1.0, torch.nan]), 2)


def test_unknown_scale_is_refused():
    with pytest.raises(ValueError, match="one of group, batch, none"):
        group_advantages(torch.zeros(4), 2, scale="std")


def test_wrong_shapes_are_refused():
    x, mask = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="one size per axis"):
        gae(x, x[:, :2], mask, 1, 1)
    with pytest.raises(ValueError, match="one size per axis"):
        gae(x[0], x[0], mask[0], 1, 1)
    with pytest.raises(ValueError, match="bool"):
        gae(x, x, mask.long(), 1, 1)
    with pytest.raises(ValueError, match=r"bootstrap_values must be \(N,\)"):
        gae(x, x, mask, 1, 1, bootstrap_values=torch.zeros(2, 1))
    with pytest.raises(ValueError, match="one size per axis"):
        discounted_returns(x, mask[:, :2], 1)
    with pytest.raises(ValueError, match="bool"):
        whiten(x, mask.float())


def test_advantages_are_constants_and_keep_float64():
    rewards = torch.randn(2, 3, requires_grad=True)
    mask = torch.ones(2, 3, dtype=torch.bool)
    scores = torch.randn(4, requires_grad=True)
    for result in (
        *gae(rewards, rewards, mask, 1, 0.95),
        discounted_returns(rewards, mask, 1),
        whiten(rewards, mask),
        group_advantages(scores, 2),
        leave_one_out_advantages(scores, 2),
    ):
        assert not result.requires_grad
        assert result.dtype == torch.float32
    assert group_advantages(scores.double(), 2).dtype == torch.float64
    assert group_advantages(scores.bfloat16(), 2).dtype == torch.float32
    assert gae(rewards.double(), rewards.double(), mask, 1, 1)[0].dtype == torch.float64
    assert gae(rewards.half(), rewards.half(), mask, 1, 1)[0].dtype == torch.float32


# GDPO


def slow_gdpo(parts, group_size, eps):
    """z-scores within groups, weighted and added, then one z-score over the batch; plain Python."""
    totals = [0.0] * len(next(iter(parts.values()))[1])
    for weight, values in parts.values():
        for start in range(0, len(values), group_size):
            group = [float(value) for value in values[start : start + group_size]]
            for i, value in enumerate(group):
                spread = statistics.stdev(group) + eps
                totals[start + i] += weight * (value - statistics.mean(group)) / spread
    mean, std = statistics.mean(totals), statistics.stdev(totals)
    return [(total - mean) / (std + eps) for total in totals]


def test_gdpo_advantages_are_a_z_score_of_z_scores():
    """Three parts of very different spreads and weights, three groups of four."""
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(3, 12, generator=generator, dtype=torch.float64)
    parts = {
        name: (weight, scale * value)
        for name, weight, scale, value in zip("abc", (1.0, 0.5, 2.0), (1, 100, 0.1), values, strict=True)
    }  # fmt: skip
    advantages = gdpo_advantages(parts, 4)
    assert advantages.shape == (12, 1)
    assert advantages[:, 0].tolist() == pytest.approx(slow_gdpo(parts, 4, 1e-4), abs=1e-12)


def test_gdpo_with_nothing_to_compare():
    """Equal values in every part give exactly 0; a reward without parts and a group of one are refused."""
    equal = torch.full((4,), 0.1)
    assert gdpo_advantages({"a": (1.0, equal), "b": (2.0, equal)}, 2).tolist() == [[0]] * 4
    with pytest.raises(ValueError, match="this reward has none"):
        gdpo_advantages({}, 2)
    with pytest.raises(ValueError, match="group_size must be at least 2"):
        gdpo_advantages({"a": (1.0, equal)}, 1)


# --- preference pairs, from the rewards of a group ---------------------------------------------


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


@pytest.mark.parametrize("margin", [0.0, 1.0])
@pytest.mark.parametrize("group_size", [2, 3, 5])
def test_pairs_against_plain_loops(group_size, margin):
    generator = torch.Generator().manual_seed(group_size)
    rewards = torch.randint(0, 4, (6 * group_size,), generator=generator).float()  # with ties
    best_worst, ordered = [], []
    for start in range(0, len(rewards), group_size):
        group = rewards[start : start + group_size].tolist()
        best, worst = group.index(max(group)), group.index(min(group))
        if group[best] - group[worst] > margin:
            best_worst.append([start + best, start + worst])
        for i in range(group_size):
            for j in range(group_size):
                if group[i] - group[j] > margin:
                    ordered.append([start + i, start + j])
    assert best_worst and len(ordered) >= len(best_worst)
    assert best_worst_pairs(rewards, group_size, margin).tolist() == best_worst
    assert ordered_pairs(rewards, group_size, margin).tolist() == ordered


@pytest.mark.parametrize("choose", [best_worst_pairs, ordered_pairs])
def test_pairs_that_make_no_sense_are_refused(choose):
    for margin in (-0.1, float("nan")):
        with pytest.raises(ValueError, match="margin must be in"):
            choose(torch.rand(4), 2, margin)
    with pytest.raises(ValueError, match="group_size must be at least 2"):
        choose(torch.rand(4), 1)
    with pytest.raises(ValueError, match="finite"):
        choose(torch.tensor([1.0, float("nan")]), 2)
