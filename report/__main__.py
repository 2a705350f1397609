"""The page of a run, and what the doctor finds; or several runs over each other, with flags that differ.

    python -m report runs/grpo-reviews-tiny                          its report.html
    python -m report runs/grpo-reviews-tiny runs/ppo-reviews-tiny    one page for both
    python -m report --group runs/baseline/* runs/mine/*             seeds: means and intervals

Every script ends with it; docs/report.md says what is on the page. Any run folder will do, of pre-training
and of a reward model too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.command_line import run_command
from harness.errors import UserError
from harness.files import display_path, received, write_text
from harness.paths import REPORT, RUNS
from report.doctor import as_text, findings_of
from report.intervals import group_table
from report.page import page_html
from report.run import Run, runs_among


@dataclass(frozen=True)
class ReportConfig:
    """Write the page of one run, or of several over each other."""

    runs: tuple[Path, ...]
    """Run folders."""
    out: Path | None = None
    """A new file for the page; default report.html in the run folder, of several runs
    runs/comparison.html, written over an earlier one."""
    group: bool = False
    """Print means over seeds with 95% intervals instead: runs that lie in one folder are a group, and each
    group is compared with the first, seed by seed."""


def main(config: ReportConfig) -> Path | None:
    """Write the page and return its path, or print the table of groups."""
    runs = runs_among(config.runs)
    path = config.out or (runs[0].folder / REPORT if len(runs) == 1 else RUNS / "comparison.html")
    with received(runs[0].folder):
        if config.group:
            print(group_table(runs))
            return None
        page = page_html(runs)
        at_home = len(runs) == 1 and not config.out
        said = conclusion(runs[0]) if at_home else f"wrote {display_path(path)}"
    if config.out and path.exists():
        raise UserError(f"{display_path(path)} is there already: give --out another file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, page)
    except (OSError, UserError) as error:
        cause = error.__cause__ or error
        reason = cause.strerror if isinstance(cause, OSError) else cause
        raise UserError(
            f"{display_path(path)} cannot be written ({reason}): give --out another file"
        ) from error
    print(said)
    return path


def conclusion(run: Run) -> str:
    """The last lines of a script: what the doctor finds, and what in the folder is to be looked at."""
    findings = findings_of(run)
    said = f"python -m report.doctor {run.label} says:\n{as_text(findings)}\n" if findings else ""
    names = (REPORT, "report.png", "report.json", "samples.jsonl")
    there = [name for name in names if name == REPORT or (run.folder / name).exists()]
    return f"{said}wrote {run.label} ({', '.join(there)})"


if __name__ == "__main__":
    run_command(main, ReportConfig)
