"""What a run's numbers say is wrong with it, and what to change: each script ends with the same.

python -m rl.doctor runs/grpo-reviews-tiny      or runs/*: several runs, of any stage
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from harness.command_line import run_command
from harness.errors import UserError
from harness.files import display_path, read_metrics, read_object, received
from harness.report.page import read
from harness.report.rules import RULES, Finding, as_text, examine


@dataclass(frozen=True)
class DoctorConfig:
    """Say what the numbers of runs show."""

    runs: tuple[Path, ...]
    """Run folders."""


def examine_folder(folder: Path) -> list[Finding]:
    """The findings of one run folder. UserError if it has no metrics."""
    metrics, config = folder / "metrics.jsonl", folder / "config.json"
    if not metrics.exists():
        raise UserError(f"there is no {metrics.name} in {display_path(folder)}: name a run folder")
    with received(folder):
        flags = read_object(config) if config.exists() else {}
        return examine(read_metrics(metrics), flags, read(folder / "report.json", {}))


def main(config: DoctorConfig) -> None:
    """Print what is found in each run; exit status 1 where numbers are wrong."""
    if not config.runs:
        raise UserError("no run is named: give one run folder or several")
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
