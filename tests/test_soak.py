"""A run that is killed and resumed is the run that was not, and what differs is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import soak
import torch
from safetensors.torch import save_file

from harness.files import append_jsonl

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="the soak kills groups of processes")
def test_a_run_that_is_killed_as_it_saves_ends_as_if_it_were_not(tmp_path: Path) -> None:
    assert soak.soak("gpt.pretraining", 1, tmp_path, seed=0, moments=("write",)) == 1


def test_every_training_script_and_engine_is_killed() -> None:
    engines = {f"rl.{path.stem}" for path in (ROOT / "rl").glob("*_engine.py")}
    assert soak.SCRIPTS.keys() - engines == {
        "gpt.pretraining", "gpt.finetuning", "gpt.distillation", soak.REWARD_MODEL,
    }  # fmt: skip
    assert "rl.grpo_engine" in engines <= soak.SCRIPTS.keys()


def finished_run(folder: Path, seconds: float = 1.0, loss: float = 0.5, bias: float = 0.0) -> Path:
    append_jsonl(folder / "metrics.jsonl", [{"step": 1, "loss": loss, "seconds/update": seconds}])
    save_file({"bias": torch.tensor([bias])}, folder / "model.safetensors")
    return folder


def test_what_differs_is_named_and_times_are_not(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run")
    assert soak.differences(run, finished_run(tmp_path / "slow", seconds=9.0)) == []
    other = finished_run(tmp_path / "other", bias=1e-9)
    assert soak.differences(run, other) == ["model.safetensors"]
    (other / "samples.jsonl").write_text("{}")
    assert soak.differences(run, other) == ["model.safetensors", "samples.jsonl"]
    assert soak.differences(run, finished_run(tmp_path / "worse", loss=0.6)) == ["metrics.jsonl"]
