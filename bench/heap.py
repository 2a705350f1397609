"""What harness/process.py's setting of glibc's heap brings: `python bench/heap.py`.

Seconds of CPU for six updates of 16 answers of 48 tokens with GPT-2's vocabulary, in turns with the
setting and without it: the kernel's share is the pages that it would clear again and again.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys

import torch

import harness  # noqa: F401  # isort: skip  (sets the heap up, unless MALLOC_... is set)
from data.collate import collate_responses
from gpt.log_probs import token_scores
from gpt.model import GPT, GPTConfig


def update_seconds() -> tuple[float, float]:
    """(user, kernel) seconds of six forward and backward passes, after one that warms up."""
    torch.set_num_threads(1)
    shape = GPTConfig(50257, 128, n_layer=2, n_head=2, n_embd=64)
    model = GPT(shape).initialize(torch.Generator().manual_seed(0))
    batch = collate_responses([[1] * 30] * 16, [[2] * 48] * 16, 0)
    for number in range(7):
        if number == 1:
            begin = resource.getrusage(resource.RUSAGE_SELF)
        token_scores(model, batch, 1.0).log_probs.sum().backward()
    end = resource.getrusage(resource.RUSAGE_SELF)
    return end.ru_utime - begin.ru_utime, end.ru_stime - begin.ru_stime


def main() -> None:
    if "measure" in sys.argv:
        print(*update_seconds())
        return
    for name, tuned in (("as a command sets it", {}), ("glibc's own", {"MALLOC_ARENA_TEST": "8"})):
        command, environment = [sys.executable, __file__, "measure"], os.environ | tuned
        runs = [
            subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            for _ in range(3)
        ]
        sides = zip(*([float(x) for x in run.stdout.split()] for run in runs), strict=True)
        user, kernel = map(statistics.median, sides)
        print(f"{name:22} user {user:.2f} s, kernel {kernel:.2f} s (medians of 3)")


if __name__ == "__main__":
    main()
