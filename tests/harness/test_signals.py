"""What happens to a run from outside: signals, a full disk, output that nobody takes."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from forked import forked

from harness import signals
from harness.command_line import run_script
from harness.errors import NothingToDo
from harness.files import read_jsonl, write_json
from harness.flags import TrainingFlags
from harness.metric_log import MetricLog
from harness.paths import STATE_FILE
from harness.ranks.collectives import is_main
from harness.run_folder import finish_run, open_run, run_missing, training_steps
from harness.training_state import TrainingState, keep_state, saved_step


@dataclass(frozen=True)
class Flags:
    out: Path
    steps: int = 6
    save_every: int = 4
    resume: bool = False
    seed: int = 0


class Counter(torch.nn.Module):
    """Counts its steps, and is as large as asked."""

    def __init__(self, size: int = 1) -> None:
        super().__init__()
        self.count = torch.nn.Parameter(torch.zeros(size), requires_grad=False)


def run(config: Flags, disturb=lambda step: None, size: int = 1) -> Counter:
    """A training like all others, which calls `disturb` at every step, and with 0 after them."""
    model = Counter(size)
    state = TrainingState({"model": model}, {})
    folder = open_run(config.out, config, resume=config.resume)
    start = saved_step(folder) if config.resume else 0
    log = MetricLog(config.steps, path=folder / "metrics.jsonl", start=start)
    with training_steps(log, folder):
        if config.resume:
            state.load(folder)
        for step in state.steps_left(config.steps):
            disturb(step + 1)
            model.count += 1
            state.step = step + 1
            log.write(step=state.step, count=float(model.count[0]))
            keep_state(state, folder, config.save_every, last=state.step == config.steps)
    disturb(0)
    write_json(folder / "report.json", {"count": float(model.count[0])})
    (folder / "model.safetensors").touch()
    finish_run(folder)
    return model


def ended(config: Flags, disturb, **options) -> SystemExit:
    with pytest.raises(SystemExit) as error:
        run_script(lambda config: run(config, disturb, **options), config)
    return error.value


def resumed(folder: Path, **options) -> None:
    """It goes on to the same end as if nothing had been."""
    model = run(Flags(folder, resume=True), **options)
    assert float(model.count[0]) == 6
    rows = read_jsonl(folder / "metrics.jsonl")
    assert rows == [{"step": step, "count": float(step)} for step in range(1, 7)]
    assert (folder / "report.json").exists() and not (folder / STATE_FILE).exists()
    with pytest.raises(NothingToDo):
        run(Flags(folder, resume=True))


def send(number: int, at: int, times: int = 1):
    def disturb(step: int) -> None:
        if step == at:
            for _ in range(times):
                os.kill(os.getpid(), number)

    return disturb


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"])
@pytest.mark.parametrize("at", [1, 3, 6])
def test_a_signal_lets_the_step_end_and_be_saved(tmp_path, capfd, name, at):
    number = getattr(signal, name)
    before = signal.getsignal(number)
    assert ended(Flags(tmp_path / "run"), send(number, at)).code == 128 + number
    assert signal.getsignal(number) is before
    asked, said = capfd.readouterr().err.splitlines()
    assert asked.startswith(f"{name}: ") and said.startswith(f"ended by {name} after step {at}")
    assert said.endswith(shlex.join([*sys.argv[1:], "--resume"]))  # the very command
    assert saved_step(tmp_path / "run") == at
    resumed(tmp_path / "run")


@pytest.mark.parametrize(("at", "times", "saved"), [(5, 2, 4), (0, 1, 6)])
def test_the_second_signal_and_one_after_the_steps_end_at_once(tmp_path, capfd, at, times, saved):
    """When weights, figure and report are written, there is no step to wait for."""
    assert ended(Flags(tmp_path / "run"), send(signal.SIGTERM, at, times)).code == 143
    assert capfd.readouterr().err.rstrip().endswith(" --resume")
    assert not (tmp_path / "run" / "report.json").exists()
    assert saved_step(tmp_path / "run") == saved
    resumed(tmp_path / "run")


@pytest.mark.parametrize(("at", "seconds", "saved"), [(5, 100, 4), (2, 100, None), (5, 20, 5)])
def test_a_signal_does_not_wait_for_a_long_step_and_says_what_is_saved(
    tmp_path, capfd, at, seconds, saved
):
    def disturb(step: int) -> None:
        if step == at:
            signals.expect_step(seconds)
            os.kill(os.getpid(), signal.SIGINT)

    assert ended(Flags(tmp_path / "run"), disturb).code == 130
    asked, said = capfd.readouterr().err.splitlines()
    assert f" {seconds + 1} s" in asked or f" {seconds} s" in asked
    assert (tmp_path / "run" / STATE_FILE).exists() == (saved is not None)
    if saved is not None:
        assert f"step {saved}" in said and saved_step(tmp_path / "run") == saved
        resumed(tmp_path / "run")


def test_a_stage_does_what_is_left_of_a_run_of_the_same_flags(tmp_path):
    folder = tmp_path / "run"
    ended(Flags(folder), send(signal.SIGINT, at=3))
    for config, left in [
        (Flags(folder), [4, 5, 6, 0]),
        (Flags(folder), []),
        (Flags(folder, steps=2), [1, 2, 0]),
        (Flags(folder, steps=2, seed=1), [1, 2, 0]),
    ]:
        steps: list[int] = []
        run_missing(lambda config, steps=steps: run(config, steps.append), config)
        assert steps == left


@dataclass(frozen=True)
class RankFlags(TrainingFlags):
    steps: int = 6
    ranks: int = 2
    device: str = "cpu"
    save_every: int = 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forks here")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("kill", [os.kill, os.killpg])
def test_ranks_stop_after_the_same_step(tmp_path, kill, name):
    """A scheduler signals the first process, a terminal all of them."""

    def disturb(step: int) -> None:
        if step == 3 and is_main():
            kill(os.getppid(), getattr(signal, name))
            while not signals.STATE[signals.CAME]:  # a step takes no time here
                time.sleep(0.01)

    config = RankFlags(out=tmp_path / "run")
    done = forked(lambda: run_script(lambda config: run(config, disturb), config))
    assert done.returncode == 128 + getattr(signal, name)
    asked, said = done.stderr.splitlines()
    assert asked.startswith(f"{name}: ") and said.startswith(f"ended by {name} after step 3")
    assert said.endswith("--resume")
    rows = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert saved_step(tmp_path / "run") == len(rows) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forks here")
def test_ranks_do_not_wait_for_a_long_step_either(tmp_path):
    """The first one knows how long it takes, and their parent gets the signal."""

    def disturb(step: int) -> None:
        if step == 5 and is_main():
            signals.expect_step(100)
            os.kill(os.getppid(), signal.SIGINT)
        time.sleep(30 * (step == 5))

    config, begin = RankFlags(out=tmp_path / "run"), time.monotonic()
    done = forked(lambda: run_script(lambda config: run(config, disturb), config))
    assert done.returncode == 130 and time.monotonic() - begin < 25
    assert "step 4" in done.stderr.splitlines()[-1] and saved_step(tmp_path / "run") == 4


# A full disk


def limited(size: int):
    """From step 5 to the call with 0 no file grows beyond `size` bytes."""
    resource = pytest.importorskip("resource")
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def disturb(step: int) -> None:
        limit = size if step >= 5 else hard
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))

    return disturb


def test_a_full_disk_is_one_sentence_and_costs_no_more_than_the_last_steps(tmp_path):
    """No state fits from step 5 on: the one of step 4 stays, and the run goes on when there is room."""
    disturb = limited(10_000)
    try:
        error = ended(Flags(tmp_path / "run"), disturb, size=100_000)
    finally:
        disturb(0)
    path = tmp_path / "run" / STATE_FILE
    assert str(error.code).startswith(f"error: {path} could not be written (File too large)")
    assert str(error.code).endswith(" --resume") and "\n" not in str(error.code)
    assert saved_step(tmp_path / "run") == 4
    assert sorted(file.name for file in path.parent.iterdir()) == [
        "config.json", "metrics.jsonl", "state.pt",
    ]  # fmt: skip
    resumed(tmp_path / "run", size=100_000)
    try:  # the first state
        error = ended(Flags(tmp_path / "new", save_every=9), disturb, size=100_000)
    finally:
        disturb(0)
    assert "--resume" not in str(error.code)
