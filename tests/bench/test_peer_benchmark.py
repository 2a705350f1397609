"""The benchmark beside the peers: our sides run."""

from __future__ import annotations

import pytest
import sides
from turns import Case, Side


@pytest.mark.parametrize("task", ["sample", "grpo"])
def test_our_sides_do_their_repetitions(task):
    class Twice:
        left = 3

        def next(self):
            self.left -= 1
            return self.left > 0

    case = Case(task, prompts=2, group=2, prompt_tokens=4, new_tokens=3)
    took = Twice()
    sides.FUNCTIONS["ours", task](Side("ours", "ours", case, threads=1), took)
    assert took.left == 0
