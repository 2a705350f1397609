"""Kill, starve and confuse every training script, and see that nothing is lost.

    python scripts/soak.py                    everything, under 30 minutes on 2 quiet cores
    python scripts/soak.py --only kill/ppo_engine/1
    python scripts/soak.py --resume           the pieces that have no good result yet
    python scripts/soak.py --write-docs       also puts the table into docs/reliability.md

kill     a run at toy size (scripts/toy_runs.py) is killed by SIGKILL several times: at a seeded moment,
         as it begins, while state.pt is being written, after its last step, in a refresh of the
         reward model; of two ranks the first, the other or both. Then it is resumed to its end and
         compared with a run that nobody disturbed: weights, metrics, samples, pairs and reports, bit
         for bit.
disk     state.pt hits a limit of the file size
closed   the folder of a run, or the one above it, cannot be written
twice    a second run is given the folder of one that is running
strange  a stopped run resumed with another script's state, with flags of its own changed or gone;
         `starved` no file may pass so many bytes; `clock` time stands still, or goes backwards;
         `paused` a rank is stopped for a while
hostile  what is malformed (tests/test_bad_files.py); `fuzz` what
         hypothesis makes up

Linux only. A piece that fails is listed with the command that repeats it, and the others go on.
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import itertools
import os
import platform
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from studies import pages
from studies.pages import markdown
from toy_runs import (
    JOBS,
    LONGEST,
    Job,
    Run,
    Wrong,
    children_of,
    job_named,
    make_inputs,
    prepare,
)

from harness.command_line import run_command
from harness.errors import UserError
from harness.files import append_jsonl, display_path, read_jsonl, sha256_of, write_json, write_text
from harness.flag_ranges import Seed
from harness.paths import MODEL_FILE, REPOSITORY, RUNS, STATE_FILE
from harness.run_folder import CONFIG_FILE

DOCUMENT = REPOSITORY / "docs" / "reliability.md"
MOMENTS = {  # how a chain of kills goes, by the number of ranks
    1: ("begin", "step", "write", "end"),
    2: ("step", "write", "end"),
}
FUZZ_EXAMPLES = 1500  # of each property: more than 10,000 in all


@dataclass(frozen=True)
class SoakConfig:
    """Kill, starve and confuse every training script, and see that nothing is lost."""

    only: tuple[str, ...] = ()
    """Pieces to do, by name or by the beginning of their names; default: all."""
    seed: Seed = 0
    """Of the moments at which runs are killed."""
    resume: bool = False
    """Keep what an earlier soak in this folder has found good, with this seed."""
    out: Path = RUNS / "soak"
    """Folder for the toy runs, pieces.jsonl and soak.json."""
    keep: bool = False
    """Keep the folders of pieces that went well, too."""
    write_docs: bool = False
    """Put the table into docs/reliability.md."""
    debug: bool = False
    """Show the traceback of an error."""


@dataclass
class Workplace:
    """Where a piece works: its own folder, the shared inputs, and what it counts."""

    folder: Path
    inputs: Path
    references: Path
    rng: random.Random
    counts: Counter[str] = field(default_factory=Counter)

    def run(self, job: Job, ranks: int = 1, name: str = "run") -> Run:
        return Run(job, self.inputs, self.folder / name / job.name, ranks)

    def reference(self, job: Job, ranks: int = 1) -> Run:
        """The run that nobody disturbed, made when it is first asked for."""
        run = Run(job, self.inputs, self.references / f"{job.name}-{ranks}", ranks)
        done = (run.folder / MODEL_FILE).exists() and not (run.folder / STATE_FILE).exists()
        if not done:
            shutil.rmtree(run.folder, ignore_errors=True)
            run.start().expect(0)
            self.counts["runs"] += 1
        return run


# Kills --------------------------------------------------------------------------------------------


def kill_piece(job: Job, ranks: int, moments: tuple[str, ...], place: Workplace) -> None:
    """Kill one run again and again, then take it to its end and compare."""
    reference = place.reference(job, ranks)
    run = place.run(job, ranks)
    run.start()
    for moment in moments:
        for attempt in range(8):
            if kill_once(place, run, moment):
                break
            if attempt == 7:
                raise Wrong(f"it always ended before it could be killed ({moment})", "unclear")
            check_finished(run, reference)  # then another one is killed
            shutil.rmtree(run.folder)
            run.start()
        run.again()
    run.expect(0)
    place.counts["resumed to the end"] += 1
    check_finished(run, reference)


def check_finished(run: Run, reference: Run) -> None:
    """A finished run is the reference, and says that it is finished when it is resumed."""
    run.expect(0)
    run.same_as(reference)
    before = fingerprint(run.folder)
    said = run.start("--resume").expect(0)
    if "is finished" not in said:
        raise Wrong(f"a resumed finished run said: {said.strip()[-200:]}")
    if fingerprint(run.folder) != before:
        raise Wrong("resuming a finished run changed its folder", "different")


def kill_once(place: Workplace, run: Run, moment: str) -> bool:
    """Kill at such a moment and look at what is left; False if the run ended first."""
    begun = run.saved() or 0
    who = "first" if run.ranks == 1 else place.rng.choice(["first", "another", "all"])
    first, last = (begun + 1, run.job.steps) if moment == "write" else (begun, run.job.steps - 1)
    row = place.rng.randint(min(first, last), last)
    delay = place.rng.random() * 0.2
    row = {"begin": 0, "refresh": run.job.steps // 2, "end": run.job.steps}.get(moment, row)
    if not wait_for(run, moment, row - (moment == "write"), delay):
        return False
    seen = run.rows()
    run.kill(who)
    status = run.end()
    if status == 0:  # the blow came too late
        return False
    place.counts["kills"] += 1
    if who == "another" and status > 0 and "Traceback" in run.said():
        raise Wrong("the first rank showed a traceback when another one was killed")
    saved = run.saved()
    if saved is None and (run.folder / MODEL_FILE).exists():
        return True  # after the state was deleted: the run is complete
    if (saved or 0) < max(begun, seen - 1):
        raise Wrong(f"step {max(begun, seen - 1)} was saved, and {saved} is left", "lost")
    return True


def wait_for(run: Run, moment: str, row: int, delay: float) -> bool:
    """Wait for the moment; False if the run has ended."""

    def come() -> bool:
        if moment == "refresh":  # which begins when the step before it is saved
            return run.rows() >= row and not run.being_written(STATE_FILE) and run.saved() == row
        return run.rows() >= row

    def writing() -> bool:
        if moment == "begin":  # the first file of a run
            return run.being_written(CONFIG_FILE) or (run.folder / CONFIG_FILE).exists()
        return moment != "write" or run.being_written(STATE_FILE)

    for ready in (come, writing):
        while not ready():
            if not run.running():
                return False
            time.sleep(0.001 if ready is come else 0)
    time.sleep(0 if moment in ("begin", "write") else delay)
    return run.running()


def fingerprint(folder: Path) -> dict[str, str]:
    return {str(path): sha256_of(path) for path in folder.rglob("*") if path.is_file()}


# Disk, permissions, two at once -------------------------------------------------------------------


def stopped_early(place: Workplace, job: Job) -> Run:
    """A run that was killed with a checkpoint, to be gone on with under worse conditions."""
    run = place.run(job)
    run.start()
    if not wait_for(run, "step", 2, 0):
        raise Wrong("it ended before it could be stopped")
    run.kill_all()
    run.end()
    if run.saved() is None:
        raise Wrong("two steps are done and no state is there", "lost")
    return run


def still_good(place: Workplace, run: Run, step: int) -> None:
    """The state from before is there, and leads to the reference."""
    if (run.saved() or 0) < step:
        raise Wrong(f"the state of step {step} is gone", "lost")
    run.again().expect(0)
    check_finished(run, place.reference(run.job))


def disk_piece(job: Job, place: Workplace) -> None:
    """No file may become as large as the state: the run ends with a sentence, the state stays."""
    run = stopped_early(place, job)
    step, limit = run.saved() or 0, (run.folder / STATE_FILE).stat().st_size * 2 // 3
    starve = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit, limit))
    run.start("--resume", before=starve).refuses("could not be written")
    place.counts["full disks"] += 1
    still_good(place, run, step)


def closed_piece(job: Job, place: Workplace) -> None:
    """Neither a new run nor a resumed one may write; nothing appears, and the state stays."""
    if os.geteuid() == 0:
        raise Skipped("root may write everywhere, whatever the permissions")
    run = stopped_early(place, job)
    step = run.saved() or 0
    shut = [run.folder, run.folder.parent]
    new = Run(job, place.inputs, run.folder.parent / "new")
    new.log.touch()  # their output goes on
    for folder in shut:
        folder.chmod(0o555)
    try:
        run.start("--resume").refuses("Permission", "written", "denied")
        new.start().refuses("Permission", "written", "denied")
        if new.folder.exists():
            raise Wrong("a refused run has left a folder", "stray")
    finally:
        for folder in shut:
            folder.chmod(0o755)
    place.counts["closed folders"] += 2
    still_good(place, run, step)


def twice_piece(job: Job, ranks: int, place: Workplace) -> None:
    """While a run is there, a new one and a resumed one in its folder are refused."""
    first = place.run(job, ranks).start()
    if not wait_for(first, "step", 1, 0):
        raise Wrong("it ended before a second one could be started")
    os.killpg(first.process, 19)  # SIGSTOP, so that it is there for as long as this takes
    try:
        for more in ((), ("--resume",)):
            second = Run(job, place.inputs, first.folder, ranks)
            second.start(*more).refuses("another run is writing")
            place.counts["second runs refused"] += 1
    finally:
        os.killpg(first.process, 18)  # SIGCONT
    first.expect(0)
    check_finished(first, place.reference(job, ranks))


def strange_piece(job: Job, other: Job, place: Workplace) -> None:
    """Resumed with what is not its own: each is refused, and the right state still leads to the end."""
    run, another = stopped_early(place, job), stopped_early(place, other)
    step = run.saved() or 0
    own = {name: (run.folder / name).read_bytes() for name in (STATE_FILE, CONFIG_FILE)}
    foreign = (another.folder / STATE_FILE).read_bytes()
    for name, content, more in (
        (STATE_FILE, foreign, ()), (STATE_FILE, own[STATE_FILE][:-9], ()), (STATE_FILE, b"", ()),
        (CONFIG_FILE, b"{}", ()), (CONFIG_FILE, b"[1]", ()), (CONFIG_FILE, own[CONFIG_FILE][:-9], ()),
        (CONFIG_FILE, own[CONFIG_FILE], ("--seed", "9")),
    ):  # fmt: skip
        (run.folder / name).write_bytes(content)
        run.start("--resume", *more).refuses("error")
        (run.folder / name).write_bytes(own[name])
        place.counts["hostile cases"] += 1
    still_good(place, run, step)


def starved_piece(job: Job, place: Workplace) -> None:
    """A new run in which no file may pass so many bytes ends with the name of the file."""
    for limit in (3_000, 30_000, 200_000):
        starve = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit, limit))
        place.run(job, name=str(limit)).start(before=starve).refuses("could not be written")
        place.counts["full disks"] += 1


def clock_piece(job: Job, place: Workplace) -> None:
    """By a clock that stands still, and by one that goes backwards, a run ends with the same weights."""
    for name, hours in (("still", 0), ("backwards", -1)):
        ticks = itertools.count(1)

        def turn(hours: int = hours, ticks: Iterator[int] = ticks) -> None:
            time.time = time.perf_counter = lambda: 1e9 + 3600.0 * hours * next(ticks)

        run = place.run(job, name=name).start(before=turn)
        run.expect(0)
        run.same_as(place.reference(job))
        place.counts["hostile cases"] += 1


def paused_piece(job: Job, place: Workplace) -> None:
    """Rank 1 is stopped for two seconds: the others wait, and nothing differs."""
    run = place.run(job, 2).start()
    if not wait_for(run, "step", 1, 0):
        raise Wrong("it ended before it could be paused")
    (rank,) = children_of(run.process)[:1]
    os.kill(rank, signal.SIGSTOP)
    time.sleep(2)
    if not run.running():
        raise Wrong("it ended without its second rank")
    os.kill(rank, signal.SIGCONT)
    place.counts["hostile cases"] += 1
    check_finished(run, place.reference(job, 2))


# What is malformed --------------------------------------------------------------------------------


def pytest_piece(file: str, examples: int, count: str, place: Workplace) -> None:
    """The tests of a file, with so many examples; what they print as `count: N` is counted."""
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", file]
    environment = os.environ | {"FUZZ_EXAMPLES": str(examples), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True,
        timeout=4 * LONGEST, check=False,
    )  # fmt: skip
    (place.folder / "pytest.log").write_text(done.stdout + done.stderr)
    place.counts[count] += sum(map(int, re.findall(rf"{count}: (\d+)", done.stdout)))
    if done.returncode:
        raise Wrong(f"{file} fails: see {place.folder / 'pytest.log'}")


# The pieces ---------------------------------------------------------------------------------------

Piece = Callable[[Workplace], None]


class Skipped(Exception):
    """A piece that cannot be done here, with the reason."""


def pieces() -> dict[str, Piece]:
    found: dict[str, Piece] = {}
    for job in JOBS:
        for ranks, moments in MOMENTS.items():
            found[f"kill/{job.name}/{ranks}"] = partial(kill_piece, job, ranks, moments)
    refreshed = job_named("grpo_iterative_engine")
    for ranks in (1, 2):
        refreshes = partial(kill_piece, refreshed, ranks, ("refresh",) * 3)
        found[f"refresh/{refreshed.name}/{ranks}"] = refreshes
    for job in JOBS:
        found[f"disk/{job.name}"] = partial(disk_piece, job)
    for job, other in zip(JOBS, (*JOBS[1:], JOBS[0]), strict=True):
        found[f"strange/{job.name}"] = partial(strange_piece, job, other)
        found[f"starved/{job.name}"] = partial(starved_piece, job)
    for name in ("pretraining", "reward_model_training", "dpo_engine", "grpo_iterative_engine"):
        found[f"clock/{name}"] = partial(clock_piece, job_named(name))
        found[f"paused/{name}"] = partial(paused_piece, job_named(name))
    for name in ("pretraining", "reward_model_training", "grpo_engine", "dpo_engine"):
        found[f"closed/{name}"] = partial(closed_piece, job_named(name))
        for ranks in (1, 2):
            found[f"twice/{name}/{ranks}"] = partial(twice_piece, job_named(name), ranks)
    found["hostile"] = partial(pytest_piece, "tests/test_bad_files.py", 1, "passed")
    found["fuzz"] = partial(pytest_piece, "tests/test_fuzz.py", FUZZ_EXAMPLES, "fuzzed")
    return found


def chosen(config: SoakConfig) -> dict[str, Piece]:
    """The pieces that the flags ask for; UserError if there is no such piece."""
    every = pieces()
    names = [name for name in every if name.startswith(config.only or "")]
    if not names:
        raise UserError(
            f"--only {' '.join(config.only)}: there is no such piece, as {next(iter(every))}"
        )
    return {name: every[name] for name in names}


def one_piece(config: SoakConfig, name: str, piece: Piece) -> dict[str, Any]:
    folder, begin = config.out / "pieces" / name.replace("/", "-"), time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rng = random.Random(f"{config.seed}/{name}")
    place = Workplace(folder, config.out / "inputs", config.out / "references", rng)
    row: dict[str, Any] = {"piece": name, "seed": config.seed, "result": "good"}
    try:
        piece(place)
    except Skipped as reason:
        row |= {"result": "skipped", "what": str(reason)}
    except Wrong as wrong:
        row |= {"result": wrong.kind, "what": str(wrong)}
    except Exception as error:  # of this script; the other pieces go on
        row |= {"result": "broken", "what": f"{type(error).__name__}: {error}"}
    if row["result"] in ("good", "skipped") and not config.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return row | {"counts": dict(place.counts), "seconds": time.monotonic() - begin}


def main(config: SoakConfig) -> None:
    prepare()
    wanted, begin = chosen(config), time.monotonic()
    file = config.out / "pieces.jsonl"
    before = read_jsonl(file) if config.resume and file.exists() else []
    kept = {row["piece"]: row for row in before
            if row["seed"] == config.seed and row["result"] == "good"}  # fmt: skip
    config.out.mkdir(parents=True, exist_ok=True)
    if not config.resume:
        shutil.rmtree(config.out / "references", ignore_errors=True)
        file.unlink(missing_ok=True)
    make_inputs(config.out / "inputs")
    rows = [kept[name] for name in wanted if name in kept]
    left = [name for name in wanted if name not in kept]
    for number, name in enumerate(left, start=1):
        row = one_piece(config, name, wanted[name])
        rows.append(row)
        append_jsonl(file, [row])
        spent = time.monotonic() - begin
        kills = sum(row["counts"].get("kills", 0) for row in rows)
        print(
            f"soak {number}/{len(left)}  {name}: {row['result']} {row.get('what', '')}  kills {kills}  "
            f"ETA {spent / number * (len(left) - number):.0f} s",
            flush=True,
        )
    conclude(config, rows, time.monotonic() - begin)


# The result ---------------------------------------------------------------------------------------


def conclude(config: SoakConfig, rows: list[dict[str, Any]], seconds: float) -> None:
    """Write and show what was found; UserError if something was."""
    summary = summarize(rows) | {
        "seconds": seconds, "seed": config.seed, "torch": torch.__version__,
        "python": platform.python_version(), "config": asdict(config),
    }  # fmt: skip
    write_json(config.out / "soak.json", summary)
    print(table(summary))
    print(f"wrote {display_path(config.out / 'soak.json')}")
    if config.write_docs:
        page = DOCUMENT.read_text(encoding="utf-8")
        page = pages.between_marks(page, "soak", ["", *table(summary).splitlines(), ""])
        write_text(DOCUMENT, page)
        write_json(DOCUMENT.with_name("reliability.json"), summary | {"config": None})
        print(f"wrote {display_path(DOCUMENT)}")
    for failure in summary["failures"]:
        print(f"{failure['piece']}: {failure['what']}\n    {failure['repeat']}")
    if summary["failures"]:
        raise UserError(f"{len(summary['failures'])} of {len(rows)} pieces are not good, see above")


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(row["counts"])
    results = Counter(row["result"] for row in rows)
    again = "python scripts/soak.py --only {piece} --seed {seed} --keep"
    failures = [
        {"piece": row["piece"], "what": row["what"], "repeat": again.format(**row)}
        for row in rows
        if row["result"] not in ("good", "skipped")
    ]
    skipped = {row["piece"]: row["what"] for row in rows if row["result"] == "skipped"}
    return {
        "pieces": len(rows), "counts": dict(sorted(counts.items())), "lost runs": results["lost"],
        "corrupt checkpoints": results["corrupt"], "differing results": results["different"],
        "hanging or stray processes": results["hung"] + results["stray"],
        "unclear endings": results["unclear"] + results["broken"],
        "skipped": skipped, "failures": failures,
    }  # fmt: skip


def table(summary: Mapping[str, Any]) -> str:
    found = ("lost runs", "corrupt checkpoints", "differing results",
             "hanging or stray processes", "unclear endings")  # fmt: skip
    rows = [(name, f"{n:,}") for name, n in summary["counts"].items() if name != "runs"]
    rows += [(f"**{name}**", f"**{summary[name]}**") for name in found]
    rows += [(f"skipped: {name}", reason) for name, reason in summary["skipped"].items()]
    of = (
        f"Seed {summary['seed']}, {summary['seconds'] / 60:.0f} minutes, PyTorch "
        f"{summary['torch']}, Python {summary['python']}."
    )
    return "\n".join([*markdown(("what", f"{len(JOBS)} scripts"), rows), "", of])


if __name__ == "__main__":
    run_command(main, SoakConfig)
