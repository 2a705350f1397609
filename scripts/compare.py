"""Compare engines seed by seed: the same starts, prompts and rewards, one table, one plot.

    python scripts/compare.py mine_engine.py rl.grpo_engine --seeds 3 -- --data sums --steps 60

What follows `--` goes to every engine as it stands. The last engine is what the others are compared
with: of each number the mean over seeds with its 95% interval, and the paired difference, seed by
seed, with its interval. Finished runs are kept, so the same command goes on after an interruption.
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.command_line import command_name, run_script
from harness.errors import UserError
from harness.files import display_path, save_figure
from harness.flag_ranges import AtLeastTwo, Seed
from harness.paths import MODEL_FILE, RUNS
from harness.report.intervals import group_table
from harness.report.page import Run, read_run

PLOTTED = ("reward", "validation/reward", "validation/gold", "validation/kl")


@dataclass(frozen=True)
class CompareConfig:
    """Train several engines with the same seeds and compare them."""

    engines: tuple[str, ...]
    """Modules (rl.grpo_engine) or files (mine_engine.py); the last one is the baseline."""
    seeds: AtLeastTwo = 3
    """How many seeds, each once per engine."""
    seed: Seed = 0
    """The first of them."""
    out: Path = RUNS / "compare"
    """Folder of the runs, the table and the plot."""


def name_of(engine: str) -> str:
    """What an engine's runs are called: grpo of rl.grpo_engine, mine of mine_engine.py."""
    name = Path(engine).stem if engine.endswith(".py") else engine.rpartition(".")[2]
    return name.removesuffix("_engine")


def train(engine: str, seed: int, flags: Sequence[str], folder: Path) -> None:
    """One run in a process of its own, unless it is there. UserError if it ends otherwise."""
    if (folder / MODEL_FILE).exists():
        print(f"{display_path(folder)} is there", flush=True)
        return
    started = [engine] if engine.endswith(".py") else ["-m", engine]
    command = [sys.executable, *started, *flags, "--seed", str(seed), "--out", str(folder)]
    print(f"\n== {name_of(engine)}, seed {seed} ==", flush=True)
    if subprocess.run(command).returncode:
        raise UserError(f"{engine} with seed {seed} has failed: its own message stands above")


def plot(runs: dict[str, list[Run]], path: Path) -> None:
    """A panel a number that is logged: thin lines the seeds, the thick one their mean."""
    from matplotlib.figure import Figure

    every = [run for group in runs.values() for run in group]
    keys = [key for key in PLOTTED if all(any(key in row for row in run.rows) for run in every)]
    figure = Figure(figsize=(4 * len(keys), 3.4), layout="constrained")
    for axis, key in zip(figure.subplots(1, len(keys), squeeze=False)[0], keys, strict=True):
        for color, (name, group) in enumerate(runs.items()):
            curves = [{r["step"]: r[key] for r in run.rows if key in r} for run in group]
            shared = sorted(set.intersection(*(set(curve) for curve in curves)))
            for curve in curves:
                axis.plot(list(curve), list(curve.values()), f"C{color}", alpha=0.35, linewidth=0.8)
            means = [sum(curve[step] for curve in curves) / len(curves) for step in shared]
            axis.plot(shared, means, f"C{color}", linewidth=2, label=name)
        axis.set(xlabel="step", ylabel=key)
    figure.axes[0].legend()
    save_figure(figure, path)


def main(config: CompareConfig, flags: Sequence[str] = ()) -> None:
    """Train what is missing, then print and write the table and draw the plot."""
    names = [name_of(engine) for engine in config.engines]
    if len(names) < 2 or len(set(names)) < len(names):
        raise UserError(f"name two engines or more, each once: got {' '.join(names) or 'none'}")
    seeds = range(config.seed, config.seed + config.seeds)
    folders = {name: [config.out / name / f"seed{seed}" for seed in seeds] for name in names}
    for engine, name in zip(config.engines, names, strict=True):
        for seed, folder in zip(seeds, folders[name], strict=True):
            train(engine, seed, flags, folder)
    runs = {name: [read_run(folder) for folder in folders[name]] for name in names}
    table = group_table([run for name in reversed(names) for run in runs[name]])
    (config.out / "table.txt").write_text(table + "\n", encoding="utf-8")
    plot(runs, config.out / "compare.png")
    print(f"\n{table}\n\nplot {display_path(config.out / 'compare.png')}")


if __name__ == "__main__":
    import tyro

    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    own, passed = sys.argv[1:end], sys.argv[end + 1 :]
    settings = (tyro.conf.PositionalRequiredArgs,)
    parsed = tyro.cli(CompareConfig, prog=command_name(), args=own, config=settings)
    run_script(lambda config: main(config, passed), parsed)
