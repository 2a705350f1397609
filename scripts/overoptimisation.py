"""The price of a proxy: over-optimisation against a known gold reward.

    python scripts/overoptimisation.py                        all that is left; Ctrl-C and the same goes on
    python scripts/overoptimisation.py --parts law            the law alone; likewise cures
    python scripts/overoptimisation.py --only start-0/law     jobs by a part of their name
    python scripts/overoptimisation.py --plan                 what is done and left
    python scripts/overoptimisation.py --draw law             tables and figure of one part, no training

Two parts. law: reward models of 4 sizes on 5 numbers of labels, each optimised by GRPO until its
gold reward has turned, and by best-of-n. cures: what helps, compared at equal KL. The list
stands in scripts/overopt/plan.py and its sizes in scripts/overopt/settings.py. Numbers go to
docs/overoptimisation.json, from which every table and figure is drawn.
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from overopt.pages import draw
from overopt.plan import PARTS, do, plan
from overopt.settings import SETTINGS
from studies.runner import Job, is_done, left_to_do, run_itself, run_jobs

from harness.command_line import run_command
from harness.errors import UserError
from harness.flag_ranges import AtLeastOne, check_ranges
from harness.paths import REPOSITORY, RUNS

Part = Literal["law", "cures"]


@dataclass(frozen=True)
class OveroptimisationConfig:
    """Run the study or a part of it, or draw what is there."""

    parts: tuple[Part, ...] = PARTS  # type: ignore[assignment]
    """Which parts."""
    only: str = ""
    """Only jobs whose name holds this; what they need is run as well."""
    jobs: AtLeastOne = 2
    """Processes at a time, one thread each."""
    plan: bool = False
    """Say what is done and what is left, and run nothing."""
    draw: tuple[Part, ...] = ()
    """Write the numbers, tables and figures of these parts from the finished jobs, and run nothing."""
    size: Literal["full", "rehearsal"] = "full"
    """rehearsal: everything once, in toy sizes, to see that it works."""
    out: Path = RUNS / "overoptimisation"
    """Folder of all runs."""
    docs: Path = REPOSITORY / "docs"
    """Folder of the page, its numbers and its figures."""
    work: str = ""
    """Do this one job here and now; what the script starts itself with."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.parts:
            raise ValueError(f"parts is empty: name one or several of {', '.join(PARTS)}")


def said(jobs: dict[str, Job], root: Path) -> str:
    lines = []
    for part in PARTS:
        own = [job for job in jobs.values() if part in job.parts]
        done = sum(is_done(root, job.name) for job in own)
        lines.append(f"{part:7} {done} of {len(own)} jobs done")
    return "\n".join(lines)


def main(config: OveroptimisationConfig) -> None:
    settings, root = SETTINGS[config.size], config.out.resolve()
    jobs = plan(settings)
    if config.work:
        if config.work not in jobs:
            raise UserError(f"there is no job {config.work!r}: name one that --plan lists")
        do(jobs[config.work], settings, root)
        return
    if config.draw:
        draw(config.draw, settings, root, config.docs)
        return
    if not any(config.only in job.name for job in jobs.values() if job.parts & set(config.parts)):
        raise UserError(
            f"--only {config.only}: no job of {', '.join(config.parts)} has that in its name: give a "
            "part of a name that --plan lists"
        )
    todo = left_to_do(jobs, root, config.parts, config.only)
    print(said(jobs, root), flush=True)
    if config.plan:
        print("\n".join(f"    {job.name}" for job in todo))
        return
    run_jobs(
        todo,
        lambda job: run_itself("overoptimisation.py", job, root, ("--size", config.size)),
        at_a_time=config.jobs,
    )


if __name__ == "__main__":
    run_command(main, OveroptimisationConfig)
