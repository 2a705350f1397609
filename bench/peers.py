"""The same work here and in the libraries that most people use: transformers and TRL.

    make bench                                          sets up .venv-peers, then this
    python bench/peers.py --only grpo-tiny --pairs 3    the comparisons with "grpo-tiny" in their names
    python bench/peers.py --keep docs/benchmarks.json   and `make tables` writes the page's tables

Every side runs in processes of its own and they take turns (bench/turns.py). What they do stands in
bench/sides.py. A comparison ends with two ratios, each with the memory of all processes: work for a
second of a CPU, of each library's thriftiest way, and by the clock, where both have equally many
processes of one thread. CPU only. Nothing here is a test: timings are not asserted. The comparisons at real
size need a folder with the weights of SmolLM2-135M-Instruct, which scripts/smollm2.py writes.
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import importlib.util
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import sides
import torch
import torch.nn.functional as F
from turns import Case, Side, measure

from gpt.checkpoint import build
from harness.command_line import run_command
from harness.device import shapes_alone
from harness.errors import UserError
from harness.files import read_json, write_json
from harness.flags import AtLeastOne, check_ranges
from harness.paths import MODEL_FILE
from harness.ranks.launch import cores
from rl.run.evaluation import format_table
from studies.runner import processor

PEERS = {"sample": "transformers", "grpo": "TRL", "reward": "TRL"}
WORK = {"sample": "sampling", "grpo": "a GRPO step", "reward": "a reward model's step"}
NEEDED = ("transformers", "trl", "accelerate", "datasets", "peft")
BOTH = ("float32", "bfloat16")
REAL = dict(preset="smollm2", prompts=4, group=8, prompt_tokens=60, new_tokens=48)
CASES = {
    "sampling-tiny": Case("sample", prompts=64),
    "grpo-tiny-8x8": Case("grpo", prompts=8, group=8),
    "grpo-tiny-16x8": Case("grpo", prompts=16, group=8),
    "sampling-gpt2": Case("sample", "gpt2", prompts=8, prompt_tokens=32, new_tokens=64),
}
for _name, _case in {
    "sampling-smollm2": Case("sample", **REAL),
    "grpo-smollm2": Case("grpo", **REAL),
    "grpo-lora-smollm2": Case("grpo", **REAL, lora_rank=16),
    "reward-smollm2": Case("reward", **REAL | dict(prompts=8, group=2, new_tokens=30)),
}.items():  # each precision is a comparison: four such sides at once would fill 24 GB
    CASES |= {f"{_name}-{dtype}": replace(_case, precision=dtype) for dtype in BOTH}


@dataclass(frozen=True)
class PeersConfig:
    """Time the same work here and in transformers and TRL."""

    only: str = ""
    """Run the comparisons whose names contain this; by default all."""
    pairs: AtLeastOne = 7
    """Counted repetitions of each side, after one that is not counted; at SmolLM2's size at most 3 in
    all, each counted."""
    threads: AtLeastOne = field(default_factory=cores)
    """Threads of a side; the small model is measured on one thread as well."""
    weights: Path = Path("runs/smollm2")
    """Folder of SmolLM2-135M-Instruct, as scripts/smollm2.py writes it."""
    keep: Path | None = None
    """Keep what is measured in this JSON file; of another machine or version it keeps nothing."""

    def __post_init__(self) -> None:
        check_ranges(self)


def sides_of(case: Case, threads: int) -> list[list[Side]]:
    """Both sides as they may be run; those of a list are there at once, and take turns.

    A model of 128 columns is quick on one thread too; a larger one wants all cores, either way: as a
    single-threaded process per core, as ours are by default where the model is small, or as one process.
    At SmolLM2's size a process per core is our quicker way to train, and not all of them would fit into
    memory: TRL's two ways are compared with it one after the other.
    """
    found, half = list[Side](), ", bfloat16 weights" * (case.precision == "bfloat16")
    for count in {threads: None, 1: None} if case.preset == "tiny" else (threads,):
        label = "1 thread" if count == 1 else f"{count} threads"
        name = f"{PEERS[case.task]}, {label}{half}"
        found.append(Side(name, "peer", case, count, weights=case.precision))
        if case.preset != "smollm2" or case.task == "sample" or threads == 1:
            found.append(Side(f"ours, {label}", "ours", case, count))
    if threads == 1:
        return [found]
    ways = f"{threads} processes of 1 thread"
    ours = Side(f"ours, {ways}", "ours", case, 1, threads)
    peer = replace(
        ours, label=f"{PEERS[case.task]}, {ways}{half}", library="peer", weights=case.precision
    )
    if case.task == "sample" or case.prompts % threads:  # `generate` knows no processes
        return [[*found, ours]]
    return [[*found, ours], [peer, ours]] if case.preset == "smollm2" else [[*found, peer, ours]]


def operations(case: Case) -> float:
    """The least multiplications and additions of matrix products that the work needs.

    A prompt is read once, a token goes through every weight of the blocks, an answer's through the head
    too; a backward pass costs twice its forward, and half of that where the weights are frozen. Left
    out: attention's own products, an optimizer's step.
    """
    shape = sides.shape(case)
    with shapes_alone():
        blocks = sum(p.numel() for p in build(shape).h.parameters() if p.ndim == 2)
    answers = case.rows * case.new_tokens
    forward = 2.0 * blocks * (case.prompts * case.prompt_tokens + answers)
    if case.task == "reward":
        return 3 * forward
    forward += 2.0 * shape.vocab_size * shape.n_embd * answers
    passes = (
        1 if case.task == "sample" else 4 if case.lora_rank else 5
    )  # sampling, reference, update
    return passes * forward


def ceiling(precision: str, threads: int, size: int = 2048) -> float:
    """Operations a second of a product of two square matrices, the best of 8."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    one, other = torch.rand(2, size, size, dtype=getattr(torch, precision))
    times = []
    for _ in range(8):
        begin = time.perf_counter()
        F.linear(one, other)
        times.append(time.perf_counter() - begin)
    torch.set_num_threads(before)
    return 2.0 * size**3 / min(times)


