"""The same work here and in the libraries that most people use: transformers and TRL.

    make bench                                          sets up .venv-peers, then this
    python bench/peers.py --only grpo --pairs 3         the comparisons whose names start with "grpo"

Every side runs in a process of its own and they take turns (bench/turns.py). What they do stands in
bench/sides.py. CPU only. Nothing here is a test: timings are not asserted.
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import importlib.util
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import sides
from turns import Case, Side, measure

from harness.command_line import run_command
from harness.errors import UserError
from harness.flags import AtLeastOne, check_ranges
from harness.ranks.launch import cores
from rl.run.evaluation import format_table

PEERS = {"sample": "transformers", "grpo": "TRL"}
NEEDED = ("transformers", "trl", "accelerate", "datasets")
CASES = {
    "sampling-tiny": Case("sample", prompts=64),
    "grpo-tiny-8x8": Case("grpo", prompts=8, group=8),
    "grpo-tiny-16x8": Case("grpo", prompts=16, group=8),
    "sampling-gpt2": Case("sample", "gpt2", prompts=8, prompt_tokens=32, new_tokens=64),
}


@dataclass(frozen=True)
class PeersConfig:
    """Time the same work here and in transformers and TRL."""

    only: str = ""
    """Run the comparisons whose names start with this; by default all."""
    pairs: AtLeastOne = 7
    """Counted repetitions of each side, after one that is not counted."""
    threads: AtLeastOne = field(default_factory=cores)
    """Threads of a side; the small model is measured on one thread as well."""

    def __post_init__(self) -> None:
        check_ranges(self)


def sides_of(case: Case, threads: int) -> list[Side]:
    """The first is what the others are compared with.

    A model of 128 columns is quick on one thread too; a larger one wants all cores, either way. Ours
    runs a small model by default as a single-threaded process per core.
    """
    found = []
    for count in {threads: None, 1: None} if case.preset == "tiny" else (threads,):
        label = "1 thread" if count == 1 else f"{count} threads"
        found.append(Side(f"{PEERS[case.task]}, {label}", "peer", case, count))
        found.append(Side(f"ours, {label}", "ours", case, count))
    if threads > 1:
        found.append(Side(f"ours, {threads} ranks of 1 thread", "ours", case, 1, ranks=threads))
    return found


def table(compared: Sequence[Side], pairs: int) -> str:
    """Measure one comparison: median seconds, times as fast as the first side, peak of memory."""
    reports = measure(compared, pairs, sides.work)
    seconds = [[report["seconds"] for report in own] for own in reports]
    rows = [
        [
            side.label,
            f"{statistics.median(own):.4g}",
            f"{min(own):.4g}-{max(own):.4g}",
            f"{statistics.median(a / b for a, b in zip(seconds[0], own, strict=True)):.2f}",
            f"{max(report['mib'] for report in each):.0f}",
        ]
        for side, own, each in zip(compared, seconds, reports, strict=True)
    ]
    return format_table(["", "seconds", "min-max", "times as fast", "MiB"], rows)


def main(config: PeersConfig) -> None:
    chosen = {name: case for name, case in CASES.items() if name.startswith(config.only)}
    if not chosen:
        raise UserError(
            f"--only {config.only}: no comparison's name starts with it; there are {', '.join(CASES)}"
        )
    missing = [package for package in NEEDED if importlib.util.find_spec(package) is None]
    if missing:
        raise UserError(
            f"the comparison needs {', '.join(missing)}, not installed here: run  make bench , "
            "or install bench/requirements-peers.txt"
        )
    for name, case in chosen.items():
        work = {"sample": "Sampling", "grpo": "A GRPO step"}[case.task]
        print(f"\n{name}: {work}, {case.preset}: {case.described}", flush=True)
        compared = sides_of(case, config.threads)
        print(table(compared, config.pairs), flush=True)


if __name__ == "__main__":
    run_command(main, PeersConfig)
