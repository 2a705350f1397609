"""Advantages where no other implementation checks them: gaps, equal rewards, steps, parts, pairs."""

import math
import statistics

import pytest
import torch
from toys import float64 as f

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
