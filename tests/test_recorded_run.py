"""A run folder that an earlier revision wrote still resumes, reports, talks and is examined.

tests/recorded_run holds a GRPO run of revision f28bd36 that was ended after 3 of 4 steps, its base
model, and what the same run had become where nothing ended it. Flags that are no more are left out of
its config.json, its two flags of the clip are today's one, and its inputs have today's form.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from forked import command
from safetensors.torch import load_file

from harness.files import read_jsonl
from report.__main__ import ReportConfig
from report.__main__ import main as write_report
from report.doctor import examine_folder
from rl import talk

RECORDED = Path(__file__).parent / "recorded_run"


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run, gone on with by today's code with the flags of its config.json."""
    place = tmp_path_factory.mktemp("recorded")
    shutil.copytree(RECORDED, place, dirs_exist_ok=True)
    flags = "--model base --reward gold --out run --steps 4 --prompts-per-step 2 --group-size 4 "
    flags += "--minibatches 1 --max-new-tokens 8 --eval-every 2 --eval-prompts 4 --test-prompts 4 "
    flags += "--save-every 2 --device cpu --ranks 1 --stop-kl None --resume"
    done = command("-m", "rl.grpo_engine", *flags.split(), cwd=place)
    assert done.returncode == 0, done.stderr
    return place / "run"


def test_it_goes_on_where_it_was_ended(resumed: Path) -> None:
    """From the state of step 2; processors may differ in the last bits."""
    rows, expected = (
        read_jsonl(path) for path in (resumed / "metrics.jsonl", RECORDED / "expected.jsonl")
    )
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    for row, wanted in zip(rows, expected, strict=True):
        for key in ("reward", "kl", "entropy", "grad_norm", "loss"):
            assert row[key] == pytest.approx(wanted[key], rel=1e-3, abs=1e-5), key
    weights = load_file(resumed / "model.safetensors")
    for name, tensor in load_file(RECORDED / "expected.safetensors").items():
        torch.testing.assert_close(weights[name], tensor, rtol=0, atol=2e-4)


def test_it_is_reported_examined_and_talked_to(resumed: Path, monkeypatch) -> None:
    page = write_report(ReportConfig(runs=(resumed,), out=resumed / "again.html"))
    assert "grpo" in page.read_text(encoding="utf-8")
    assert all(finding.severity != "error" for finding in examine_folder(resumed))
    monkeypatch.chdir(resumed.parent)
    opened = talk.Talk(talk.TalkConfig(resumed, device="cpu"))
    assert opened.answer("What is a kettle good for?")
