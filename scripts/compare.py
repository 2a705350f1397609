"""Compare engines seed by seed: the same starts, prompts and rewards, one table, one plot.

    python scripts/compare.py tis_engine.py rl.grpo_engine --seeds 3 -- --data sums --steps 60

What follows `--` goes to every engine as it stands. The last engine is what the others are compared
with: of each number the mean over seeds with its 95% interval, and the paired difference, seed by
seed, with its interval. Other flags have another folder. A finished run is kept while its engine and what
it has read are the same, so the same command goes on after an interruption.
"""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data.sources import DIGITS
from harness.command_line import command_name, expand_arguments, run_script
from harness.errors import UserError
from harness.files import display_path, write_text
from harness.flags import AtLeastTwo
from harness.paths import RUNS
from report.doctor import Run, read_run
from report.intervals import group_table
from report.style import SERIES
from studies.pages import drawing
from studies.runner import Job, code_of, is_done, note_other_code, run_job

SHARED = ("data", "preset", "model")  # what must be one for all, where an engine has the flag
PLOTTED = ("reward", "validation/reward", "validation/gold", "validation/kl")


@dataclass(frozen=True)
class CompareConfig:
    """Train several engines with the same seeds and compare them."""

    engines: tuple[str, ...]
    """Modules (rl.grpo_engine) or files (tis_engine.py); the last one is the baseline."""
    seeds: AtLeastTwo = 3
    """How many seeds, each once per engine."""
    seed: int = 0
    """The first of them."""
    out: Path = RUNS / "compare"
    """Folder of comparisons: one a set of flags, with the runs, the tables and the plots."""

    goes_on = True  # called again, it does what is left


def name_of(engine: str) -> str:
    """What an engine's runs are called: grpo of rl.grpo_engine, tis of tis_engine.py."""
    name = Path(engine).stem if engine.endswith(".py") else engine.rpartition(".")[2]
    return name.removesuffix("_engine")


def plot(runs: dict[str, list[Run]], path: Path) -> None:
    """A panel a number that is logged, with a line a seed."""
    every = [run for group in runs.values() for run in group]
    keys = [key for key in PLOTTED if all(any(key in row for row in run.rows) for run in every)]
    with drawing(path, max(4 * len(keys), 5), 3.8) as figure:
        axes = figure.subplots(1, len(keys), squeeze=False)[0]
        looks = list(zip(SERIES, ("-", "--", "-.", ":", "-", "--"), strict=True))
        for axis, key in zip(axes, keys, strict=True):
            for i, (name, group) in enumerate(runs.items()):
                colour, line = looks[i % len(looks)]
                for seed, run in enumerate(group):
                    curve = {row["step"]: row[key] for row in run.rows if key in row}
                    style = dict(color=colour, linestyle=line, label="_" if seed else name)
                    axis.plot(list(curve), list(curve.values()), alpha=0.8, **style)
            axis.set(xlabel="step", ylabel=key)
        figure.suptitle("Every line is the run of one seed", x=0.01, ha="left", fontsize=11)
        axes[0].legend()


def main(config: CompareConfig, flags: Sequence[str] = ()) -> None:
    """Train what is missing, then print and write the table and draw the plot."""
    names = [name_of(engine) for engine in config.engines]
    if len(names) < 2 or len(set(names)) < len(names):
        raise UserError(f"name two engines or more, each once: got {' '.join(names) or 'none'}")
    for engine in config.engines:
        code_of(engine)  # refuses one that is not there before any other trains
    typed = shlex.join(flags)
    what = f"{Path.cwd()} {typed}"  # in which a path may count from here
    root = (config.out / hashlib.sha256(what.encode()).hexdigest()[:DIGITS]).resolve()
    runs: dict[str, list[Run]] = {name: [] for name in names}
    kept = []
    for seed in range(config.seed, config.seed + config.seeds):
        for engine, name in zip(config.engines, names, strict=True):
            job = Job(f"{name}/seed{seed}", engine, {}, typed=(*flags, "--seed", str(seed)))
            folder, there = root / job.name, is_done(job, root)
            print(f"{display_path(folder)} {'is there' if there else '...'}", flush=True)
            if there:
                kept.append(folder)
            else:
                run_job(job, root, resume=True)
            runs[name].append(read_run(folder))
            require_alike(runs[names[0]][0], runs[name][-1])
    note_other_code(kept)
    table = group_table([run for name in reversed(names) for run in runs[name]])
    name = "-".join(names)
    write_text(root / f"{name}.txt", f"flags: {typed or 'none'}\n\n{table}\n")
    plot(runs, root / f"{name}.png")
    print(f"\n{table}\n\nplot {display_path(root / f'{name}.png')}")


def require_alike(first: Run, run: Run) -> None:
    """UserError where two runs do not start alike: the difference would be none of their engines."""
    for flag in SHARED:
        had, has = first.flags.get(flag), run.flags.get(flag)
        if had != has and flag in first.flags and flag in run.flags:
            raise UserError(
                f"--{flag} is {had} in {first.label} and {has} in {run.label}, which cannot be compared: "
                f"give --{flag} behind --"
            )


if __name__ == "__main__":
    import tyro

    expand_arguments()
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    own, passed = sys.argv[1:end], sys.argv[end + 1 :]
    settings = (tyro.conf.PositionalRequiredArgs,)
    parsed = tyro.cli(CompareConfig, prog=command_name(), args=own, config=settings)
    run_script(lambda config: main(config, passed), parsed)
