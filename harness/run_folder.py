"""A run's folder: opened anew or to be resumed, never mixed with another run's.

config.json holds the flags and, under five keys that are no flags, `script`, the module that wrote it,
`inputs`, the sha256 of every file that the run has read, `splits`, the rule by which a file is split,
`made_with`, versions, threads, ranks, device and git revision, and `settings_from`, where the values that
are no defaults come from. The lock on a folder is the operating system's and ends with the process.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import torch

from harness.device import pick_device
from harness.errors import NothingToDo, UserError
from harness.files import (
    as_user_error,
    display_path,
    expanded,
    files_read,
    gone,
    read_object,
    remove_left_overs,
    sha256_of,
    split_as,
    split_rule,
    write_json,
)
from harness.flags import Flags, TrainingFlags, renamed
from harness.metric_log import MetricLog
from harness.optimizer import Diverged, warm_up
from harness.paths import FINISHED_STATE, MODEL_FILE, REPORT, REPOSITORY, STATE_FILE
from harness.ranks.collectives import is_main, on_main, world
from harness.signals import signals_wait
from harness.training_state import read_state, saved_step

try:
    import fcntl
except ImportError:  # Windows, where two runs in one folder are the user's to avoid
    fcntl = None  # type: ignore[assignment]

Config = TypeVar("Config", bound=TrainingFlags)
AnyFlags = TypeVar("AnyFlags", bound=Flags)
LOCKS: dict[Path, int] = {}  # of this process: folder and descriptor
# The folder of the run that is on.
_open: ContextVar[Path | None] = ContextVar("open", default=None)
CONFIG_FILE = "config.json"
SCRIPT, INPUTS, SPLIT_BY, MADE_WITH = "script", "inputs", "splits", "made_with"  # keys, no flags
ORIGINS = "settings_from"

LARGE = 10**8  # bytes of a state that one is told of

# What may change when a run is resumed: how long it is, where it runs and how it is watched.
FREE_FLAGS = (
    "steps", "minutes", "device", "out", "resume", "eval_every", "eval_prompts", "test_prompts",
    "save_every", "ranks", SCRIPT, INPUTS, MADE_WITH, ORIGINS,
)  # fmt: skip


# Open and finish ----------------------------------------------------------------------------------


def open_run(folder: Path, config: Flags, *, resume: bool = False) -> Path:
    """Make and lock a run folder with its config.json; an earlier run of the script is moved aside.

    With `resume`: same script, flags and inputs; only FREE_FLAGS may differ. NothingToDo if that run is
    complete. UserError for a folder that holds anything else, or in which another process runs.
    """
    return _open_by(_take_up if resume else _begin, folder, config)


def _open_by(how: Callable[[Path, Flags], Path], folder: Path, config: Flags) -> Path:
    place = on_main(lambda: how(_checked_place(expanded(folder)), config))
    _open.set(place)
    return place


def saved_run() -> Path | None:
    """The folder of the run that is going on, if it has a state from which it can be resumed."""
    folder = _open.get()
    return folder if folder and (folder / STATE_FILE).exists() else None


def record_steps(folder: Path, steps: int) -> None:
    """Write the number of steps that follows from other flags beside what the run is made with."""

    def write() -> None:
        started = read_object(folder / CONFIG_FILE)
        made = started[MADE_WITH] | {"steps": steps}
        write_json(folder / CONFIG_FILE, started | {MADE_WITH: made})

    on_main(write)


def split_as_before(folder: Path) -> None:
    """Let a run that goes on in the folder split files as it did; one that does not say how, by rule 1."""
    path = folder / CONFIG_FILE
    rule = on_main(lambda: read_object(path).get(SPLIT_BY, 1) if path.exists() else split_rule())
    split_as(rule if isinstance(rule, int) else 1)


def _begin(folder: Path, config: Flags) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--out {folder} cannot be made ({error.strerror}): name a folder where you may write"
        ) from error
    lock(folder)
    remove_left_overs(folder, of=CONFIG_FILE)  # of a run that was killed as it began
    while any(folder.iterdir()):  # again, should a run have begun and ended there in between
        _move_aside(folder, script_of(config))
        folder.mkdir(exist_ok=True)
        lock(folder)
    write_json(folder / CONFIG_FILE, record(config))
    return folder


def finish_run(folder: Path, *, can_go_on: bool = False) -> None:
    """The run is complete: remove its state last, or rename it if the run `can_go_on`."""

    def finish() -> None:
        if not (folder / CONFIG_FILE).exists():
            raise gone(folder)
        state = folder / STATE_FILE
        if can_go_on and state.exists():
            state.replace(folder / FINISHED_STATE)
            if (size := (folder / FINISHED_STATE).stat().st_size) > LARGE:
                print(
                    f"{FINISHED_STATE}, {size / 1e9:.1f} GB, is for --resume with more --steps alone"
                )
        state.unlink(missing_ok=True)
        unlock(folder)

    on_main(finish)
    _open.set(None)


@contextmanager
def training_steps(log: MetricLog, folder: Path) -> Iterator[None]:
    """Around a run's steps: signals wait, Diverged becomes a UserError, an early end leaves a page."""
    try:
        with signals_wait():
            yield
    except BaseException as error:
        if log.rows:
            page_of_the_unfinished(folder)
        if not isinstance(error, Diverged):
            raise
        log.close()
        step = error.step or (log.rows[-1]["step"] + 1 if log.rows else 1)
        raise UserError(f"step {step}: {error}; what was saved before is in {folder}") from error