def measured(case: Case, threads: int, pairs: int) -> dict[str, Any]:
    """One comparison: what every side took, and the ceilings of the machine at that time."""
    groups = sides_of(case, threads)
    used = {side.threads * side.ranks for group in groups for side in group}
    ceilings = {count: ceiling(case.precision, count) for count in sorted(used)}
    large = case.preset == "smollm2"
    least = operations(case)
    rows = []
    for number, group in enumerate(groups):
        reports = measure(group, min(pairs, 3) if large else pairs, sides.work, warm_up=not large)
        taken = [[report["seconds"] for report in own] for own in reports]
        peers = [own for own, side in zip(taken, group, strict=True) if side.library == "peer"]
        best = min(peers, key=statistics.median)  # what its group is compared with, turn by turn
        for side, own, seconds in zip(group, reports, taken, strict=True):
            bound = least / ceilings[side.threads * side.ranks]
            rows.append(
                {
                    "label": side.label, "library": side.library, "threads": side.threads,
                    "ranks": side.ranks, "group": number,
                    "seconds": [round(second, 4) for second in seconds],
                    "cpu": round(statistics.median(report["cpu"] for report in own), 3),
                    "mib": round(max(report["mib"] for report in own)),
                    "share": round(bound / statistics.median(seconds), 3),
                    "times": turn_by_turn(best, seconds),
                }
            )  # fmt: skip
    return {
        "described": f"{WORK[case.task]}, {case.preset}: {case.described}",
        "date": time.strftime("%Y-%m-%d"),
        "case": asdict(case) | {"folder": ""},
        "gigaflops": {count: round(rate / 1e9) for count, rate in ceilings.items()},
        "ratios": ratios(rows), "sides": rows,
    }  # fmt: skip


def turn_by_turn(one: Sequence[float], other: Sequence[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(one, other, strict=True)), 3)


