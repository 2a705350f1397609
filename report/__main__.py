"""The page of a run, and what the doctor finds; or several runs over each other, with flags that differ.

    python -m report runs/grpo-reviews-tiny                          its report.html
    python -m report runs/grpo-reviews-tiny runs/ppo-reviews-tiny    one page for both
    python -m report --group runs/baseline/* runs/mine/*             seeds: means and intervals
    python -m report --csv runs/grpo-reviews-tiny                    its metrics.jsonl as metrics.csv

Every script ends with it; docs/guide.md says what is on the page. Any run folder will do, of pre-training
and of a reward model too.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.command_line import run_command
from harness.errors import UserError
from harness.files import as_user_error, display_path, write_text
from harness.paths import REPORT, RUNS
from report.doctor import as_text, examine, runs_among
from report.intervals import group_table
from report.page import page_html


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
    csv: bool = False
    """Write metrics.csv into each run folder instead: a column for each metric, a row a step."""


def write_csv(folder: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    """The metrics of a run as a table, an empty cell where a step has no such number; returns its path."""
    table = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(table, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(folder / "metrics.csv", table.getvalue())
    return folder / "metrics.csv"


def main(config: ReportConfig) -> Path | None:
    """Write the page and return its path, or print the table of groups."""
    runs = runs_among(config.runs)
    run, alone = runs[0], len(runs) == 1
    path = config.out or (run.folder / REPORT if alone else RUNS / "comparison.html")
    with as_user_error(run.folder):
        if config.group:
            print(group_table(runs))
            return None
        if config.csv:
            for each in runs:
                print(f"wrote {display_path(write_csv(each.folder, each.rows))}")
            return None
        page = page_html(runs)
        findings = examine(run.rows, run.flags, run.results) if alone else []
    if config.out and path.exists():
        raise UserError(f"{display_path(path)} is there already: give --out another file")
    try:
        write_text(path, page)
    except UserError as error:
        raise UserError(
            f"{display_path(path)} cannot be written ({error.__cause__ or error}): give --out another"
        ) from error
    if findings:
        print(f"python -m report.doctor {run.label} says:\n{as_text(findings)}")
    names = (REPORT, "report.png", "report.json", "samples.jsonl")
    there = [name for name in names if (run.folder / name).exists()]
    at_home = alone and not config.out
    print(f"wrote {run.label} ({', '.join(there)})" if at_home else f"wrote {display_path(path)}")
    return path


if __name__ == "__main__":
    run_command(main, ReportConfig)
