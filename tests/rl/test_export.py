"""Metrics for TensorBoard, read back with TensorBoard's own reader."""

from __future__ import annotations

import builtins
import json
import math
from pathlib import Path

import pytest
from conftest import require_package

from harness.errors import UserError
from harness.files import append_jsonl, write_json
from rl import export
from rl.commands.event_files import run_folders, run_names
from rl.export import ExportConfig

require_package("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402

ROWS = [
    {"step": 1, "reward": -0.5, "kl": 0.0, "seconds/rollout": 2.0, "seconds/update": 1.0},
    {"step": 2, "reward": 0.25, "validation/gold": 0.5, "seconds/rollout": 4.0, "note": "x"},
    {"step": 5, "reward": float("nan"), "kl": 1.5, "rule_errors": 3, "done": True},
]


def run_folder(folder: Path, rows=ROWS, **flags) -> Path:
    append_jsonl(folder / "metrics.jsonl", rows)
    write_json(folder / "config.json", flags)
    return folder


def read(folder: Path) -> EventAccumulator:
    reader = EventAccumulator(str(folder))
    reader.Reload()
    return reader


def test_every_number_arrives_at_its_step_under_its_name(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", data="reviews", lr=1e-4)
    export.main((run,), ExportConfig(tmp_path / "out"))
    reader = read(tmp_path / "out" / "run")
    keys = {key for row in ROWS for key in row} - {"step", "note", "done"}
    assert set(reader.Tags()["scalars"]) == keys
    for key in keys - {"reward"}:
        expected = [(row["step"], row[key]) for row in ROWS if key in row]
        assert [(event.step, event.value) for event in reader.Scalars(key)] == expected
    rewards = reader.Scalars("reward")
    assert [event.step for event in rewards] == [1, 2, 5]
    assert [event.value for event in rewards[:2]] == [-0.5, 0.25] and math.isnan(rewards[2].value)


def test_flags_are_shown_as_they_are_and_not_as_markup(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", data="<img src=x onerror=alert(1)>\n# heading")
    export.main((run,), ExportConfig(tmp_path / "out"))
    reader = read(tmp_path / "out" / "run")
    (tag,) = reader.Tags()["tensors"]
    (text,) = reader.Tensors(tag)[0].tensor_proto.string_val
    lines = text.decode().splitlines()
    assert any("onerror" in line for line in lines)
    assert all(line.startswith("    ") for line in lines)  # a block of code, to Markdown


def test_exporting_again_replaces_what_was_exported_and_nothing_else(tmp_path: Path) -> None:
    run, out = run_folder(tmp_path / "run", ROWS[:1]), tmp_path / "out"
    export.main((run,), ExportConfig(out))
    own = out / "run" / "events.out.tfevents.1.host.somebody-elses"
    own.write_bytes(b"")
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(ROWS[1]) + "\n" + '{"step": 3, "rew')  # the run goes on
    export.main((run,), ExportConfig(out))
    assert [event.step for event in read(out / "run").Scalars("reward")] == [1, 2]
    assert len(list((out / "run").iterdir())) == 2 and own.exists()


def test_a_folder_of_runs_stands_for_them_and_names_are_told_apart(tmp_path: Path) -> None:
    for name in ("a/grpo", "a/ppo", "b/grpo"):
        run_folder(tmp_path / name)
    (tmp_path / "a" / "plots").mkdir()
    folders = run_folders([tmp_path / "a", tmp_path / "b" / "grpo", tmp_path / "a" / "grpo"])
    assert run_names(folders) == ["a/grpo", "ppo", "b/grpo"]
    export.main((tmp_path / "a", tmp_path / "b" / "grpo"), ExportConfig(tmp_path / "out"))
    for name in ("a/grpo", "ppo", "b/grpo"):
        assert len(read(tmp_path / "out" / name).Scalars("reward")) == 3


def test_what_is_no_run_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to export"):
        export.main((), ExportConfig(tmp_path / "out"))
    with pytest.raises(UserError, match="there is no run folder"):
        export.main((tmp_path / "nothing",), ExportConfig(tmp_path / "out"))
    with pytest.raises(UserError, match=r"there is no metrics.jsonl in"):
        export.main((tmp_path,), ExportConfig(tmp_path / "out"))
    run = run_folder(tmp_path / "run")
    (run / "metrics.jsonl").write_text('{"step": 1}\n{"step"\n{"step": 3}\n', encoding="utf-8")
    with pytest.raises(UserError, match="metrics.jsonl:2 is damaged"):
        export.main((run,), ExportConfig(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_without_the_package_one_sentence_says_how_to_get_it(tmp_path: Path, monkeypatch) -> None:
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name.startswith("torch.utils.tensorboard"):
            raise ModuleNotFoundError("No module named 'tensorboard'", name="tensorboard")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"not installed.*\[tensorboard\]"):
        export.main((run_folder(tmp_path / "run"),), ExportConfig(tmp_path / "out"))
