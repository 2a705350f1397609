"""A run's folder: what it may be, who may write in it, and how a run goes on in it."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from toys import one_sentence

from harness import run_folder, training_state
from harness.errors import NothingToDo, UserError
from harness.flags import TrainingFlags
from harness.metric_log import MetricLog
from harness.paths import MODEL_FILE
from harness.run_folder import (
    as_begun,
    finish_run,
    open_run,
    read_record,
    record_choice,
    training_steps,
    unlock,
)
from harness.training_state import TrainingState, keep_state, saved_step


@dataclass(frozen=True)
class RunFlags:
    steps: int = 3
    out: Path = Path("runs/x")


def test_a_new_run_writes_its_flags(tmp_path):
    folder = open_run(tmp_path / "runs" / "demo", RunFlags())
    assert folder == tmp_path / "runs" / "demo"
    written = json.loads((folder / "config.json").read_text())
    made_with, rule = written.pop("made_with"), written.pop("splits")
    assert written == {"steps": 3, "out": "runs/x", "script": RunFlags.__module__, "inputs": {}}
    assert rule == 2
    assert made_with["torch"] == torch.__version__ and {"ranks", "git"} <= set(made_with)


def test_earlier_runs_are_moved_aside_and_kept(tmp_path, capsys):
    folder = tmp_path / "demo"
    for steps in (1, 2, 3):
        open_run(folder, RunFlags(steps))
        (folder / "note.txt").write_text(f"run {steps}")
    kept = {file.parent.name: file.read_text() for file in tmp_path.glob("*/note.txt")}
    assert kept == {"demo": "run 3", "demo.1": "run 1", "demo.2": "run 2"}
    assert "an earlier run was moved to" in capsys.readouterr().out
    open_run(tmp_path / "demo", RunFlags(4))
    assert [file.name for file in folder.iterdir()] == ["config.json"]  # nothing old in the new run


def test_a_stage_that_was_begun_goes_on_and_one_that_is_there_is_not_made_again(tmp_path):
    """One of other flags is made anew."""

    @dataclass(frozen=True)
    class StageFlags(RunFlags):
        resume: bool = False

    calls: list[tuple[int, bool]] = []
    config = StageFlags(3, tmp_path / "stage")

    def made(config: StageFlags) -> None:
        calls.append((config.steps, config.resume))

    run_folder.run_missing(made, config)
    folder = open_run(config.out, config)
    (folder / "state.pt").touch()
    run_folder.run_missing(made, config)
    run_folder.run_missing(made, StageFlags(4, config.out))
    (folder / "state.pt").unlink()
    (folder / MODEL_FILE).touch()
    run_folder.run_missing(made, config)
    run_folder.run_missing(made, StageFlags(4, config.out))
    assert calls == [(3, False), (3, True), (4, False), (4, False)]


def test_resuming_with_other_flags_is_refused(tmp_path):
    """But for how long the run is, where it runs and how it is watched."""

    @dataclass(frozen=True)
    class MoreFlags(RunFlags):
        lr: float = 0.1
        teacher: Path | None = None
        ranks: int | None = None

    folder = open_run(tmp_path / "demo", MoreFlags(teacher=Path("a")))
    TrainingState({}, {}).save(folder)
    other = MoreFlags(9, Path("elsewhere"), teacher=Path("a"), ranks=2)
    open_run(folder, other, resume=True)
    here = MoreFlags(teacher=Path("a").resolve())  # another way to write the same
    open_run(folder, here, resume=True)
    for flags in (MoreFlags(lr=0.2, teacher=Path("a")), MoreFlags()):
        refused(folder, flags, resume=True)


# What is not moved aside


def refused(folder: Path, config: object, **options: bool) -> None:
    with pytest.raises(UserError) as error:
        open_run(folder, config, **options)
    one_sentence(error)


@pytest.mark.parametrize("content", [None, "{}", "[]", '{"script": "gpt.other"}', "{broken"])
def test_what_is_no_run_of_the_script_stays_where_it_is(tmp_path, content):
    """Someone's folder, a model in Hugging Face layout, another script's run."""
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "letter.txt").write_text("dear")
    if content is not None:
        (folder / "config.json").write_text(content)
    before = sorted(folder.iterdir())
    refused(folder, RunFlags())
    assert sorted(tmp_path.iterdir()) == [folder] and sorted(folder.iterdir()) == before
    folder.rename(tmp_path / "moved")  # nothing is left that would keep it


@pytest.mark.parametrize("out", ["", ".", "..", "/", "here"])
def test_the_current_folder_and_those_above_it_are_refused(tmp_path, monkeypatch, out):
    here = tmp_path / "deep" / "here"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    open_run(tmp_path / "run", RunFlags())  # a run of ours all the same, where it is one
    for name in ("deep", "deep/here"):
        (tmp_path / name / "config.json").write_bytes((tmp_path / "run/config.json").read_bytes())
    refused(here if out == "here" else Path(out), RunFlags())
    assert here.is_dir()


# One run in a folder


@contextmanager
def another(folder: Path, resume: bool = False) -> Iterator[tuple[BaseProcess, str]]:
    """Another process that opens the folder, says how that went, and stays."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def live() -> None:
        run_folder.LOCKS.clear()  # what a fork has of its parent
        try:
            open_run(folder, RunFlags(), resume=resume)
            theirs.send("open")
        except UserError as error:
            theirs.send(str(error))
        theirs.recv()

    process = context.Process(target=live)
    process.start()
    try:
        yield process, ours.recv()
    finally:
        process.kill()
        process.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="another process is a fork here")
