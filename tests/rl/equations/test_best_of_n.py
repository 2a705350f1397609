"""Best-of-n and pass@k from a bank of answers: worked numbers, and every subset counted."""

import itertools
import math
import statistics

import pytest
import torch
from toys import float64 as f

from rl.equations.best_of_n import best_of_n_kl, best_of_n_mean, best_of_n_weights, pass_at_k


def test_worked_numbers():
    """Best of 2 from 3, gold by rising proxy .2, .5, .6: (0 * .2 + 1 * .5 + 2 * .6) / 3."""
    assert best_of_n_weights(3, 2).tolist() == pytest.approx([0, 1 / 3, 2 / 3])
    proxy, gold = f([[3.0, 1.0, 2.0]]), f([[0.6, 0.2, 0.5]])
    assert best_of_n_mean(proxy, gold, 2).tolist() == pytest.approx([0.566667], abs=1e-6)
    assert best_of_n_mean(proxy, gold, 1).tolist() == pytest.approx([1.3 / 3])
    assert best_of_n_mean(proxy, gold, 3).tolist() == pytest.approx([0.6])


def test_the_distance_of_the_best_of_n():
    """log 2 - 1/2, log 16 - 15/16, and 512 answers for 5.24 nats."""
    assert best_of_n_kl(1) == 0
    assert best_of_n_kl(2) == pytest.approx(0.193147, abs=1e-6)
    assert best_of_n_kl(16) == pytest.approx(1.835089, abs=1e-6)
    assert best_of_n_kl(512) == pytest.approx(5.240278, abs=1e-6)


def test_the_distance_is_the_kl_of_the_enumerated_distribution():
    """The best of n of a uniform variable on (0, 1) has density n u^(n-1): KL to 1 is the integral."""
    for n in (2, 3, 8):
        densities = [n * ((k + 0.5) / 20_000) ** (n - 1) for k in range(20_000)]
        kl = statistics.fmean(p * math.log(p) for p in densities)
        assert best_of_n_kl(n) == pytest.approx(kl, abs=1e-3)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 6])
def test_it_is_the_mean_over_all_subsets(n):
    generator = torch.Generator().manual_seed(n)
    proxy = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    gold = torch.rand(4, 6, generator=generator, dtype=torch.float64)
    for row, mean in enumerate(best_of_n_mean(proxy, gold, n).tolist()):
        best = [
            max(subset, key=lambda i: float(proxy[row, i]))
            for subset in itertools.combinations(range(6), n)
        ]
        assert mean == pytest.approx(statistics.fmean(float(gold[row, i]) for i in best))


def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample():
    correct = torch.tensor([[1, 0, 0, 0, 1, 0], [0] * 6, [1] * 6, [0, 0, 1, 1, 1, 1]]).bool()
    for k in range(1, 7):
        hits = [
            any(row[i] for i in subset)
            for row in correct.tolist()
            for subset in itertools.combinations(range(6), k)
        ]
        assert pass_at_k(correct, k) == pytest.approx(sum(hits) / len(hits))
    assert pass_at_k(correct, 1) == pytest.approx(float(correct.float().mean()))
    assert pass_at_k(correct, 6) == 0.75
