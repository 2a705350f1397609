"""The page of a run, written anew, or several runs over each other with the differences of their flags.

    python -m rl.report runs/grpo-reviews-tiny                          its report.html
    python -m rl.report runs/grpo-reviews-tiny runs/ppo-reviews-tiny    one page for both
    python -m rl.report --group runs/baseline/* runs/mine/*             seeds: means and intervals

Every script writes report.html itself; docs/report.md says what is on it. Any run folder will do, of
pre-training and of a reward model too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.command_line import run_command
from harness.errors import UserError
from harness.files import display_path, received, write_text
from harness.paths import RUNS
from harness.report.intervals import group_table
from harness.report.page import REPORT, page_html, read_run, require_runs


@dataclass(frozen=True)
class ReportConfig:
    """Write the page of one run, or of several over each other."""

    runs: tuple[Path, ...]
    """Run folders."""
    out: Path | None = None
    """The file; default report.html in the run folder, of several runs runs/comparison.html."""
    group: bool = False
    """Print means over seeds with 95% intervals instead: runs that lie in one folder are a group, and each
    group is compared with the first, seed by seed."""


def main(config: ReportConfig) -> Path | None:
    """Write the page and return its path, or print the table of groups."""
    require_runs(config.runs)
    runs = [read_run(folder) for folder in config.runs]
    path = config.out or (runs[0].folder / REPORT if len(runs) == 1 else RUNS / "comparison.html")
    with received(runs[0].folder):
        if config.group:
            print(group_table(runs))
            return None
        page = page_html(runs)
    if len(runs) > 1 and path.is_file():
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
    print(f"wrote {display_path(path)}")
    return path


if __name__ == "__main__":
    run_command(main, ReportConfig)
