"""A world is one file: the one of docs/extending.md, put into a folder, works in every command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import data.worlds
from data.sources import Source, from_preset, source, world_names
from gpt import finetuning, model, pretraining
from harness.files import read_jsonl
from harness.paths import REPOSITORY
from reward_model import reward_model_training
from rl import dpo_engine, grpo_engine, ppo_engine
from rl.talk import Talk, TalkConfig

PAGE = REPOSITORY / "docs" / "extending.md"
TOY = dict(device="cpu", steps=2, data="counting")
SMALL: dict[str, Any] = dict(eval_prompts=4, test_prompts=4, prompts_per_step=2, group_size=2)


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's world in a second folder of worlds, and runs/ and models of toy size."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    (code,) = (block for block in blocks if "def prefers" in block)
    assert len(code.splitlines()) <= 60
    (tmp_path / "worlds").mkdir()
    (tmp_path / "worlds" / "counting.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(data.worlds, "__path__", [*data.worlds.__path__, str(tmp_path / "worlds")])
    monkeypatch.setattr("data.sources.RUNS", tmp_path / "runs")
    shape = model.GPTConfig(context=64, n_layer=1, n_head=2, n_embd=16)
    monkeypatch.setitem(model.PRESETS, "tiny", shape)
    return tmp_path / "runs"


def run(module: Any, config_class: Any, **flags: Any) -> Path:
    """A command as its default flags have it, at toy size; its run folder."""
    engine = getattr(module, "ENGINE", None)
    config = from_preset(config_class, module.PRESETS, "tiny", **(TOY | flags))
    return engine.run(config) if engine else module.main(config)


def test_every_command_takes_the_pages_world(counting: Path) -> None:
    base = run(pretraining, pretraining.PretrainingConfig)
    assert base == counting / "pretraining-counting-tiny"
    judge = run(
        reward_model_training, reward_model_training.RewardModelConfig, pairs=40, held_out_pairs=20,
        max_response_tokens=8,
    )  # fmt: skip
    assert all("gold_chosen" in row for row in read_jsonl(judge / "pairs.jsonl"))
    run(finetuning, finetuning.FinetuningConfig)
    grpo = run(grpo_engine, grpo_engine.GRPOConfig, **SMALL)
    run(ppo_engine, ppo_engine.PPOConfig, **SMALL)
    offline = SMALL | dict(held_out_pairs=4, batch_size=4)
    del offline["prompts_per_step"], offline["group_size"]
    run(dpo_engine, dpo_engine.DPOConfig, **offline)
    assert (grpo / "report.html").exists()
    talk = Talk(TalkConfig(grpo, device="cpu"))
    answer, start = talk.answer("abcab>")
    assert answer.gold is not None and answer.reward is not None and start.gold is not None


def test_a_world_changes_the_flags_of_the_commands_that_it_names(counting: Path) -> None:
    config = from_preset(grpo_engine.GRPOConfig, grpo_engine.PRESETS, "tiny", data="counting")
    assert config.max_new_tokens == 8


@pytest.mark.parametrize("name", world_names())
def test_every_world_has_all_names_of_a_source(name: str) -> None:
    world = source(name)
    for needed in Source.__annotations__:
        assert hasattr(world, needed), needed
    assert (world.corpus is None) == (world.sample_response is None)
    record = world.prompts("train")[0]
    assert world.gold is not None and 0 <= world.gold(record, "no", True) <= 1
    assert not {r.prompt for r in world.prompts("train")} & {
        r.prompt for r in world.prompts("test")
    }
    if world.prefers is not None:
        assert world.prefers(0.5, 0.5) == 0.5
