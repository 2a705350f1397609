"""What a run's numbers say is wrong with it, and what to change.

    python -m rl.doctor runs/grpo-reviews-tiny
    python -m rl.doctor runs/*                    several runs, or any stage's
    python -m rl.doctor runs/grpo-reviews-tiny --json

Every script prints the same findings at its end, if there are any. A finding has its evidence in
numbers, the likeliest cause, what to change, and the page to read: a notebook or a file in docs/.
The exit status is 1 where numbers are wrong ("error"), so that a script can stop there.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.command_line import command_name, explained
from harness.errors import UserError
from harness.files import display_path, read_metrics, read_object, received
from harness.report.page import read
from harness.report.rules import Finding, as_text, examine
from rl.training.run_rules import RULES

METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class DoctorConfig:
    """Say what the numbers of runs show."""

    json: bool = False
    """Write one JSON object per run and nothing else."""


def examine_folder(folder: Path) -> list[Finding]:
    """The findings of one run folder. UserError if it has no metrics."""
    if not (folder / METRICS).exists():
        raise UserError(
            f"there is no {METRICS} in {display_path(folder)}: give the folder of a run"
        )
    config = folder / "config.json"
    flags = read_object(config) if config.exists() else {}
    with received(folder):
        return examine(
            read_metrics(folder / METRICS), flags, read(folder / "report.json", {}), RULES
        )


def main(runs: tuple[Path, ...], /, config: DoctorConfig) -> None:
    """Say what the numbers of runs show.

    Args:
        runs: Run folders.
    """
    if not runs:
        raise UserError("nothing to examine: give run folders, as in runs/NAME")
    wrong = False
    for folder in runs:
        findings = examine_folder(folder)
        wrong |= any(finding.severity == "error" for finding in findings)
        if config.json:
            print(json.dumps({"run": str(folder), "findings": [asdict(f) for f in findings]}))
            continue
        steps = len(read_metrics(folder / METRICS))
        looked = f"{display_path(folder)}: {len(RULES)} rules looked at {steps} steps: "
        print(looked + (f"{len(findings)} of them speak" if findings else "nothing found"))
        if findings:
            print(as_text(findings))
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    import tyro

    with explained():
        tyro.cli(main, prog=command_name(), config=(tyro.conf.OmitArgPrefixes,))