def ratios(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How much more ours gets done for a second, with the GiB of both.

    Of CPUs, each library in its thriftiest way; and by the clock, both with the same number of processes
    and threads, the largest that was measured.
    """
    peers, ours = ([row for row in rows if row["library"] == name] for name in ("peer", "ours"))
    peer = min(peers, key=lambda row: row["cpu"])
    beside = [row for row in ours if row["group"] == peer["group"]]  # in turns with it
    thrifty = peer, min(beside, key=lambda row: row["cpu"])
    like = ("group", "ranks", "threads")
    equal = [(a, b) for a in peers for b in ours if all(a[name] == b[name] for name in like)]
    found = {"CPU": (thrifty, thrifty[0]["cpu"] / thrifty[1]["cpu"])}
    if equal:
        one, other = max(equal, key=lambda pair: (pair[0]["ranks"], pair[0]["threads"]))
        found["clock"] = (one, other), turn_by_turn(one["seconds"], other["seconds"])
    return {
        name: {
            "ratio": round(ratio, 2), "of": [row["label"] for row in both],
            "gib": [round(row["mib"] / 1024, 1) for row in both],
        }
        for name, (both, ratio) in found.items()
    }  # fmt: skip


def headline(found: dict[str, Any]) -> str:
    """Both ratios in words."""
    return "\n".join(
        f"{each['ratio']:.2f} times the work for a second of the {name}: {each['of'][0]}, {each['gib'][0]} "
        f"GiB, and {each['of'][1]}, {each['gib'][1]} GiB"
        for name, each in found["ratios"].items()
    )


def table(found: dict[str, Any]) -> str:
    """Median seconds, times as fast as the peer's best, CPU seconds, memory, share of the ceiling."""
    rows = [
        [
            side["label"],
            f"{statistics.median(side['seconds']):.4g}",
            f"{min(side['seconds']):.4g}-{max(side['seconds']):.4g}",
            f"{side['times']:.2f}",
            f"{side['cpu']:.4g}", f"{side['mib']}", f"{side['share']:.0%}",
        ]
        for side in found["sides"]
    ]  # fmt: skip
    titles = ["", "seconds", "min-max", "times as fast", "CPU seconds", "MiB", "of the ceiling"]
    return format_table(titles, rows)


def machine() -> dict[str, Any]:
    """Where and with what it is measured."""
    versions = {name: version(name) for name in ("torch", *NEEDED)}
    return {
        "processor": processor(), "cores": cores(),
        "versions": {"python": platform.python_version()} | versions,
    }  # fmt: skip


def main(config: PeersConfig) -> None:
    chosen = {name: case for name, case in CASES.items() if config.only in name}
    if not chosen:
        raise UserError(
            f"--only {config.only}: no comparison's name contains it; there are {', '.join(CASES)}"
        )
    missing = [package for package in NEEDED if importlib.util.find_spec(package) is None]
    if missing:
        raise UserError(
            f"the comparison needs {', '.join(missing)}, not installed here: run  make bench , "
            "or install bench/requirements-peers.txt"
        )
    if any(case.preset == "smollm2" for case in chosen.values()):
        if not (config.weights / MODEL_FILE).is_file():
            raise UserError(
                f"{config.weights} holds no {MODEL_FILE}: run  python scripts/smollm2.py --out "
                f"{config.weights} , name another folder with --weights, or leave these comparisons out"
                " with --only tiny"
            )
        folder = str(config.weights.resolve())
        chosen = {
            name: replace(case, folder=folder) if case.preset == "smollm2" else case
            for name, case in chosen.items()
        }
    here, kept = machine(), dict[str, Any]()
    if config.keep is not None and config.keep.exists():
        before = read_json(config.keep)
        kept = before["cases"] if before.get("machine") == here else {}
    for name, case in chosen.items():
        print(f"\n{name}: {case.described}", flush=True)
        found = kept[name] = measured(case, config.threads, config.pairs)
        print(f"{table(found)}\nceilings in GFLOP/s, by threads: {found['gigaflops']}")
        print(headline(found), flush=True)
        if config.keep is not None:
            write_json(config.keep, {"machine": here, "cases": kept})


if __name__ == "__main__":
    run_command(main, PeersConfig)
