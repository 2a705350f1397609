"""Several reward models as one reward: worked numbers and loops."""

import statistics

import pytest
import torch
from toys import float64 as f

from rl.equations.ensembles import ensemble_mean, worst_case

THREE = f([[1.0], [2.0], [4.0]])  # three members, one response
SCORES = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_worked_numbers():
    """1, 2 and 4: mean 7/3, minimum 1."""
    assert ensemble_mean(THREE).tolist() == pytest.approx([7 / 3])
    assert worst_case(THREE).tolist() == [1]


def test_each_response_by_itself():
    """Loops over the responses; the members' axis is the first one."""
    columns = SCORES.T.tolist()
    assert ensemble_mean(SCORES).tolist() == pytest.approx([statistics.mean(c) for c in columns])
    assert worst_case(SCORES).tolist() == [min(c) for c in columns]
