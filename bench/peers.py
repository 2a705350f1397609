"""The same work here and in the libraries that most people use: transformers and TRL.

    make bench                                          sets up .venv-peers, then this
    python bench/peers.py --only grpo --pairs 3         the comparisons whose names start with "grpo"

Every side runs in a process of its own and they take turns (bench/turns.py). What they do stands in
bench/sides.py. CPU only. Nothing here is a test: timings are not asserted.
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import importlib.util
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from turns import Case, Side, measure

from harness.command_line import run_command
from harness.errors import UserError
from rl.training.evaluation import format_table

PEER_NAMES = {"sample": "transformers", "grpo": "TRL"}
NEEDED = {
    "sample": ("transformers",),
    "grpo": ("transformers", "trl", "accelerate", "datasets"),
}


def cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class PeersConfig:
    """Time the same work here and in transformers and TRL."""

    only: str = ""
    """Run the comparisons whose names start with this; by default all."""
    pairs: int = 7
    """Counted repetitions of each side, after one that is not counted."""
    threads: int = field(default_factory=cores)
    """Threads of a side; the small model is measured on one thread as well."""
    quick: bool = False
    """Two rows of four tokens, one pair, no larger model: to see whether everything works."""

    def __post_init__(self) -> None:
        for name in ("pairs", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1: got {getattr(self, name)}")


@dataclass(frozen=True)
class Comparison:
    """Sides that are interleaved; the first is what the others are compared with."""

    name: str
    title: str
    sides: list[Side]


# What is compared ---------------------------------------------------------------------------------


def label(who: str, threads: int) -> str:
    return f"{who}, 1 thread" if threads == 1 else f"{who}, {threads} threads"


def both(case: Case, threads: int) -> list[Side]:
    return [
        Side(label(PEER_NAMES[case.task], threads), "peer", case, threads),
        Side(label("ours", threads), "ours", case, threads),
    ]


def on_ranks(case: Case, ranks: int) -> list[Side]:
    """Ours as it runs by default for a small model: a single-threaded process per core."""
    if ranks == 1:
        return []
    return [Side(f"ours, {ranks} ranks of 1 thread", "ours", case, 1, ranks=ranks)]


def thread_counts(threads: int) -> list[int]:
    return [threads, 1] if threads > 1 else [1]


def beside_peers(threads: int) -> Iterator[Comparison]:
    """A model of 128 columns is quick on one thread too; a larger one wants all cores, either way."""
    small = {
        "sampling-tiny": Case("sample", prompts=64),
        "grpo-tiny-8x8": Case("grpo", prompts=8, group=8),
        "grpo-tiny-16x8": Case("grpo", prompts=16, group=8),
    }
    for name, case in small.items():
        sides = [side for count in thread_counts(threads) for side in both(case, count)]
        yield Comparison(name, describe(case), sides + on_ranks(case, threads))
    case = Case("sample", "gpt2", prompts=8, prompt_tokens=32, new_tokens=64)
    sides = both(case, threads) + on_ranks(case, threads)
    yield Comparison("sampling-gpt2", describe(case), sides)


def describe(case: Case) -> str:
    work = {"sample": "Sampling", "grpo": "A GRPO step"}[case.task]
    return f"{work}, {case.preset}: {case.described}"


def comparisons(config: PeersConfig) -> list[Comparison]:
    known = list(beside_peers(config.threads))
    chosen = [one for one in known if one.name.startswith(config.only)]
    if not chosen:
        names = ", ".join(one.name for one in known)
        raise UserError(
            f"--only {config.only}: no comparison's name starts with it; there are {names}"
        )
    return [shrunk(one) for one in chosen] if config.quick else chosen


def shrunk(comparison: Comparison) -> Comparison:
    small = dict(preset="tiny", prompts=2, prompt_tokens=4, new_tokens=4)
    return replace(
        comparison,
        sides=[
            replace(side, case=replace(side.case, **small, group=min(side.case.group, 2)))
            for side in comparison.sides
        ],
    )


# Measuring ----------------------------------------------------------------------------------------


def require_peers(chosen: Sequence[Comparison]) -> None:
    """UserError, in one sentence, if a package of a peer is missing."""
    tasks = {s.case.task for one in chosen for s in one.sides if s.library == "peer"}
    needed = sorted({package for task in tasks for package in NEEDED[task]})
    missing = [package for package in needed if importlib.util.find_spec(package) is None]
    if missing:
        raise UserError(
            f"the comparison needs {', '.join(missing)}, not installed here: run  make bench , "
            "or install bench/requirements-peers.txt"
        )


def table(comparison: Comparison, pairs: int) -> str:
    """Measure one comparison: median seconds, times as fast as the first side, peak of memory."""
    reports = measure(comparison.sides, pairs)
    seconds = [[report["seconds"] for report in own] for own in reports]
    rows = [
        [
            side.label,
            f"{statistics.median(own):.4g}",
            f"{min(own):.4g}-{max(own):.4g}",
            f"{statistics.median(a / b for a, b in zip(seconds[0], own, strict=True)):.2f}",
            f"{max(report['mib'] for report in each):.0f}",
        ]
        for side, own, each in zip(comparison.sides, seconds, reports, strict=True)
    ]
    return format_table(["", "seconds", "min-max", "times as fast", "MiB"], rows)


def main(config: PeersConfig) -> None:
    chosen = comparisons(config)
    require_peers(chosen)
    for comparison in chosen:
        print(f"\n{comparison.name}: {comparison.title}", flush=True)
        print(table(comparison, 1 if config.quick else config.pairs), flush=True)


if __name__ == "__main__":
    run_command(main, PeersConfig)
