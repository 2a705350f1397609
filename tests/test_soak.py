"""One piece of the soak, and what all of it makes of its pieces."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import soak
from forked import command
from toy_runs import JOBS, Wrong

from harness.errors import UserError

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(sys.platform != "linux", reason="the soak forks and reads /proc")
def test_a_run_that_is_killed_ends_as_if_it_were_not(tmp_path):
    flags = ("--only", "kill/pretraining/1", "--out", tmp_path / "soak")
    done = command(ROOT / "scripts/soak.py", *flags, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads((tmp_path / "soak" / "soak.json").read_text())
    assert result["pieces"] == 1 and not result["failures"]
    assert result["counts"]["kills"] == 4 and result["counts"]["resumed to the end"] == 1
    for kind in ("lost runs", "corrupt checkpoints", "differing results"):
        assert result[kind] == 0


def test_every_training_script_and_engine_is_killed():
    modules = {job.module for job in JOBS}
    engines = {f"rl.{path.stem}" for path in (ROOT / "rl").glob("*_engine.py")}
    assert "rl.grpo_engine" in engines <= modules
    assert modules - engines == {
        "gpt.pretraining", "gpt.finetuning", "gpt.distillation",
        "reward_model.reward_model_training",
    }  # fmt: skip
    kills = sum(len(moments) for moments in soak.MOMENTS.values()) * len(JOBS)
    assert kills >= 60


def bad_piece(error: Exception):
    def piece(place) -> None:
        place.counts["kills"] += 2
        raise error

    return piece


def test_a_failing_piece_is_listed_with_its_command_and_the_others_go_on(tmp_path):
    config = soak.SoakConfig(out=tmp_path, seed=3)
    rows = [
        soak.one_piece(config, "kill/a/1", bad_piece(Wrong("step 2 is gone", "lost"))),
        soak.one_piece(config, "kill/b/1", bad_piece(RuntimeError("no idea"))),
        soak.one_piece(config, "closed/c", bad_piece(soak.Skipped("no mount"))),
        soak.one_piece(config, "kill/d/1", lambda place: None),
    ]
    summary = soak.summarize(rows)
    assert summary["lost runs"] == 1 and summary["unclear endings"] == 1
    assert summary["counts"] == {"kills": 6} and summary["skipped"] == {"closed/c": "no mount"}
    assert [failure["repeat"] for failure in summary["failures"]] == [
        f"python scripts/soak.py --only {name} --seed 3 --keep" for name in ("kill/a/1", "kill/b/1")
    ]
    with pytest.raises(UserError, match="2 of 4 pieces are not good"):
        soak.conclude(config, rows, 60.0)
    assert json.loads((tmp_path / "soak.json").read_text())["failures"] == summary["failures"]


def test_an_unknown_piece_is_refused():
    with pytest.raises(UserError, match="there is no such piece"):
        soak.chosen(soak.SoakConfig(only=("kill/nothing",)))


def test_the_table_goes_between_its_marks(tmp_path, monkeypatch):
    document = tmp_path / "reliability.md"
    begin, end = "<!-- soak -->", "<!-- end of soak -->"
    monkeypatch.setattr(soak, "DOCUMENT", document)
    document.write_text(f"text\n\n{begin}\n\n| a |\n\n{end}\n\nmore\n")
    soak.conclude(soak.SoakConfig(out=tmp_path, write_docs=True), [], 60.0)
    text = document.read_text()
    assert text.startswith(f"text\n\n{begin}\n\n| what | 20 scripts |\n")
    assert text.endswith(f".\n\n{end}\n\nmore\n") and "| a |" not in text
    assert f"{begin}\n\n" in (soak.REPOSITORY / "docs" / "reliability.md").read_text()