def test_the_second_run_in_a_folder_is_refused_until_the_first_has_ended(tmp_path):
    folder = tmp_path / "run"
    with another(folder) as (process, said):
        assert said == "open"
        for resume in (False, True):
            refused(folder, RunFlags(), resume=resume)
        assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert process.exitcode == -9  # it could not unlock anything
    open_run(folder, RunFlags())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run.1"]
    with another(folder) as (_, said):
        assert "another run is writing in" in said
    finish_run(folder)
    with another(folder) as (_, said):
        assert said == "open"


# What a resumed run must be


def cut(folder: Path, config: RunFlags) -> Path:
    """A run that was ended after its second step."""
    open_run(folder, config)
    TrainingState({}, {}, step=2).save(folder)
    return folder


def test_a_flag_that_is_no_more_ends_a_run_that_used_it(tmp_path):
    folder = cut(tmp_path / "run", RunFlags())
    path, written = folder / "config.json", read_record(folder)
    path.write_text(json.dumps(written | {"judge": None, "quiet": False, "names": []}))
    open_run(folder, RunFlags(), resume=True)
    path.write_text(json.dumps(written | {"tools": "calculator"}))
    refused(folder, RunFlags(), resume=True)


@dataclass(frozen=True)
class DecayingFlags(TrainingFlags):
    steps: int = 3
    fixed_length = True


def test_a_finished_run_goes_on_to_more_steps_where_that_is_the_longer_run(tmp_path):
    folder = cut(tmp_path / "run", RunFlags())
    (folder / MODEL_FILE).touch()
    finish_run(folder, can_go_on=True)
    with pytest.raises(NothingToDo):
        open_run(folder, RunFlags(), resume=True)
    open_run(folder, RunFlags(9), resume=True)
    assert read_record(folder)["steps"] == 9 and saved_step(folder) == 2
    finish_run(folder)  # for good
    with pytest.raises(NothingToDo):
        open_run(folder, RunFlags(9), resume=True)
    refused(folder, RunFlags(99), resume=True)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", MODEL_FILE]
    other = cut(tmp_path / "other", DecayingFlags())
    refused(other, DecayingFlags(steps=9), resume=True)


# What a run chooses as it begins


@dataclass(frozen=True)
class ChoosingFlags(TrainingFlags):
    steps: int = 8
    warmup_steps: int = 5
    minutes: float | None = None


