"""The study driver: its engines exist, what is finished is kept, and its tables say what was measured."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpt.common import UserError, append_jsonl
from scripts import study
from scripts.study import ENGINES, StudyConfig, markdown, plot, run_stage, spread


def test_every_engine_is_a_script_and_named_once() -> None:
    assert len(set(ENGINES.values())) == len(ENGINES)
    for module, *flags in ENGINES.values():
        assert importlib.util.find_spec(module), module
        assert not flags or flags[0].startswith("--")


def test_some_engines_have_one_world() -> None:
    assert set(study.ONLY_FOR) <= set(ENGINES)
    config = StudyConfig(engines=("ppo", "grpo_process", "grpo_iterative"))
    assert study.engines_of(config, "sums") == ["ppo", "grpo_process"]
    assert study.engines_of(config, "reviews") == ["ppo", "grpo_iterative"]


def test_an_unknown_engine_is_answered_with_the_list(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no engine 'pppo': choose from grpo, ppo"):
        study.main(StudyConfig(engines=("ppo", "pppo"), out=tmp_path))


def test_a_finished_stage_is_kept_and_a_failing_one_explains_itself(tmp_path: Path) -> None:
    done = tmp_path / "done"
    done.mkdir()
    (done / study.MODEL_FILE).touch()
    run_stage(done, "no.such.module", threads=1)  # not run
    with pytest.raises(UserError, match=r"rl.grpo_engine failed, see .*broken.log: .*helptext"):
        run_stage(tmp_path / "broken", "rl.grpo_engine", "--no-such-flag", threads=1)


def test_a_finished_stage_leaves_its_seconds(tmp_path: Path) -> None:
    program = "import sys, pathlib; p = pathlib.Path(sys.argv[-1]); p.mkdir(); print(p.name)"
    module = tmp_path / "writes_a_folder.py"
    module.write_text(program)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "ROOT", tmp_path)
        run_stage(tmp_path / "run", "writes_a_folder", threads=2)
    seconds = json.loads((tmp_path / "run" / "seconds.json").read_text())
    assert seconds["wall"] > 0 and seconds["threads"] == 2
    assert not hasattr(os, "wait4") or 0 < seconds["cpu"] < seconds["wall"] + 1
    assert (tmp_path / "run.log").read_text() == "run\n"


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([{"gold": 0.5}, {"gold": 0.75}], "0.625 (0.500 to 0.750)"),
        ([{"gold": 0.5}], "0.500"),
        ([{"kl": 1.0}], "-"),
    ],
)
def test_spread_over_seeds(rows: list[dict[str, float]], text: str) -> None:
    assert spread(rows, "gold", 3) == text


def test_a_policy_is_measured_once_per_split(tmp_path: Path) -> None:
    asked: list[object] = []
    judge = SimpleNamespace(
        base=SimpleNamespace(device="cpu"),
        measure=lambda policy: asked.append(policy) or {"gold": 1.0},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "load_gpt", lambda folder, device: (folder, None))
        for split in ("test", "test", "validation"):
            config = StudyConfig(split=split, prompts=4)
            assert study.measured_once(config, judge, tmp_path) == {"gold": 1.0}
    assert asked == [tmp_path, tmp_path]


def results() -> dict[str, list[dict[str, float]]]:
    numbers = {"gold": 0.4, "win_rate": 0.5, "kl": 0.0, "response_length": 9.0, "greedy": 0.5}
    return {"base model": [numbers], "ppo": [numbers | {"gold": 0.8, "seconds": 61.0}] * 2}


@pytest.mark.parametrize("world", ["reviews", "sums"])
def test_the_table_is_markdown_with_a_row_each(world: str) -> None:
    lines = markdown(world, results()).splitlines()
    assert len(lines) == 4 and len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| base model | 0.400 |")
    assert re.match(r"\| ppo \| 0\.800 \(0\.800 to 0\.800\) .* 61 \(61 to 61\) \|$", lines[3])


def test_the_figure_is_drawn_from_the_metrics(tmp_path: Path) -> None:
    config = StudyConfig(engines=("ppo",), seeds=(0, 1))
    for seed in config.seeds:
        rows = [
            {"step": step, "validation/gold": step / 40, "validation/kl": step / 10}
            for step in (10, 20)
        ]
        append_jsonl(tmp_path / f"ppo-{seed}" / "metrics.jsonl", rows)
    plot(config, "reviews", tmp_path, results())
    assert (tmp_path / "study.png").read_bytes()[:4] == b"\x89PNG"
