"""Running a study: it lists its jobs, each is done once in a process of its own, and the page is drawn.

A job's name is its folder under the study's root. Its stage is a command of this project
(`rl.grpo_engine`), or a name that the study's own `do` knows: `python -m studies` then starts itself
with `--work NAME`. NAME.json beside the folder holds the flags, and digests of the job's code and of all
that it has read: a job is done while these are what they were. So the same command goes on after an
interruption and makes anew what has changed; numbers, tables and figures are of such jobs alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from tyro.conf import Positional

from harness.errors import UserError
from harness.files import (
    display_path,
    read_json,
    read_object,
    sha256_of,
    write_json,
    write_text,
)
from harness.flags import AtLeastOne, check_ranges
from harness.paths import MODEL_FILE, REPOSITORY, RUNS, STATE_FILE
from harness.run_folder import CONFIG_FILE, INPUTS, lock, made_with, unlock
from studies.pages import DOCS, Numbers

AROUND = ("harness", "data", "gpt", "reward_model", "rl")  # what every job is made with


@dataclass(frozen=True)
class Job:
    """One piece of work. `name` is its folder under the study's root, and says what it is."""

    name: str
    stage: str
    arguments: Mapping[str, Any]
    needs: tuple[str, ...] = ()
    parts: frozenset[str] = field(default_factory=frozenset)  # of the study
    typed: tuple[str, ...] = ()  # more flags, as they stand on a command line
    code: tuple[str, ...] = ()  # modules that make it, beside its command

    @property
    def is_command(self) -> bool:
        return "." in self.stage

    @property
    def flags(self) -> list[str]:
        return [*words(self.arguments), *self.typed]


@dataclass(frozen=True, kw_only=True)
class StudyFlags:
    """What every study takes."""

    parts: Positional[tuple[str, ...]] = ()
    """Only these parts of it; a wrong name is answered with the list."""
    seeds: AtLeastOne = 3
    """Seeds of every run, from the first."""
    only: tuple[str, ...] = ()
    """Only jobs whose name holds one of these; what they need is run as well."""
    quick: bool = False
    """The smallest plan, in a folder of its own, to see that everything works."""
    jobs: AtLeastOne = 2
    """Processes at a time."""
    plan: bool = False
    """Say what is done and what is left, and run nothing."""
    draw: bool = False
    """Write the numbers and figures of the finished jobs into docs, for `make tables`; run nothing."""
    out: Path = RUNS
    """Folder in which each study has one of its own."""
    work: str = ""
    """Do this one job here and now; what the command starts itself with."""

    goes_on = True  # called again, it does what is left

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class Study:
    """What `python -m studies NAME` runs: jobs, numbers of those that are done, tables, figures.

    Its flags reach it with `out` as its own folder and with all `parts` where none was typed. Tables and
    figures are made of numbers alone, so that both can be made anew of what docs have recorded.
    """

    flags: type[StudyFlags] = StudyFlags
    usual: Mapping[str, Any] = field(default_factory=dict)  # defaults of flags here
    quick: Mapping[str, Any]  # the same with --quick
    plan: Callable[[Any], dict[str, Job]]  # each job by its name, after those that it needs
    # Fills the folder of a job that is no command.
    do: Callable[[Any, Job, Path], None] | None = None
    # The numbers of jobs that are done.
    collect: Callable[[Any, Mapping[str, Job]], Mapping[str, Any]]
    tables: Callable[[Numbers], Mapping[str, Sequence[str]]]  # of its page, by their names
    draw: Callable[[Numbers, Path], None] = lambda numbers, folder: None
    recorded: Path | None = None  # where --draw keeps the numbers
    # How many levels of keys recorded numbers keep what no job here has made: 1 is that of sections, with
    # more a study can be recorded in several places, row by row.
    levels: int = 1
    # Among its processes; or each has one, and rounds the same everywhere.
    shares_threads: bool = False
    # An interrupted command; or it is made anew, so that its time is the whole's.
    resumes: bool = False


# --- one job --------------------------------------------------------------------------------------


def record_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")


def read_record(folder: Path) -> dict[str, Any]:
    """What was `asked` for and, with "wall", that it is done; empty where no job was begun."""
    path = record_of(folder)
    return read_object(path) if folder.exists() and path.exists() else {}


def code_of(module: str) -> Path:
    """The file of a module, or a FILE.py. UserError where there is none."""
    path = Path(module if module.endswith(".py") else f"{module.replace('.', '/')}.py")
    found = [place for place in (path.absolute(), REPOSITORY / path) if place.is_file()]
    if not found:
        raise UserError(f"there is no {path}: name a module, as in rl.grpo_engine, or a FILE.py")
    return found[0]


