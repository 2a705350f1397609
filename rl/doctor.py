"""What a run's numbers say is wrong with it, and what to change: each script ends with the same.

python -m rl.doctor runs/grpo-reviews-tiny      or runs/*: several runs, of any stage
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from harness.command_line import run_command
from harness.files import display_path, read_metrics, read_object, received
from harness.report.page import require_runs
from harness.report.rules import RULES, Finding, as_text, examine


@dataclass(frozen=True)
class DoctorConfig:
    """Say what the numbers of runs show."""

    runs: tuple[Path, ...]
    """Run folders."""


def examine_folder(folder: Path) -> list[Finding]:
    """The findings of one run folder. UserError for a file that is damaged."""
    paths = folder / "config.json", folder / "report.json"
    with received(folder):
        flags, results = (read_object(path) if path.exists() else {} for path in paths)
        return examine(read_metrics(folder / "metrics.jsonl"), flags, results)


def main(config: DoctorConfig) -> None:
    """Print what is found in each run; exit status 1 where numbers are wrong."""
    require_runs(config.runs)
    severities = set()
    for folder in config.runs:
        findings, steps = examine_folder(folder), len(read_metrics(folder / "metrics.jsonl"))
        said = f"\n{as_text(findings)}" if findings else "nothing found"
        print(f"{display_path(folder)}: {len(RULES)} rules looked at {steps} steps: {said}")
        severities |= {finding.severity for finding in findings}
    if "error" in severities:
        sys.exit(1)


if __name__ == "__main__":
    run_command(main, DoctorConfig)
