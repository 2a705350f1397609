"""Running a study: it lists its jobs, each is done once in a process of its own, and the page is drawn.

A job's name is its folder under the study's root. Its stage is a command of this project
(`rl.grpo_engine`), or a name that the study's own `do(job, folder)` knows: its script then starts itself
with `--work NAME`. What is done has a done.json with its seconds, written last. So the same command goes
on after an interruption, and numbers, tables and figures are written from these folders alone.
"""

from __future__ import annotations

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
from harness.files import display_path, read_json, write_json
from harness.flag_ranges import AtLeastOne, check_ranges
from harness.paths import REPOSITORY, RUNS, STATE_FILE

DONE = "done.json"


@dataclass(frozen=True)
class Job:
    """One piece of work. `name` is its folder under the study's root, and says what it is."""

    name: str
    stage: str
    arguments: Mapping[str, Any]
    needs: tuple[str, ...] = ()
    parts: frozenset[str] = field(default_factory=frozenset)  # of the study


@dataclass(frozen=True, kw_only=True)
class StudyFlags:
    """What every study's command takes."""

    seeds: AtLeastOne = 3
    """Seeds of every run, from the first: 1 is a cheap look."""
    only: str = ""
    """Only jobs whose name holds this; what they need is run as well."""
    jobs: AtLeastOne = 2
    """Processes at a time; the threads are shared out among them."""
    plan: bool = False
    """Say what is done and what is left, and run nothing."""
    out: Path = RUNS
    """Folder of all jobs."""
    work: str = ""
    """Do this one job here and now; what the script starts itself with."""

    goes_on = True  # called again, it does what is left

    def __post_init__(self) -> None:
        check_ranges(self)


# --- one job --------------------------------------------------------------------------------------


def is_done(root: Path, name: str) -> bool:
    """A job's last file is written when all others are."""
    return (root / name / DONE).exists()


def run_stage(
    folder: Path,
    module: str,
    flags: Iterable[object],
    *,
    threads: int | None = None,
    resume: bool = False,
) -> float:
    """Run one command into `folder` unless it is done there; its output goes to FOLDER.log.

    An interrupted one is resumed, or without `resume` made anew, so that its seconds are those of
    the whole. Returns those by the clock; beside them CPU time is kept, or the same again where the
    system counts none.
    """
    if is_done(folder, ""):
        print(f"{display_path(folder)} is there", flush=True)
        return 0.0
    again = ["--resume"] * (resume and (folder / STATE_FILE).exists())
    script = [module] if module.endswith(".py") else ["-m", module]
    command = [sys.executable, *script, *map(str, flags), "--out", str(folder), *again]
    print(f"{display_path(folder)}: {module} ...", flush=True)
    log = folder.with_name(f"{folder.name}.log")
    wall, cpu = run_into_log(module, command, log, threads=threads, append=resume)
    write_json(folder / DONE, {"wall": wall, "cpu": wall if cpu is None else cpu})
    return wall


def work(job: Job, root: Path, do: Callable[[Job, Path], None]) -> None:
    """Do one job anew in this process."""
    folder = root / job.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    begin = time.perf_counter()
    do(job, folder)
    seconds = {"cpu": time.process_time(), "wall": time.perf_counter() - begin}
    write_json(folder / DONE, seconds)


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
    if status != 0:
        lines = [line.strip("╭╮╰╯│─ ") for line in log.read_text(encoding="utf-8").splitlines()]
        last = [line for line in lines if line][-1:]
        raise UserError(f"{name} failed, see {display_path(log)}: {' '.join(last)}")
    return time.perf_counter() - begin, cpu


def wait(process: subprocess.Popen[bytes]) -> tuple[int, float | None]:
    """The exit status of a process and its CPU seconds, where the system counts them."""
    if not hasattr(os, "wait4"):
        return process.wait(), None
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime


def once(path: Path, make: Callable[[], Any]) -> Any:
    """What `make()` returns, kept in a file."""
    if not path.exists():
        write_json(path, make())
    return read_json(path)


def words(flags: Mapping[str, Any]) -> list[str]:
    """Flags as a command line has them: --name value or values, and --name or --no-name of a switch."""
    line: list[str] = []
    for name, value in flags.items():
        name = name.replace("_", "-")
        if isinstance(value, bool):
            line.append(f"--{name}" if value else f"--no-{name}")
        else:
            line += [f"--{name}", str(value)]
    return line


# --- a study --------------------------------------------------------------------------------------


def go(
    flags: StudyFlags,
    jobs: Mapping[str, Job],
    parts: Sequence[str],
    do: Callable[[Job, Path], None] | None = None,
    *,
    threads: int | None = 1,
    resume: bool = False,
) -> bool:
    """Do what is left of some parts, as the flags say; whether the page is to be drawn now."""
    root = flags.out.resolve()
    if flags.work:
        if flags.work not in jobs or do is None:
            raise UserError(f"there is no job {flags.work!r}: name one that --plan lists")
        work(jobs[flags.work], root, do)
        return False
    own = [job for job in jobs.values() if job.parts & set(parts)]
    if not any(flags.only in job.name for job in own):
        raise UserError(
            f"--only {flags.only}: no job of {', '.join(parts)} has that in its name: give a part of a "
            "name that --plan lists"
        )
    todo = left_to_do(jobs, root, parts, flags.only)
    print(f"{sum(is_done(root, job.name) for job in own)} of {len(own)} jobs done", flush=True)
    if flags.plan:
        print("\n".join(f"    {job.name}" for job in todo))
        return False

    def run(job: Job) -> float:
        folder = root / job.name
        if "." in job.stage:
            return run_stage(
                folder, job.stage, words(job.arguments), threads=threads, resume=resume
            )
        script = [sys.executable, str(Path(sys.argv[0]).resolve()), *sys.argv[1:]]
        itself = [*script, "--out", str(root), "--work", job.name]
        log = folder.with_name(f"{folder.name}.log")
        return run_into_log(job.name, itself, log, threads=threads)[0]

    run_jobs(todo, run, at_a_time=flags.jobs)
    return True


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
