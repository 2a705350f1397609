"""Running the list: a process per job, what is finished is kept, a piece ends before its minutes do."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from harness.paths import REPOSITORY
from processes import run_into_log

from harness.files import write_json
from overopt.plan import STAGES, Job
from overopt.settings import Settings

DONE = "done.json"


def is_done(root: Path, name: str) -> bool:
    """A job's last file is written when all others are."""
    return (root / name / DONE).exists()


def work(job: Job, settings: Settings, root: Path) -> None:
    """Do one job in this process. What an interrupted one has left is thrown away."""
    folder = root / job.name
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    begin = time.perf_counter()
    STAGES[job.stage](folder, settings, root, **job.arguments)
    spent = {"cpu": time.process_time(), "wall": time.perf_counter() - begin}
    write_json(folder / DONE, spent | {"forecast": job.seconds})


def left_to_do(jobs: Mapping[str, Job], root: Path, parts: Sequence[str], only: str) -> list[Job]:
    """Unfinished jobs of some parts whose names hold `only`, and the unfinished ones they need."""
    wanted: dict[str, Job] = {}

    def want(job: Job) -> None:
        if job.name in wanted or is_done(root, job.name):
            return
        for need in job.needs:
            want(jobs[need])
        wanted[job.name] = job

    for job in jobs.values():
        if job.parts & set(parts) and only in job.name:
            want(job)
    return list(wanted.values())


class Clock:
    """Says how long what is left will take, from the forecasts and how wrong they have been."""

    def __init__(self, root: Path, jobs: Mapping[str, Job]) -> None:
        done = [name for name in jobs if is_done(root, name)]
        records = [json.loads((root / name / DONE).read_text("utf-8")) for name in done]
        self.forecast = 1e-9 + sum(record["forecast"] for record in records)
        self.spent = 1e-9 + sum(record["wall"] for record in records)

    @property
    def scale(self) -> float:
        """Wall seconds per forecast second so far; 1 before anything is known."""
        return self.spent / self.forecast if self.forecast > 1 else 1.0

    def add(self, job: Job, wall: float) -> None:
        """A job has ended."""
        self.forecast += job.seconds
        self.spent += wall

    def left(self, jobs: Sequence[Job], at_a_time: int) -> float:
        """Seconds by the clock."""
        return sum(job.seconds for job in jobs) * self.scale / at_a_time


def run_piece(
    jobs: Mapping[str, Job], todo: list[Job], root: Path, flags: Sequence[str], *, at_a_time: int,
    minutes: float,
) -> list[Job]:  # fmt: skip
    """Run what fits into the minutes, `at_a_time` processes; returns what is still to be done."""
    begin, clock = time.perf_counter(), Clock(root, jobs)
    running: dict[Future[float], Job] = {}
    todo, total = list(todo), len(todo)
    with ThreadPoolExecutor(at_a_time) as pool:
        while todo or running:
            room = minutes * 60 - (time.perf_counter() - begin)
            ready = [job for job in todo if all(is_done(root, need) for need in job.needs)]
            fitting = [job for job in ready if job.seconds * clock.scale <= room]
            for job in fitting[: at_a_time - len(running)]:
                todo.remove(job)
                running[pool.submit(in_process, job, root, flags)] = job
            if not running:
                break
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(ended)
                clock.add(job, ended.result())
                left = clock.left([*todo, *running.values()], at_a_time)
                print(
                    f"{total - len(todo) - len(running)}/{total} {job.name}: {ended.result():.0f} s; "
                    f"all that is left: about {left / 60:.0f} min",
                    flush=True,
                )
    return todo


def in_process(job: Job, root: Path, flags: Sequence[str]) -> float:
    """Do a job in a process of its own with one thread; its seconds by the clock."""
    script = REPOSITORY / "scripts" / "overoptimisation.py"
    command = [sys.executable, str(script), *flags, "--out", str(root), "--work", job.name]
    paths = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    wall, _ = run_into_log(job.name, command, root / f"{job.name}.log", environment=environment)
    return wall
