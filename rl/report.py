"""The page of a run, written anew, or several runs over each other with the differences of their flags.

    python -m rl.report runs/grpo-reviews-tiny                          its report.html
    python -m rl.report runs/grpo-reviews-tiny runs/ppo-reviews-tiny    one page for both
    python -m rl.report --group runs/baseline/* runs/mine/*             seeds: means and intervals

Every script writes report.html itself; docs/report.md says what is on it. Any run folder will do, of
pre-training and of a reward model too.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path

from harness.command_line import run_command
from harness.errors import UserError
from harness.files import display_path, received, write_text
from harness.paths import RUNS
from harness.report.intervals import group_table
from harness.report.page import REPORT, Run, page_html, read_run


@dataclass(frozen=True)
class ReportConfig:
    """Write the page of one run, or of several over each other."""

    runs: tuple[Path, ...]
    """Run folders."""
    out: Path | None = None
    """The file; default report.html in the run folder, of several runs runs/comparison.html, or the
    next free number."""
    group: bool = False
    """Print means over seeds with 95% intervals instead: runs that lie in one folder are a group, and each
    group is compared with the first."""


def open_runs(folders: tuple[Path, ...]) -> list[Run]:
    """The runs of the folders, with labels that tell them apart."""
    runs = []
    for folder in folders:
        if not (folder / "metrics.jsonl").is_file():
            raise UserError(
                f"there is no run in {display_path(folder)} (no metrics.jsonl): name a run folder"
            )
        with received(folder):
            runs.append(read_run(folder))
    if len({run.label for run in runs}) < len(runs):
        runs = [replace(run, label=display_path(run.folder)) for run in runs]
    return runs


def main(config: ReportConfig) -> Path | None:
    """Write the page and return its path, or print the table of groups."""
    if not config.runs:
        raise UserError("no run is named: give one run folder or several")
    runs = open_runs(config.runs)
    if config.group:
        with received(runs[0].folder):
            print(group_table(runs))
        return None
    single = runs[0].folder / REPORT if len(runs) == 1 else free(RUNS / "comparison.html")
    path = config.out or single
    if len(runs) > 1 and path.is_file():
        raise UserError(f"{display_path(path)} is there already: give --out another file")
    with received(runs[0].folder):
        page = page_html(runs)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, page)
    except (OSError, UserError) as error:
        cause = error.__cause__ or error
        reason = cause.strerror if isinstance(cause, OSError) else cause
        raise UserError(
            f"{display_path(path)} cannot be written ({reason}): give --out another file"
        ) from error
    print(f"wrote {display_path(path)}")
    return path


def free(path: Path) -> Path:
    """The path, or the first of its numbered neighbours that is not there: nothing is overwritten."""
    names = (path.with_stem(f"{path.stem}.{number}") for number in itertools.count(1))
    return next(name for name in itertools.chain([path], names) if not name.exists())


if __name__ == "__main__":
    run_command(main, ReportConfig)
