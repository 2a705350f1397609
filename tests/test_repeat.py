"""A run repeated from its folder alone is the run, and what is different is named."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gpt import pretraining
from gpt.pretraining import PretrainingConfig
from harness.errors import UserError
from harness.files import read_jsonl
from rl import grpo_engine
from rl.grpo_engine import GRPOConfig
from scripts import repeat
from scripts.repeat import RepeatConfig, differences, restored


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pre-trained model, on the prompts of a file."""
    folder = tmp_path_factory.mktemp("start")
    rows = [{"prompt": f"{n} + 1 = ", "answer": f"{n + 1}"} for n in range(200)]
    (folder / "data.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return pretraining.main(
        PretrainingConfig(
            data=str(folder / "data.jsonl"),
            steps=2,
            batch_size=2,
            device="cpu",
            out=folder / "model",
        )
    )


def test_a_pretraining_is_repeated_from_its_folder(start, tmp_path, capsys):
    repeat.main(RepeatConfig(start, tmp_path / "again"))
    assert "every metric and every weight, bit for bit" in capsys.readouterr().out
    rows, again = (read_jsonl(folder / "metrics.jsonl") for folder in (start, tmp_path / "again"))
    assert len(again) == 2 and [row["loss"] for row in rows] == [row["loss"] for row in again]
    flags = json.loads((tmp_path / "again" / "config.json").read_text())
    assert flags["script"] == "gpt.pretraining" and flags["out"] == str(tmp_path / "again")


def test_an_engine_is_repeated_and_a_changed_input_refused(start, tmp_path, capsys):
    data = start.parent / "data.jsonl"
    config = GRPOConfig(
        data=str(data), policy=start, steps=2, prompts_per_step=2, group_size=2, eval_prompts=2,
        eval_every=1, test_prompts=0, max_new_tokens=4, device="cpu", ranks=1, out=tmp_path / "run",
    )  # fmt: skip
    run = grpo_engine.main(config)
    repeat.main(RepeatConfig(run, tmp_path / "again"))
    assert "every metric and every weight, bit for bit" in capsys.readouterr().out
    other = grpo_engine.main(replace(config, seed=1, out=tmp_path / "other"))
    found = differences(run, other)
    assert found[0].startswith("step 1: ")
    weights = tmp_path / "again" / "model.safetensors"
    tensors = load_file(weights)
    tensors["ln_f.bias"][0] += 1e-7
    save_file(tensors, weights)
    assert differences(run, tmp_path / "again") == ["model.safetensors differs"]
    (tmp_path / "again" / "metrics.jsonl").write_text("")
    assert differences(run, tmp_path / "again")[0] == "2 steps became 0"

    before = data.read_text()
    data.write_text(before.replace("7 + 1", "7 + 2"))
    with pytest.raises(UserError, match="--data of .* is no longer what"):
        repeat.main(RepeatConfig(run, tmp_path / "third"))
    data.write_text(before)
    assert not (tmp_path / "third").exists()


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"script": "rl.no_engine"}, "none of the commands here"),
        ({"script": "rl.grpo_engine", "steps": 3}, "has other flags today"),
    ],
)
def test_a_run_of_another_version_is_refused(record, words):
    with pytest.raises(UserError, match=words):
        restored(record)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"script": "trap"}, "'trap', which is none of the commands here"),
        (
            {"script": "rl.grpo_engine", "reward": "trap.py:f"},
            "reward is 'trap.py:f', which is code",
        ),
        ({"script": "rl.grpo_engine", "reward": "trap:f"}, "add --run-reward"),
        ({"script": "rl.grpo_engine", "reward": ["trap:f"]}, "which is code"),
        ({"script": "scripts.soak"}, "none of the commands here"),
        ({"script": "../trap"}, "none of the commands here"),
    ],
)
def test_nothing_that_a_received_folder_names_is_run(record, words, tmp_path, monkeypatch):
    (tmp_path / "trap.py").write_text("open('sprung', 'w')\ndef f(prompt, response): return 0.0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    flags = json.loads(json.dumps(vars(GRPOConfig()), default=str)) | record
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps(flags))
    with pytest.raises(UserError, match=re.escape(words)):
        repeat.main(RepeatConfig(tmp_path / "run", tmp_path / "again"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "trap.py"]