# The page -----------------------------------------------------------------------------------------
# is drawn by a process of its own: training loads nothing that only reads runs.


def write_report(folder: Path) -> None:
    """Draw the page of a complete run, print what the doctor finds; a failure costs only the page."""
    if is_main():
        try:
            said = page_of(folder)
        except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
            run = display_path(folder)
            said = f"{REPORT} was not drawn ({error}): python -m report {run}\nwrote {run}\n"
        print(said, end="", flush=True)


def page_of(folder: Path) -> str:
    """Draw the page; return what the command says. RuntimeError with its last line if it fails."""
    done = subprocess.run(**_drawing(folder), timeout=300)  # seconds; two are usual
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if any(map(str.isalnum, line))]
        raise RuntimeError((said or [f"status {done.returncode}"])[-1])
    return str(done.stdout)


def page_of_the_unfinished(folder: Path) -> None:
    """Begin to draw a run that ends early, without waiting, because a signal has asked it to end."""
    if is_main():
        with suppress(OSError):
            subprocess.Popen(**_drawing(folder))


def _drawing(folder: Path) -> dict[str, Any]:
    """Arguments of subprocess for `python -m report`; a terminal's Ctrl-C does not reach it."""
    places = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    setting = {"PYTHONPATH": os.pathsep.join(places), "PYTHONSAFEPATH": "1", "PYTHONUTF8": "1"}
    return dict(
        args=[sys.executable, "-m", "report", str(folder.absolute())], env=os.environ | setting,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        encoding="utf-8", start_new_session=True,
    )  # fmt: skip


# Stages -------------------------------------------------------------------------------------------


def open_stages(folder: Path, config: Flags, *, last: str) -> Path:
    """`open_run` for several stages: goes on in a folder of the same flags that has no file `last` yet."""

    def go_on(place: Path, config: Flags) -> Path:
        if (place / last).exists() or not _holds(place, config):
            return _begin(place, config)
        lock(place)
        print(f"{display_path(place)} goes on where it was", flush=True)
        return place

    return _open_by(go_on, folder, config)


def run_missing(main: Callable[[Config], object], config: Config) -> None:
    """main(config) into the folder --out: what is left of it, where a run of the same flags is there."""
    folder = config.out
    assert folder is not None
    same, begun, done = on_main(
        lambda: (_holds(folder, config), *((folder / f).exists() for f in (STATE_FILE, MODEL_FILE)))
    )
    if same and done and not begun:
        print(f"{display_path(folder)} is there", flush=True)
    else:
        main(dataclasses.replace(config, resume=same and begun))


def _holds(folder: Path, config: Flags) -> bool:
    """Whether a run of this script and these flags has been in the folder, on inputs as they are now."""
    try:
        config = as_begun(folder, config)
        started, now = read_record(folder), record(config)
        _check_same_run(folder, config, started, now)
        inputs = started.get(INPUTS, {})
        unchanged = all(sha256_of(Path(place)) == digest for place, digest in inputs.items())
    except (OSError, UserError):
        return False
    return unchanged and started.get("steps") == now.get("steps")


# The folder ---------------------------------------------------------------------------------------


