"""A run's folder: what it may be, who may write in it, and how a run goes on in it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpt.common import TrainingState, UserError
from gpt.runs import open_run


def one_sentence(error: pytest.ExceptionInfo) -> str:
    """The message, which must fit on one line and start from what the user knows."""
    text = str(error.value)
    assert "\n" not in text and 20 < len(text) < 300, text
    return text


@dataclass(frozen=True)
class RunFlags:
    steps: int = 3
    out: Path = Path("runs/x")


def test_a_new_run_writes_its_flags(tmp_path):
    folder = open_run(tmp_path / "runs" / "demo", RunFlags())
    assert folder == tmp_path / "runs" / "demo"
    assert json.loads((folder / "config.json").read_text()) == {"steps": 3, "out": "runs/x"}


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


def test_an_empty_folder_is_used_as_it_is(tmp_path):
    (tmp_path / "demo").mkdir()
    open_run(tmp_path / "demo", RunFlags())
    assert [folder.name for folder in tmp_path.iterdir()] == ["demo"]


def test_resuming_keeps_the_folder(tmp_path):
    folder = open_run(tmp_path / "demo", RunFlags(1))
    TrainingState({}, {}).save(folder)
    assert open_run(folder, RunFlags(2), resume=True) == folder
    assert json.loads((folder / "config.json").read_text())["steps"] == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_resuming_with_other_flags_is_refused(tmp_path):
    """But for how long the run is, where it runs and how it is watched."""

    @dataclass(frozen=True)
    class MoreFlags(RunFlags):
        lr: float = 0.1
        teacher: Path | None = None

    folder = open_run(tmp_path / "demo", MoreFlags(teacher=Path("a")))
    TrainingState({}, {}).save(folder)
    open_run(folder, MoreFlags(9, Path("elsewhere"), teacher=Path("a")), resume=True)
    for flags, words in (
        (MoreFlags(lr=0.2, teacher=Path("a")), "was started with lr 0.1, not 0.2"),
        (MoreFlags(), "was started with teacher a, not None"),
    ):
        with pytest.raises(UserError, match=words) as error:
            open_run(folder, flags, resume=True)
        assert one_sentence(error).endswith("in its config.json, or leave --resume out")


@pytest.mark.parametrize("exists", [True, False])
def test_resuming_nothing(tmp_path, exists):
    if exists:
        open_run(tmp_path / "demo", RunFlags())
    with pytest.raises(UserError) as error:
        open_run(tmp_path / "demo", RunFlags(), resume=True)
    assert one_sentence(error).endswith(
        "demo holds no state.pt to resume from: leave --resume out to start anew"
    )
    assert (tmp_path / "demo").exists() == exists
