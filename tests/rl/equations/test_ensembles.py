"""Several reward models as one reward: worked numbers, loops, and what each combination ignores."""

import statistics

import pytest
import torch

from rl.equations.ensembles import ensemble_mean, uncertainty_weighted, worst_case


def f(values):
    return torch.tensor(values, dtype=torch.float64)


THREE = f([[1.0], [2.0], [4.0]])  # three members, one response
SCORES = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_worked_numbers():
    """1, 2 and 4: mean 7/3, sample variance 7/3 (over n it would be 1.5556), minimum 1."""
    assert ensemble_mean(THREE).tolist() == pytest.approx([7 / 3])
    assert worst_case(THREE).tolist() == [1]
    assert uncertainty_weighted(THREE, 0.5).tolist() == pytest.approx([1.166667], abs=1e-6)
    assert uncertainty_weighted(THREE, 0.0).tolist() == pytest.approx([7 / 3])


def test_each_response_by_itself():
    """Loops over the responses; the members' axis is the first one."""
    columns = SCORES.T.tolist()
    assert ensemble_mean(SCORES).tolist() == pytest.approx([statistics.mean(c) for c in columns])
    assert worst_case(SCORES).tolist() == [min(c) for c in columns]
    expected = [statistics.mean(c) - 0.3 * statistics.variance(c) for c in columns]
    assert uncertainty_weighted(SCORES, 0.3).tolist() == pytest.approx(expected)


def test_members_that_agree_are_one_member():
    same = SCORES[:1].expand(3, -1)
    for combined in (ensemble_mean(same), worst_case(same), uncertainty_weighted(same, 2.0)):
        torch.testing.assert_close(combined, SCORES[0])


def test_disagreement_costs_and_a_common_shift_does_not():
    mean, least, weighted = (
        ensemble_mean(SCORES), worst_case(SCORES), uncertainty_weighted(SCORES, 0.3)
    )  # fmt: skip
    assert (least < mean).all() and (weighted < mean).all()
    torch.testing.assert_close(uncertainty_weighted(SCORES + 5, 0.3), weighted + 5)
    torch.testing.assert_close(worst_case(SCORES + 5), least + 5)
    torch.testing.assert_close(uncertainty_weighted(SCORES.flip(0), 0.3), weighted)


def test_one_members_shift_is_read_as_disagreement():
    """Why members are standardised first: a constant in one of them changes UWO's order."""
    scores = f([[0.0, 1.0], [0.0, 0.0]])
    shifted = scores + f([[-1.0], [0.0]])
    assert uncertainty_weighted(scores, 0.9).diff() > 0.04
    assert uncertainty_weighted(shifted, 0.9).diff() > 0.9