def test_a_run_goes_on_with_the_steps_and_the_warm_up_that_it_chose_as_it_began(tmp_path):
    """Two of eight steps is the warm-up of the longer run, too; another that is asked for is refused."""
    folder = cut(tmp_path / "run", ChoosingFlags(warmup_steps=2))
    longer = as_begun(folder, ChoosingFlags(steps=40, resume=True))
    assert (longer.steps, longer.warmup_steps) == (40, 2)
    open_run(folder, longer, resume=True)
    unlock(folder)
    other = ChoosingFlags(steps=40, warmup_steps=1)
    assert as_begun(folder, other).warmup_steps == 1
    refused(folder, other, resume=True)
    record_choice(folder, steps=3, warmup_steps=1)
    timed = as_begun(folder, ChoosingFlags(steps=40, minutes=9.0, resume=True))
    assert (timed.steps, timed.warmup_steps) == (3, 1)


# Checkpoints


def test_states_are_kept_by_time_and_writing_them_takes_a_twentieth_of_it(tmp_path, monkeypatch):
    """Three minutes after the last one has been written, or 20 times as long as that took."""
    now, slow, kept = 0.0, 1.0, []
    monkeypatch.setattr(training_state.time, "monotonic", lambda: now)
    write = training_state.write_atomically

    def writing(path: Path, fill: Callable[[Path], object]) -> None:
        nonlocal now
        now += slow
        write(path, fill)
        kept.append(state.step)

    monkeypatch.setattr(training_state, "write_atomically", writing)
    state = TrainingState({}, {}, saved_at=0.0)
    for step in range(1, 25):
        state.step, now, slow = step, now + 50.0, 1.0 if step < 8 else 15.0
        keep_state(state, tmp_path, None, last=step == 24)
    assert kept == [4, 8, 14, 20, 24]


def test_steps_that_follow_from_passes_are_known_by_their_number(tmp_path):
    """A run of 88 steps, which nobody typed, goes on with or without that number, and not with another."""

    @dataclass(frozen=True)
    class PassesFlags(TrainingFlags):
        steps: int | None = None
        fixed_length = True

    folder = open_run(tmp_path / "judge", PassesFlags())
    run_folder.record_steps(folder, 88)
    TrainingState({}, {}).save(folder)
    with pytest.raises(UserError, match="88"):
        open_run(folder, PassesFlags(steps=44), resume=True)
    for steps in (None, 88):
        open_run(folder, PassesFlags(steps=steps), resume=True)
        run_folder.record_steps(folder, 88)


# Numbers that blow up


def test_weights_that_are_not_finite_are_not_written_over_good_ones(tmp_path, monkeypatch):
    model = torch.nn.Linear(2, 2)
    state = TrainingState({"policy": model}, {}, step=2)
    state.save(tmp_path)
    good = (tmp_path / "state.pt").read_bytes()
    with torch.no_grad():
        model.weight[1, 0] = torch.inf
    state.step, log = 4, MetricLog(9)
    log.rows = [{"step": 4}]
    drawn: list[Path] = []
    monkeypatch.setattr(run_folder, "page_of_the_unfinished", drawn.append)
    with pytest.raises(UserError) as error, training_steps(log, tmp_path):
        keep_state(state, tmp_path, 2, last=False)
    assert one_sentence(error).startswith("step 4: ")
    assert (tmp_path / "state.pt").read_bytes() == good
    assert drawn == [tmp_path]  # the page of a run that ends early


def test_a_moment_of_another_shape_is_refused(tmp_path):
    """AdamW would read past its end."""
    optimizer = torch.optim.AdamW([weight := torch.nn.Parameter(torch.zeros(9, 9))])
    weight.sum().backward()
    optimizer.step()
    state = TrainingState({"optimizer": optimizer}, {}, step=1)
    optimizer.state[weight]["exp_avg"] = torch.zeros(2)
    state.save(tmp_path)
    with pytest.raises(UserError):
        state.load(tmp_path)


@pytest.mark.parametrize("rows", [(2, 1), (1, 1)], ids=["later-first", "twice"])
def test_rows_that_are_no_run_are_refused(tmp_path, rows):
    (tmp_path / "metrics.jsonl").write_text("".join(f'{{"step": {row}}}\n' for row in rows))
    with pytest.raises(UserError):
        MetricLog(3, path=tmp_path / "metrics.jsonl", start=2)