def digest(path: Path) -> str | None:
    """The sha256 of a file's content, None where there is none."""
    return _digest(path, path.stat().st_mtime_ns) if path.is_file() else None


@cache
def _digest(path: Path, changed: int) -> str:
    return sha256_of(path)


def project() -> str:
    """The digest of the code that all jobs share."""
    files = [file for name in AROUND for file in sorted((REPOSITORY / name).rglob("*.py"))]
    return hashlib.sha256(repr([*map(digest, files)]).encode()).hexdigest()


def asked(job: Job, root: Path) -> dict[str, Any]:
    """What decides a job's result: its flags, wherever the study lies, its code, the jobs before it."""
    code = [*[job.stage] * job.is_command, *job.code]
    files = [*map(code_of, code), *(record_of(root / need) for need in job.needs)]
    flags = [word.replace(f"{root}{os.sep}", "") for word in job.flags]
    return {"stage": job.stage, "flags": flags, "files": [*map(digest, files)]}


def is_done(job: Job, root: Path) -> bool:
    """Whether a job was done as it is asked for now, and what it has read is still the same."""
    found = read_record(root / job.name)
    return (
        "wall" in found
        and found["asked"] == asked(job, root)
        and all(digest(root / path) == was for path, was in found["inputs"].items())
    )


def finished(jobs: Mapping[str, Job], root: Path) -> set[str]:
    """Names of the jobs that are done, and all that they need."""
    done: set[str] = set()
    for job in jobs.values():  # each stands after those that it needs
        if done.issuperset(job.needs) and is_done(job, root):
            done.add(job.name)
    return done


def run_job(job: Job, root: Path, *, threads: int | None = None, resume: bool = False) -> float:
    """Do a job in a process of its own; its output goes to NAME.log. Returns its seconds by the clock.

    An interrupted command is resumed, or without `resume` made anew, so that its seconds are those of
    the whole.
    """
    folder, wanted, code = root / job.name, asked(job, root), project()
    begun = read_record(folder) == {"asked": wanted}
    kept = any((folder / file).exists() for file in (STATE_FILE, MODEL_FILE))
    resume = resume and begun and kept
    if folder.exists() and not resume:
        clear(folder, keep=not begun)
    if job.is_command:
        script = [str(code_of(job.stage))] if job.stage.endswith(".py") else ["-m", job.stage]
        command = [sys.executable, *script, *job.flags, "--out", str(folder)]
        command += ["--resume"] * resume
    else:
        command = [sys.executable, "-m", "studies", *sys.argv[1:], "--work", job.name]
    write_json(record_of(folder), {"asked": wanted})
    log = folder.with_name(f"{folder.name}.log")
    seconds = run_into_log(job.stage, command, log, threads=threads, append=resume)
    config = folder / CONFIG_FILE
    read = read_object(config).get(INPUTS, {}) if config.exists() else {}
    inputs = {os.path.relpath(path, root): was for path, was in read.items()}
    write_json(record_of(folder), {"asked": wanted, "inputs": inputs, "project": code} | seconds)
    return seconds["wall"]


def clear(folder: Path, *, keep: bool) -> None:
    """Remove a job's folder, or move it aside. UserError while another process writes there."""
    lock(folder)
    if keep:
        names = (folder.with_name(f"{folder.name}.{number}") for number in count(1))
        aside = next(place for place in names if not place.exists())
        folder.rename(aside)
        print(f"{display_path(folder)} was made of something else: moved to {display_path(aside)}")
    else:
        shutil.rmtree(folder)
    unlock(folder)