def _checked_place(folder: Path) -> Path:
    """The folder; UserError for one that a run must not take: the current one, or one with its inputs."""
    try:
        taken = folder.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a link to itself, a NUL
        raise UserError(f"--out {str(folder)!r:.80} is no path ({error}): name another") from error
    for path in (Path.cwd(), *files_read()):
        if path.resolve().is_relative_to(taken):
            raise UserError(
                f"--out {folder} is, or holds, {path}, where you are or which this run reads: name "
                "another folder"
            )
    return folder


def _move_aside(folder: Path, script: str) -> None:
    """Rename an earlier run of the script; UserError for anything else, which stays where it is."""
    try:
        earlier = read_record(folder)[SCRIPT]
    except (OSError, UserError):
        earlier = None
    if earlier != script:
        unlock(folder)
        holds = f"a run of {earlier}" if earlier else "something that is no run"
        raise UserError(
            f"--out {display_path(folder)} holds {holds}, which is not moved aside for {script}: "
            "name another folder, or move it yourself"
        )
    names = (folder.with_name(f"{folder.name}.{number}") for number in itertools.count(1))
    aside = next(name for name in names if not os.path.lexists(name))
    place = folder.resolve()
    folder.rename(aside)
    unlock(place)
    print(f"an earlier run was moved to {display_path(aside)}", flush=True)


def lock(folder: Path) -> None:
    """Lock the folder for this process until `unlock`; UserError if another one has it."""
    place = folder.resolve()
    if fcntl is None or place in LOCKS:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if not isinstance(error, BlockingIOError):  # a file system without locks
            return
        raise UserError(
            f"another run is writing in {display_path(folder)}: wait until it has ended, or give this "
            "one another --out"
        ) from None
    LOCKS[place] = descriptor


def unlock(folder: Path) -> None:
    descriptor = LOCKS.pop(folder.resolve(), None)
    if descriptor is not None:
        os.close(descriptor)


# Resuming -----------------------------------------------------------------------------------------


def _take_up(folder: Path, config: Flags) -> Path:
    """Check that the run in the folder is this one, and bring its FREE_FLAGS up to date."""
    there = [name for name in (STATE_FILE, MODEL_FILE) if (folder / name).exists()]
    if not (folder / CONFIG_FILE).exists() or not there:
        raise UserError(f"{folder} holds nothing to resume: leave --resume out to start anew")
    lock(folder)
    started, now = read_record(folder), record(config)
    with as_user_error(folder):
        _check_same_run(folder, config, started, now)
    if STATE_FILE not in there:
        _take_on(folder, started, now)
    remove_left_overs(folder)
    free = {name: now[name] for name in FREE_FLAGS if name in now}
    write_json(folder / CONFIG_FILE, started | free)
    print(f"{display_path(folder)} goes on from step {saved_step(folder)}", flush=True)
    return folder


def as_begun(folder: Path, config: AnyFlags) -> AnyFlags:
    """The config of a run that goes on, with the steps, warm-up and columns that it chose as it began."""
    path = folder / CONFIG_FILE
    then = on_main(lambda: read_object(path) if path.exists() else {})
    chosen, steps = dict[str, Any](), then.get("steps")
    if getattr(config, "minutes", None):
        chosen["steps"] = steps
    asked = getattr(config, "warmup_steps", None)
    if asked and isinstance(steps, int) and then.get("warmup_steps") == warm_up(asked, steps):
        chosen["warmup_steps"] = then["warmup_steps"]
    if then.get("columns") and not getattr(config, "columns", ()):
        chosen["columns"] = tuple(then["columns"])
    return dataclasses.replace(config, **chosen)


def record_choice(folder: Path, **chosen: int) -> None:
    """Write down the steps, and their warm-up, of a run that was opened without knowing them."""
    path = folder / CONFIG_FILE
    on_main(lambda: write_json(path, read_object(path) | chosen))


