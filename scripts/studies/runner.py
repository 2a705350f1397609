"""Running a study: every job in a process of its own, so many at a time; what is finished is kept.

A study is a list of jobs. A job's name is its folder under the study's root. Its stage is a script
of this project (`run_stage`), or a function of the study (`work`, in a process that `run_itself`
starts). Either leaves its seconds there as JSON beside what it has made, so the same command goes on
after an interruption, and tables, figures and pages are written from these folders.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.files import display_path, write_json
from harness.paths import MODEL_FILE, REPOSITORY, STATE_FILE

DONE, SECONDS = "done.json", "seconds.json"


@dataclass(frozen=True)
class Job:
    """One piece of work. `name` is its folder under the study's root, and says what it is."""

    name: str
    stage: str
    arguments: Mapping[str, Any]
    needs: tuple[str, ...] = ()
    parts: frozenset[str] = field(default_factory=frozenset)  # of the study


# --- one job --------------------------------------------------------------------------------------


def run_stage(
    folder: Path,
    module: str,
    flags: Iterable[object],
    *,
    threads: int | None = None,
    resume: bool = False,
) -> float:
    """Run one script into `folder` unless it is finished there; its output goes to FOLDER.log.

    An interrupted one is resumed, or without `resume` made anew, so that its seconds are those of
    the whole. They are written beside it: by the clock, and of CPU time. Returns those by the clock.
    """
    half = (folder / STATE_FILE).exists()
    if (folder / MODEL_FILE).exists() and not half:
        print(f"{display_path(folder)} is there", flush=True)
        return 0.0
    again = ["--resume"] * (resume and half)
    script = [module] if module.endswith(".py") else ["-m", module]
    command = [sys.executable, *script, *map(str, flags), "--out", str(folder), *again]
    print(f"{display_path(folder)}: {module} ...", flush=True)
    log = folder.with_name(f"{folder.name}.log")
    wall, cpu = run_into_log(module, command, log, threads=threads, append=resume)
    seconds = {"wall": wall, "threads": threads, "resumed": bool(again)}
    write_json(folder / SECONDS, seconds if cpu is None else seconds | {"cpu": cpu})
    print(f"{display_path(folder)}: {wall:.0f} s", flush=True)
    return wall


def work(job: Job, root: Path, stage: Callable[[Path], None]) -> float:
    """Do one job anew in this process; its seconds by the clock."""
    folder = root / job.name
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    begin = time.perf_counter()
    stage(folder)
    wall = time.perf_counter() - begin
    write_json(folder / DONE, {"cpu": time.process_time(), "wall": wall})
    return wall


def is_done(root: Path, name: str) -> bool:
    """A job's last file is written when all others are."""
    return (root / name / DONE).exists()


def run_itself(script: str, job: Job, root: Path, flags: Sequence[str]) -> float:
    """Let a script of scripts/ do a job, `--work NAME`, with one thread; its seconds by the clock."""
    path = REPOSITORY / "scripts" / script
    command = [sys.executable, str(path), *flags, "--out", str(root), "--work", job.name]
    wall, _ = run_into_log(job.name, command, root / f"{job.name}.log", threads=1)
    return wall


def run_into_log(
    name: str,
    command: Sequence[str],
    log: Path,
    *,
    threads: int | None = None,
    append: bool = False,
) -> tuple[float, float | None]:
    """Run a command whose output goes to `log`; its seconds by the clock and of CPU time.

    Other work on the machine does not change the latter, which is None where the system does not count
    it. Raises UserError with the command's last words where it fails; `name` says what failed.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    paths = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": paths}
    environment |= {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    begin = time.perf_counter()
    with log.open("a" if append else "w", encoding="utf-8") as file:
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env=environment, stdout=file, stderr=subprocess.STDOUT
        )
        status, cpu = wait(process)
    wall = time.perf_counter() - begin
    if status != 0:
        lines = [line.strip("╭╮╰╯│─ ") for line in log.read_text(encoding="utf-8").splitlines()]
        last = [line for line in lines if line][-1:]
        raise UserError(f"{name} failed, see {display_path(log)}: {' '.join(last)}")
    return wall, cpu


def wait(process: subprocess.Popen[bytes]) -> tuple[int, float | None]:
    """The exit status of a process and its CPU seconds, where the system counts them."""
    if not hasattr(os, "wait4"):
        return process.wait(), None
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime


def once(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `make()` returns, kept in a file."""
    if not path.exists():
        write_json(path, make())
    return json.loads(path.read_text(encoding="utf-8"))


# --- many jobs ------------------------------------------------------------------------------------


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


def run_jobs(todo: Sequence[Job], run: Callable[[Job], float], *, at_a_time: int) -> None:
    """`run` starts a job's process and returns its seconds. A job begins after those that it needs."""
    begin, left = time.perf_counter(), list(todo)
    if todo:
        print(f"{len(todo)} jobs, {todo[0].name} first ...", flush=True)
    running: dict[Future[float], Job] = {}
    with ThreadPoolExecutor(at_a_time) as pool:
        while left or running:
            missing = {job.name for job in [*left, *running.values()]}
            ready = [job for job in left if not missing.intersection(job.needs)]
            for job in ready[: at_a_time - len(running)]:
                left.remove(job)
                running[pool.submit(run, job)] = job
            for ended in wait_for(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(ended)
                rest = len(left) + len(running)
                done = len(todo) - rest
                minutes = (time.perf_counter() - begin) / done * rest / 60
                print(
                    f"{done}/{len(todo)} {job.name}: {ended.result():.0f} s; "
                    f"all that is left: about {minutes:.0f} min",
                    flush=True,
                )