def run_into_log(
    name: str, command: Sequence[str], log: Path, *, threads: int | None, append: bool
) -> dict[str, float]:
    """Run a command whose output goes to `log`; its seconds by the clock, `wall`, and of CPU time, `cpu`.

    Other work does not change the latter; where the system does not count it, it is the former. Raises
    UserError with the command's last words where it fails; `name` says what failed.
    """
    paths = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": paths}
    environment |= {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    begin, counted = time.perf_counter(), dict[str, float]()
    with log.open("a" if append else "w", encoding="utf-8") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
        if hasattr(os, "wait4"):
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            counted = {"cpu": usage.ru_utime + usage.ru_stime}
    if process.wait() != 0:
        lines = [line.strip("╭╮╰╯│─ ") for line in log.read_text(encoding="utf-8").splitlines()]
        last = [line for line in lines if line][-1:]
        raise UserError(f"{name} failed, see {display_path(log)}: {' '.join(last)}")
    wall = time.perf_counter() - begin
    return {"wall": wall, "cpu": wall} | counted


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


def run_study(study: Study, name: str, flags: StudyFlags) -> None:
    """Do what is left, as the flags say, and show what has been measured by then."""
    root = (flags.out / (name + "-quick" * flags.quick)).resolve()
    flags = replace(flags, out=root)
    jobs = study.plan(flags)
    if flags.work:
        if flags.work not in jobs or study.do is None:
            raise UserError(f"there is no job {flags.work!r}: name one that --plan lists")
        (root / flags.work).mkdir(parents=True, exist_ok=True)
        study.do(flags, jobs[flags.work], root / flags.work)
        return
    parts = sorted({part for job in jobs.values() for part in job.parts})
    if strange := set(flags.parts).difference(parts):
        raise UserError(f"there is no part {min(strange)}: choose from {', '.join(parts)}")
    flags = replace(flags, parts=flags.parts or tuple(parts))
    own = [job for job in jobs.values() if job.parts & set(flags.parts)]
    if not flags.draw:
        do_what_is_left(study, flags, jobs, own)
    done = finished(jobs, root)
    if not flags.plan:
        show(study, name, flags, {each: job for each, job in jobs.items() if each in done})


def do_what_is_left(
    study: Study, flags: StudyFlags, jobs: dict[str, Job], own: Sequence[Job]
) -> None:
    """Run those of its own jobs that `--only` leaves, and what they need; with --plan name them."""
    wanted = [job for job in own if any(each in job.name for each in flags.only or [""])]
    if not wanted:
        raise UserError(
            f"--only {' '.join(flags.only)}: no job of {', '.join(flags.parts)} has that in its name: "
            "give a part of a name that --plan lists"
        )
    done = finished(jobs, flags.out)
    todo = left_to_do(jobs, done, wanted)
    print(f"{sum(job.name in done for job in own)} of {len(own)} jobs done", flush=True)
    if changed := sum("wall" in read_record(flags.out / job.name) for job in todo):
        print(
            f"{changed} more were, of other flags, code or inputs: they are made anew", flush=True
        )
    note_other_code(flags.out / name for name in done)
    if flags.plan:
        print("\n".join(f"    {job.name}" for job in todo))
        return
    threads = max(torch.get_num_threads() // flags.jobs, 1) if study.shares_threads else 1
    run = partial(run_job, root=flags.out, threads=threads, resume=study.resumes)
    run_jobs(todo, run, flags.jobs)


def show(study: Study, name: str, flags: StudyFlags, done: Mapping[str, Job]) -> None:
    """Keep the numbers of finished jobs, draw them and print their tables: in `out`, or in docs."""
    if flags.draw and (study.recorded is None or not done):
        raise UserError(
            f"--draw: docs keep no {name}, or no job is finished: run it without --draw"
        )
    found = dict(study.collect(flags, done))
    place, path = flags.out, flags.out / "numbers.json"
    if flags.draw and study.recorded is not None:
        place, path = DOCS, study.recorded
        about = {"script": f"studies.{name}", "seeds": flags.seeds, "processor": processor()}
        kept = read_object(path) if path.exists() else {}
        found = laid_over(kept, found, study.levels)
        found["made_with"] = made_with(flags) | about
    write_text(path, json.dumps(found, separators=(",", ":")) + "\n")
    study.draw(found, place)
    for title, lines in study.tables(found).items():
        print(f"\n{title}\n", *lines, sep="\n")
    print(f"\nwrote {display_path(path)} and what is drawn of it")


def laid_over(kept: Mapping[str, Any], found: Mapping[str, Any], levels: int) -> dict[str, Any]:
    """`kept` with what was found in its place, and beside it down to so many levels of keys."""
    if levels == 1:
        return {**kept, **found}
    old, new = ({k: v for k, v in each.items() if isinstance(v, Mapping)} for each in (kept, found))
    both = {key: laid_over(old[key], new[key], levels - 1) for key in old.keys() & new.keys()}
    return {**kept, **found, **both}


def processor() -> str:
    """Its name, where the system says it."""
    info = Path("/proc/cpuinfo")  # only Linux has it
    found = re.search(r"model name\s*: (.*)", info.read_text() if info.exists() else "")
    return found[1] if found else platform.processor()


def note_other_code(folders: Iterable[Path]) -> None:
    """Say how many of these jobs are done with other code around their own."""
    code = project()
    if other := sum(read_record(folder)["project"] != code for folder in folders):
        print(f"{other} of those that are there were made before {', '.join(AROUND)} changed")


def left_to_do(jobs: dict[str, Job], done: set[str], wanted: Iterable[Job]) -> list[Job]:
    """Those of them that are not done, and what they need and is not done."""
    names = {job.name for job in wanted} - done
    for job in reversed(jobs.values()):  # each stands after those that it needs
        names |= set(job.needs) - done if job.name in names else set()
    return [job for job in jobs.values() if job.name in names]


def run_jobs(todo: Sequence[Job], run: Callable[[Job], float], at_a_time: int) -> None:
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
