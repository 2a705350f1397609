"""Scripts: the demo's stages, comparisons, the benchmark at toy size."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import compare
import demo
import gpu
import peers
import pytest
from toys import saved_gpt

from gpt.recipes import defaults
from harness.errors import UserError


def test_the_demo_runs_its_stages_with_their_own_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the three commands without a flag train what the demo trains: folders aside."""
    asked: dict[Any, Any] = {}
    monkeypatch.setattr(demo, "load_gpt", lambda folder, device: (folder / "none").read_text())
    saved_gpt(tmp_path / "pretraining")
    stages = (demo.pretraining, demo.reward_model_training, demo.grpo_engine)
    for stage in stages:
        monkeypatch.setattr(
            stage, "main", lambda config, stage=stage: asked.update({stage: config})
        )
    for told in ("said_of_pretraining", "said_of_judge", "said_of_grpo"):
        monkeypatch.setattr(demo, told, str)
    with pytest.raises(FileNotFoundError):  # the fourth stage finds no base model
        demo.train_stages(demo.DemoConfig(), 0, tmp_path)
    folders = dict.fromkeys(("out", "model", "test_prompts"))
    for stage in stages:
        config = asked[stage]
        alone = defaults(type(config), [])
        changed = {name: None for name in folders if hasattr(config, name)}
        if stage is demo.grpo_engine:
            changed["reward_model"] = ()
        assert dataclasses.replace(config, **changed) == dataclasses.replace(alone, **changed)


ENGINE = """
import hashlib, json, pathlib, sys

flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
with open("calls", "a") as calls:
    calls.write("BETTER ")
out, seed = pathlib.Path(flags["--out"]), int(flags["--seed"])
out.mkdir(parents=True)
value = seed + BETTER * float(flags["--lr"])
words = pathlib.Path("words")
read = {str(words): hashlib.sha256(words.read_bytes()).hexdigest()}
(out / "config.json").write_text(json.dumps(flags | dict(seed=seed, data=DATA, inputs=read)))
(out / "report.json").write_text(json.dumps(dict(prompts=4, after=dict(reward=value))))
rows = [json.dumps(dict(step=step, reward=step * value)) for step in (1, 2, 3)]
(out / "metrics.jsonl").write_text("".join(row + "\\n" for row in rows))
"""


def write_engine(name: str, better: float, data: str = "'sums'") -> None:
    Path(name).write_text(ENGINE.replace("BETTER", str(better)).replace("DATA", data))


def made() -> list[str]:
    """What has run since this was called last."""
    calls = Path("calls").read_text().split() if Path("calls").exists() else []
    Path("calls").unlink(missing_ok=True)
    return calls


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> compare.CompareConfig:
    """Two engines that train nothing, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    Path("words").write_text("a b")
    write_engine("mine_engine.py", 0.2)
    write_engine("base_engine.py", 0.1)
    return compare.CompareConfig(("mine_engine.py", "base_engine.py"), seeds=2, out=tmp_path / "c")


def test_the_difference_is_paired_and_other_flags_have_a_table_of_their_own(
    config: compare.CompareConfig,
) -> None:
    """Seeds differ by 1 and engines by exactly 0.1 lr: only a pairing has an interval of no width."""
    for lr in ("1", "2", "1"):
        compare.main(config, ("--lr", lr))
    assert sorted(made()) == ["0.1"] * 4 + ["0.2"] * 4  # the third comparison had its runs
    tables = sorted(config.out.glob("*/mine-base.txt"), key=lambda path: path.read_text())
    ends = [line.split("  ")[-1] for table in tables for line in table.read_text().splitlines()]
    assert [end for end in ends if "[" in end] == ["0.1 [0.1, 0.1]", "0.2 [0.2, 0.2]"]
    assert all(path.with_suffix(".png").stat().st_size > 1000 for path in tables)


def test_what_cannot_be_compared_is_refused(config: compare.CompareConfig) -> None:
    """Engines of other worlds, one engine alone, one that is not there."""
    write_engine("base_engine.py", 0.1, "'reviews'")
    for engines in (config.engines, config.engines[:1], (*config.engines, "no_engine.py")):
        with pytest.raises(UserError):
            compare.main(replace(config, engines=engines), ("--lr", "1"))
    assert made() == ["0.2", "0.1"]  # one seed each, for the first alone


def test_the_gpu_benchmark_at_toy_size(capsys, monkeypatch):
    monkeypatch.setattr(gpu, "marked_tests", lambda: "not run")
    gpu.main(gpu.GpuConfig(device="cpu", toy=True, rows=8, repeats=1))
    said = capsys.readouterr().out
    assert "0 of 4 rows drawn otherwise, gradient off by 0.0e+00" in said
    assert said.count(" a second") == 12  # four kinds of work in three precisions


def test_a_comparison_s_ratios_are_of_the_thriftiest_ways_and_of_equal_processes() -> None:
    """Per CPU second TRL's one process counts, by the clock its two; turn by turn, not of medians."""
    sides = [
        ("TRL, 2 threads", "peer", 2, 1, 0, [7.0, 7.0, 7.0], 12.0, 4096),
        ("ours, first", "ours", 1, 2, 0, [5.0, 5.0, 5.0], 9.0, 3072),
        ("TRL, 2 processes", "peer", 1, 2, 1, [8.0, 4.0, 6.0], 14.0, 8192),
        ("ours, again", "ours", 1, 2, 1, [4.0, 4.0, 2.0], 8.0, 2048),
    ]
    names = ("label", "library", "threads", "ranks", "group", "seconds", "cpu", "mib")
    assert peers.ratios([dict(zip(names, side, strict=True)) for side in sides]) == {
        "CPU": {"ratio": 1.33, "of": ["TRL, 2 threads", "ours, first"], "gib": [4.0, 3.0]},
        "clock": {"ratio": 2.0, "of": ["TRL, 2 processes", "ours, again"], "gib": [8.0, 2.0]},
    }


def test_trl_is_measured_in_as_many_processes_as_ours() -> None:
    """At SmolLM2's size in turns of its own: all sides at once would not fit into memory."""
    groups = peers.sides_of(peers.CASES["grpo-smollm2-float32"], 2)
    assert [[(side.library, side.ranks) for side in group] for group in groups] == [
        [("peer", 1), ("ours", 2)],
        [("peer", 2), ("ours", 2)],
    ]
    (small,) = peers.sides_of(peers.CASES["grpo-tiny-8x8"], 2)
    assert {(side.library, side.threads, side.ranks) for side in small} >= {
        ("peer", 1, 2), ("ours", 1, 2), ("peer", 1, 1), ("ours", 1, 1),
    }  # fmt: skip
