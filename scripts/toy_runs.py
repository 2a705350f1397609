"""Every training script at toy size, in processes that may be killed, stopped and starved of disk.

What scripts/soak.py does things to. A run is a fork of this process, which has imported PyTorch
already, that executes the script's module as `python -m` would: it starts in a moment and knows nothing
of being watched. Linux only: it forks, reads /proc and adopts the ranks of a killed run.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import runpy
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from repeat import differences

from gpt.checkpoint import save_gpt
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import load_tokenizer
from harness.errors import UserError
from harness.files import read_jsonl
from harness.paths import MODEL_FILE, STATE_FILE
from harness.training_state import read_state
from rl.commands.engines import every_engine

LONGEST = 300.0  # seconds that a run of seconds may take before it counts as hanging
STEPS = 6


# The scripts --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A script with flags that make it a matter of seconds; {inputs} stands for their folder."""

    module: str
    flags: str
    steps: int = STEPS

    @property
    def name(self) -> str:
        return self.module.split(".")[-1]

    def arguments(self, inputs: Path, out: Path, ranks: int = 1) -> list[str]:
        """The whole command line after the module."""
        shared = f"--steps {self.steps} --device cpu --ranks {ranks} --checkpoint-every 1"
        flags = f"{self.flags} {shared}".split()
        return [*(flag.format(inputs=inputs) for flag in flags), "--out", str(out)]


START = (
    "--policy {inputs}/base --max-new-tokens 12 --eval-every 3 --eval-prompts 4 --test-prompts 4"
)
SAMPLES = f"{START} --prompts-per-step 4 --group-size 2"
ENGINE_FLAGS = {  # by what an engine learns from
    "reward": f"{SAMPLES} --reward-model {{inputs}}/reward_model",
    "teacher": f"{SAMPLES} --teacher {{inputs}}/teacher",
    "pairs": f"{START} --reward-model {{inputs}}/reward_model",
}

JOBS = (
    Job("gpt.pretraining", "--batch-size 2 --eval-every 100"),
    Job("gpt.finetuning", "--base {inputs}/base --pairs {inputs}/reward_model/pairs.jsonl "
        "--batch-size 4 --eval-every 3"),
    Job("gpt.distillation", "--base {inputs}/base --teacher {inputs}/teacher --batch-size 4 "
        "--max-new-tokens 8 --eval-every 3 --eval-prompts 4 --test-prompts 4"),
    Job("reward_model.reward_model_training", "--base {inputs}/base --pairs 64 --held-out-pairs 16 "
        "--responses-per-prompt 4 --max-response-tokens 12 --batch-size 4"),
    *(
        Job(engine.module, f"{ENGINE_FLAGS[engine.learns_from]} {engine.toy}")
        for engine in every_engine()
    ),
)  # fmt: skip


def job_named(name: str) -> Job:
    return next(job for job in JOBS if job.name == name)


def make_inputs(inputs: Path) -> None:
    """A base model, a teacher and a reward model, once; they are random but the reward model."""
    if (inputs / "reward_model" / MODEL_FILE).exists():
        return
    shutil.rmtree(inputs, ignore_errors=True)
    in_a_fork(lambda: _save_models(inputs), inputs.parent / "inputs.log")
    run = Run(job_named("reward_model_training"), inputs, inputs / "reward_model")
    run.start().expect(0)


def _save_models(inputs: Path) -> None:
    tokenizer = load_tokenizer("glassbox")
    for seed, name in enumerate(("base", "teacher")):
        shape = GPTConfig(tokenizer.n_vocab, context=128, n_layer=2, n_head=2, n_embd=32)
        model = GPT(shape).initialize(torch.Generator().manual_seed(seed))
        save_gpt(inputs / name / MODEL_FILE, model, tokenizer)


# Processes ----------------------------------------------------------------------------------------


def prepare() -> None:
    """Import what the runs will need and adopt their ranks; UserError where that cannot be."""
    if sys.platform != "linux":
        raise UserError("this needs Linux: it forks, kills and looks after what is left")
    torch.set_num_threads(1)  # a process with more must not be forked
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["MPLBACKEND"] = "Agg"
    for job in JOBS:
        importlib.import_module(job.module)
    for slow in ("matplotlib.figure", "matplotlib.backends.backend_agg", "tyro", "torch._dynamo"):
        importlib.import_module(slow)  # each run would: AdamW asks for the last one
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphaned ranks become ours


