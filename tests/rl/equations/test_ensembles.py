"""Several reward models as one reward: worked numbers."""

import pytest
from toys import float64 as f

from rl.equations.ensembles import ensemble_mean, worst_case

THREE = f([[1.0], [2.0], [4.0]])  # three members, one response


def test_worked_numbers():
    """1, 2 and 4: mean 7/3, minimum 1."""
    assert ensemble_mean(THREE).tolist() == pytest.approx([7 / 3])
    assert worst_case(THREE).tolist() == [1]
