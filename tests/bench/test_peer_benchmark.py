"""The benchmark beside the peers: what a side's memory is, and that our sides run."""

from __future__ import annotations

import mmap
import sys

import pytest
import sides
import turns
from turns import Case, Side


def test_peak_memory_counts_what_was_touched_and_freed():
    turns.reset_peak()
    before = turns.peak_mib()
    with mmap.mmap(-1, 2**28) as block:  # 256 MiB that the heap does not hold from an earlier test
        for _ in range(2**8):
            block.write(bytes(2**20))
    grown = turns.peak_mib() - before
    if sys.platform != "linux" and grown < 200:
        pytest.skip("only Linux lets a process forget its earlier peak")
    assert 200 < grown < 400


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