def fork(work: Callable[[], object], log: Path, before: Callable[[], object] = lambda: None) -> int:
    """The process number of a child that leads a group of its own and writes to `log`."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        before()
        work()
        status = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def in_a_fork(work: Callable[[], object], log: Path) -> None:
    """Do something in a process of its own, so that this one stays fit to be forked."""
    log.parent.mkdir(parents=True, exist_ok=True)
    _, status = os.waitpid(fork(work, log), 0)
    if status:
        raise Wrong(f"a process ended with status {os.waitstatus_to_exitcode(status)}: see {log}")


def execute(module: str, arguments: Sequence[str]) -> None:
    """What `python -m module arguments` does."""
    sys.modules.pop(module, None)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


class Wrong(Exception):
    """Something that must not be: `kind` is lost, corrupt, different, hung, unclear or stray."""

    def __init__(self, message: str, kind: str = "unclear") -> None:
        super().__init__(message)
        self.kind = kind


# Runs ---------------------------------------------------------------------------------------------


@dataclass
class Run:
    """One run folder and the processes that work on it, one after the other."""

    job: Job
    inputs: Path
    folder: Path
    ranks: int = 1
    process: int = 0
    status: int | None = None
    said_from: int = 0

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    def start(self, *more: str, before: Callable[[], object] = lambda: None) -> Run:
        """Start the script on the folder, with further flags; `before()` is called in its process."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        tempfile.tempdir = str(self.folder.parent)  # a killed run cannot clear up where ranks met
        arguments = [*self.job.arguments(self.inputs, self.folder, self.ranks), *more]
        with self.log.open("a") as log:
            log.write(f"$ python -m {self.job.module} {' '.join(arguments)}\n")
        self.said_from = self.log.stat().st_size
        work = partial(execute, self.job.module, arguments)
        self.process, self.status = fork(work, self.log, before), None
        return self

    def again(self) -> Run:
        """Start it with --resume, or anew if it was killed before it had anything to resume."""
        begun = (self.folder / STATE_FILE).exists() or (self.folder / MODEL_FILE).exists()
        return self.start(*(["--resume"] if begun else []))

    def running(self) -> bool:
        """Whether its first process is there; notes how it has ended."""
        if self.status is None:
            done, status = os.waitpid(self.process, os.WNOHANG)
            if done:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is None

    def end(self) -> int:
        """Wait for the end, of all ranks, and return the exit status. Wrong if it hangs."""
        limit = time.monotonic() + LONGEST
        while self.running():
            if time.monotonic() > limit:
                self.kill_all()
                raise Wrong(f"no end after {LONGEST:.0f} s: see {self.log}", "hung")
            time.sleep(0.005)
        self._no_rank_left()
        assert self.status is not None
        return self.status

    def _no_rank_left(self) -> None:
        """Wait until the other ranks have noticed; Wrong if they stay."""
        limit = time.monotonic() + 60
        while True:
            try:
                done, _ = os.waitpid(-self.process, os.WNOHANG)
            except ChildProcessError:
                return
            if time.monotonic() > limit:
                self.kill_all()
                raise Wrong("a rank stayed for a minute after the first one was gone", "stray")
            if not done:
                time.sleep(0.01)

    def expect(self, status: int) -> str:
        """Wait for an end with this status; returns what was said. Wrong otherwise."""
        found, said = self.end(), self.said()
        if found != status:
            raise Wrong(f"status {found} instead of {status}: {last_line(said)} (see {self.log})")
        return said

    def refuses(self, *words: str) -> None:
        """Wait for an end with one sentence that has one of these words."""
        said = self.expect(1)
        errors = [line for line in said.splitlines() if line.startswith("error: ")]
        if "Traceback" in said or len(errors) != 1:
            raise Wrong(f"no single sentence: {last_line(said)} (see {self.log})")
        if not any(word in errors[0] for word in words):
            raise Wrong(f"another sentence than expected: {errors[0]}")

    def said(self) -> str:
        """What the latest process has printed."""
        with self.log.open("rb") as log:
            log.seek(self.said_from)
            return log.read().decode(errors="replace")

    def kill(self, who: str) -> None:
        """SIGKILL to the first rank, to another one, or to all at once."""
        others = children_of(self.process) if who == "another" else []
        if who == "all":
            self.kill_all()
        else:
            os.kill(others[0] if others else self.process, signal.SIGKILL)

    def kill_all(self) -> None:
        try:
            os.killpg(self.process, signal.SIGKILL)
        except ProcessLookupError:  # so early that it leads no group yet
            os.kill(self.process, signal.SIGKILL)

    def rows(self) -> int:
        try:
            return (self.folder / "metrics.jsonl").read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0

    def saved(self) -> int | None:
        """After which step its state is; None without one. Wrong if it cannot be read."""
        if not (self.folder / STATE_FILE).exists():
            return None
        try:
            return int(read_state(self.folder)["step"])
        except UserError as error:
            raise Wrong(str(error), "corrupt") from error

    def being_written(self, name: str) -> bool:
        """Whether its processes have a file of this name half written."""
        names = [path.name.split(".")[-2] for path in self.folder.glob(f".{name}.*.tmp")]
        return str(self.process) in names  # one of an earlier process may still lie there

    def same_as(self, other: Run) -> None:
        """Wrong unless both folders hold the same, but for times, figures and where they are."""
        found = differences(other.folder, self.folder)
        ours, theirs = (dict(contents(run.folder)) for run in (self, other))
        found += [f"{name} differs" for name in sorted(ours.keys() | theirs.keys())
                  if ours.get(name) != theirs.get(name)]  # fmt: skip
        if found:
            raise Wrong(f"{self.folder} is not {other.folder}: {'; '.join(found)}", "different")


def contents(folder: Path) -> Iterator[tuple[str, object]]:
    """What must be equal beside metrics and weights: other rows and reports, and the flags."""
    for path in sorted(folder.iterdir()):
        if path.name == "config.json":
            flags = json.loads(path.read_text())
            flags["made_with"].pop("git")  # whoever edits files during a soak changes it
            yield path.name, {k: v for k, v in flags.items() if k not in ("out", "resume")}
        elif path.name == "page.json":
            about = json.loads(path.read_text())
            yield path.name, {k: v for k, v in about.items() if k != "differs"}  # the flags again
        elif path.name == "metrics.jsonl" or path.suffix in (".png", ".html", ".safetensors"):
            yield path.name, True  # compared by `differences`, or a picture of what is
        elif path.suffix == ".jsonl":
            yield path.name, read_jsonl(path)
        elif path.suffix == ".pt":  # equal states may be packed in other bytes
            yield path.name, plain(read_state(folder, path.name))
        else:
            yield path.name, path.is_dir() or path.read_bytes()


def plain(value: object) -> object:
    """A state with its tensors as their shapes, types and bytes."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def children_of(process: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):  # it has ended
            continue
        if parent == process:
            found.append(int(entry.parent.name))
    return sorted(found)


def last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "nothing was said")