def _check_same_run(
    folder: Path, config: Flags, started: dict[str, Any], now: dict[str, Any]
) -> None:
    """UserError for another script, flag or file; a flag that came later must be at its default."""
    if started[SCRIPT] != now[SCRIPT]:
        raise UserError(f"the run in {folder} is of {started[SCRIPT]}: resume it with that script")
    fields = {field.name: field.default for field in dataclasses.fields(config)}
    defaults = json.loads(json.dumps(fields, default=str))
    free = {*FREE_FLAGS, SPLIT_BY}
    if isinstance(config, TrainingFlags) and config.fixed_length:  # a schedule depends on it
        free.remove("steps")
    for name in dict.fromkeys([*started, *now]):
        was = started.get(name, defaults.get(name))
        if (name, was) == ("steps", None) != (name, now.get(name)):  # what its start has printed
            was = (started.get(MADE_WITH) or {}).get(name)
        if name in free or (name not in now and not was) or _same(was, now.get(name)):
            continue
        revision = (started.get(MADE_WITH) or {}).get("git") or "that started it"
        raise UserError(
            f"the run in {folder} was started with --{name.replace('_', '-')} {was} (now "
            f"{now.get(name, 'no such flag')}): resume with the flags in its config.json and revision "
            f"{revision}, or leave --resume out"
        )
    had = started.get(INPUTS, {})
    for place, digest in now[INPUTS].items():  # where the same file lies does not count
        if digest not in ([had[place]] if place in had else had.values()):
            raise UserError(
                f"{place} is not what the run in {folder} was started with: restore it, or leave "
                "--resume out"
            )


def _same(one: Any, other: Any) -> bool:
    """Whether two recorded values are equal, or name the same places."""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return all(_same(a, b) for a, b in zip(one, other, strict=True))
    texts = isinstance(one, str) and isinstance(other, str)
    return one == other or (texts and Path(one).resolve() == Path(other).resolve())


def _take_on(folder: Path, started: dict[str, Any], now: dict[str, Any]) -> None:
    """Let a complete run go on to more steps. NothingToDo if it need not, UserError if it cannot."""
    done, wanted, kept = started.get("steps"), now.get("steps"), folder / FINISHED_STATE
    longer = isinstance(done, int) and wanted is not None and wanted > done
    if longer and kept.exists() and not read_state(folder, FINISHED_STATE, mapped=True)["stopped"]:
        kept.replace(folder / STATE_FILE)
        return
    unlock(folder)
    if longer:
        raise UserError(
            f"the run in {folder} is finished after {done} steps, or stopped by itself, and cannot go on "
            f"to {wanted}: leave --resume out to start anew"
        )
    raise NothingToDo(f"the run in {display_path(folder)} is finished: nothing is left to resume")


# What is recorded ---------------------------------------------------------------------------------


def record(config: Flags) -> dict[str, Any]:
    """The content of config.json: flags, script, inputs and what the run is made with."""
    flags = json.loads(json.dumps(dataclasses.asdict(config), default=str))
    about = {SCRIPT: script_of(config), INPUTS: input_digests(), SPLIT_BY: split_rule()}
    origins = {ORIGINS: config.origins()} if isinstance(config, TrainingFlags) else {}
    return flags | about | {MADE_WITH: made_with(config)} | origins


def read_record(folder: Path) -> dict[str, Any]:
    """config.json of a run; UserError if it is none of ours or cannot be read."""
    values = read_object(folder / CONFIG_FILE)
    if not isinstance(values.get(SCRIPT), str):
        raise UserError(f"{folder / CONFIG_FILE} is of no run: restore it, or leave --resume out")
    return renamed(values)


def input_digests() -> dict[str, str]:
    """The sha256 of every file that was read until now."""
    files = {path.resolve() for path in files_read() if path.is_file()}
    return {display_path(path): sha256_of(path) for path in sorted(files)}


def script_of(config: Flags) -> str:
    """The module that a config belongs to, also where that runs as `__main__`."""
    return script_name(type(config))


def script_name(config_class: type) -> str:
    """The module of a config's class, likewise."""
    name = config_class.__module__
    if name not in ("__main__", "__mp_main__"):  # the latter in a process of multiprocessing's
        return name
    main = sys.modules["__main__"]
    path = Path(str(main.__file__)).resolve()
    return main.__spec__.name if main.__spec__ else f"{path.parent.name}.{path.stem}"


def made_with(config: Flags) -> dict[str, Any]:
    """Versions, processes, hardware and revision: what the same flags may differ by elsewhere."""
    device = pick_device(dataclasses.asdict(config).get("device", "cpu"))
    gpu = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": metadata.version("numpy"),
        "device": f"{device}{gpu}",
        "machine": f"{platform.system()} {platform.machine()}",
        "ranks": world(),
        "threads": torch.get_num_threads(),
        "git": revision(),
    }


@functools.cache
def revision() -> str | None:
    """The commit of the checkout that runs, with -dirty if files differ from it; None without one."""
    if not (REPOSITORY / ".git").exists():
        return None
    command = "git describe --always --dirty --abbrev=40 --exclude=*".split()
    try:
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
