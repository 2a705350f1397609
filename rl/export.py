"""What other programs read: a run's model for transformers, its metrics for TensorBoard.

    python -m rl.export runs/grpo-reviews-tiny --hf exported       weights, tokenizer, model card

    python -m rl.export runs/grpo-reviews-tiny --to trl --out there    the same run for TRL (or verl)

Policies and reward models alike, without a network; an adapter is merged. Without a flag the metrics
become event files, one TensorBoard run each:

    pip install -e ".[tensorboard]"                                once
    python -m rl.export runs/grpo-reviews-tiny runs/ppo-reviews-tiny
    tensorboard --logdir runs/tensorboard

A folder of run folders stands for all of them: `python -m rl.export runs`. Every stage writes the
same file, so it works for pre-training, reward models and distillation too. The names are those of
docs/metrics.md, and the flags of a run go to its text page. Export again whenever a run has gone on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.command_line import command_name, explained, show_help
from harness.errors import UserError
from harness.files import display_path
from harness.paths import RUNS
from rl.commands.event_files import export, run_folders, run_names
from rl.commands.handover import hand_over
from rl.commands.hub_export import export_hub


@dataclass(frozen=True)
class ExportConfig:
    """Write a run's model for transformers, or the metrics of runs for TensorBoard."""

    out: Path | None = None
    """Folder for TensorBoard, one subfolder a run, or a new one for TRL or verl; default
    runs/tensorboard, runs/NAME-trl."""
    to: Literal["tensorboard", "trl", "verl"] = "tensorboard"
    """tensorboard: the metrics. trl, verl: start, prompts, reward and a script for a run of GRPO."""
    hf: Path | None = None
    """A new folder for the model of one run, in Hugging Face's layout."""


def main(runs: tuple[Path, ...], /, config: ExportConfig) -> None:
    """Write a run's model for transformers, or the metrics of runs for TensorBoard.

    Args:
        runs: Run folders, or folders of run folders.
    """
    if not runs:
        raise UserError("nothing to export: give run folders, or the folder that holds them")
    if config.hf is not None:
        print(f"open it with\n    {export_hub(the_one(runs), config.hf)}")
        return
    if config.to != "tensorboard":
        run = the_one(runs)
        target = config.out or RUNS / f"{run.resolve().name}-{config.to}"
        print(f"What {config.to} does otherwise:\n{hand_over(run, target, config.to)}")
        start = "python train.py" if config.to == "trl" else "bash train.sh"
        print(f"wrote {display_path(target)}: run  {start}  there")
        return
    out = config.out or RUNS / "tensorboard"
    folders = run_folders(runs)
    for folder, name in zip(folders, run_names(folders), strict=True):
        steps = export(folder, out / name)
        print(f"{name}: {steps:,} rows")
    print(f"look at them with\n    tensorboard --logdir {display_path(out)}")


def the_one(runs: tuple[Path, ...]) -> Path:
    """The run of an export that takes one."""
    if len(runs) > 1:
        raise UserError(f"{len(runs)} runs are named, and one is exported at a time: name one")
    return runs[0]


if __name__ == "__main__":
    import tyro

    with explained():
        show_help(ExportConfig, arguments="RUN ...")
        tyro.cli(main, prog=command_name(), config=(tyro.conf.OmitArgPrefixes,))
