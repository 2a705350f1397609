"""The same work here and in the libraries that most people use: transformers and TRL.

    make bench                                          sets up .venv-peers, then this
    python bench/peers.py --only grpo --pairs 3         the comparisons whose names start with "grpo"
    python bench/peers.py --write                       and put the tables into docs/benchmarks.md

Every side runs in a process of its own and they take turns (bench/turns.py). What they do stands in
bench/sides.py, how operations are counted in bench/arithmetic.py. CPU only. Nothing here is a test:
timings are not asserted.
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import dataclasses
import importlib.util
import json
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from importlib import metadata
from typing import Any, Literal

from peer_tables import markdown_page, page_with, text_table
from turns import Case, Side, measure

from harness.command_line import run_command
from harness.errors import UserError
from harness.files import write_atomically, write_json
from harness.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "benchmarks.md"
RESULTS = REPOSITORY / "docs" / "benchmarks.json"
PEER_NAMES = {"sample": "transformers", "update": "transformers", "grpo": "TRL"}
NEEDED = {
    "sample": ("transformers",),
    "update": ("transformers",),
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
    write: bool = False
    """Put the results into docs/benchmarks.json and docs/benchmarks.md; those of other comparisons stay."""

    def __post_init__(self) -> None:
        for name in ("pairs", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1: got {getattr(self, name)}")
        if self.quick and self.write:
            raise ValueError(
                "--quick measures nothing worth keeping: leave out --write, or --quick"
            )


@dataclass(frozen=True)
class Comparison:
    """Sides that are interleaved; the first is what the others are compared with."""

    name: str
    title: str
    sides: list[Side]
    relative: Literal["speed", "none"] = "speed"  # how many times as fast as the first side


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
    large = {
        "sampling-gpt2": Case("sample", "gpt2", prompts=8, prompt_tokens=32, new_tokens=64),
        "update-gpt2": Case("update", "gpt2", prompts=8, prompt_tokens=32, new_tokens=96),
    }
    for name, case in large.items():
        yield Comparison(name, describe(case), both(case, threads) + on_ranks(case, threads))


def describe(case: Case) -> str:
    work = {"sample": "Sampling", "grpo": "A GRPO step", "update": "A policy update"}[case.task]
    return f"{work}, {case.preset}: {case.described}"


def ceilings(threads: int) -> Comparison:
    """What the machine can do at best."""
    sides = [
        Side(label("matrix product", count), "ours", Case("product"), count)
        for count in thread_counts(threads)
    ]
    return Comparison("ceilings", "What the machine can do", sides, "none")


def comparisons(config: PeersConfig) -> list[Comparison]:
    known = [ceilings(config.threads), *beside_peers(config.threads)]
    chosen = [one for one in known if one.name.startswith(config.only)]
    if not chosen:
        names = ", ".join(one.name for one in known)
        raise UserError(
            f"--only {config.only}: no comparison's name starts with it; there are {names}"
        )
    return [shrunk(one) for one in chosen] if config.quick else chosen


def shrunk(comparison: Comparison) -> Comparison:
    small = dict(preset="tiny", prompts=2, prompt_tokens=4, new_tokens=4, size=64)
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
            "install bench/requirements-peers.txt, or use --only ceilings"
        )


def run(comparison: Comparison, pairs: int) -> dict[str, Any]:
    """Measure one comparison: plain data, as it stands in docs/benchmarks.json."""
    reports = measure(comparison.sides, pairs)
    sides = [
        dataclasses.asdict(side)
        | {"seconds": [r["seconds"] for r in own], "mib": max(r["mib"] for r in own)}
        for side, own in zip(comparison.sides, reports, strict=True)
    ]
    return {
        "name": comparison.name,
        "title": comparison.title,
        "relative": comparison.relative,
        "pairs": pairs,
        "date": date.today().isoformat(),
        "cores": cores(),
        "versions": versions(),
        "sides": sides,
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("torch", "transformers", "trl"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def earlier_results() -> dict[str, Any]:
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def write_results(results: dict[str, Any], order: Sequence[str]) -> None:
    """docs/benchmarks.json and the generated part of docs/benchmarks.md, earlier comparisons kept."""
    merged = earlier_results() | results
    merged = {name: merged[name] for name in order if name in merged}
    page = page_with(PAGE.read_text(encoding="utf-8"), markdown_page(merged))
    write_json(RESULTS, merged)
    write_atomically(PAGE, lambda path: path.write_text(page, encoding="utf-8"))


def main(config: PeersConfig) -> None:
    chosen = comparisons(config)
    require_peers(chosen)
    results: dict[str, Any] = {}
    for comparison in chosen:
        result = run(comparison, 1 if config.quick else config.pairs)
        results[comparison.name] = result
        peak = earlier_results() | results
        print(f"\n{comparison.name}: {comparison.title}\n{text_table(result, peak)}", flush=True)
    if config.write:
        order = [one.name for one in comparisons(replace(config, only=""))]
        write_results(results, order)


if __name__ == "__main__":
    run_command(main, PeersConfig)
