"""What all engines' configs share, and the task that flags open."""

from __future__ import annotations

import importlib
import json
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
import torch
from toys import GLASSBOX, glassbox_gpt, saved_gpt

from data import sources
from data.files.source import FileSource
from data.records import SPLITS, PromptRecord, split_of
from data.sources import source, world_names, world_source
from data.worlds import reviews, sums
from gpt import recipes
from gpt.lengths import open_prompts
from gpt.model import Preset
from gpt.recipes import RECIPES, Recipe, config_of
from harness.errors import UserError
from reward_model.scalar_head import RewardModel, save_reward_model
from rl.rewards.model import RewardModelReward
from rl.rewards.reward import RewardFn, RuleReward, open_reward, open_rule
from rl.run.config import EngineConfig, RunFlags
from rl.run.engine import Engine, every_engine
from rl.run.task import open_policy, open_task, require_reach

RL = Path(__file__).resolve().parents[3] / "rl"
ENGINES = sorted(path.stem for path in RL.glob("*_engine.py"))


def test_every_engine_is_found() -> None:
    assert [engine.module for engine in every_engine()] == [f"rl.{name}" for name in ENGINES]


@pytest.mark.parametrize("engine", every_engine(), ids=lambda engine: engine.name)
def test_every_row_makes_a_config(engine: Engine) -> None:
    samples = issubclass(engine.config, EngineConfig)  # worlds have no recorded pairs
    for shape in get_args(Preset):
        for data in ("pairs.json", *(world_names() if samples else ())):
            made = config_of(engine.config, preset=shape, data=data)
            assert (made.preset, made.data) == (shape, data)


def test_rows_name_commands_worlds_and_fields_that_are_there() -> None:
    for row in RECIPES:
        modules = [row.command] if row.command != "rl" else ["rl.grpo_engine"]
        module = importlib.import_module(modules[0])
        config = module.ENGINE.config if hasattr(module, "ENGINE") else module.STAGE.config
        assert row.settings.keys() <= {field.name for field in fields(config)}, row
        assert row.world is None or row.world in world_names()


def test_a_world_and_an_engine_have_rows_of_their_own(monkeypatch) -> None:
    class Other(EngineConfig):
        __module__ = "rl.other_engine"

    more = (
        Recipe("rl.other_engine", "larger", {"lr": 5.0}),
        Recipe("rl.other_engine", "tiny", {"lr": 7.0}, world="sums"),
        Recipe(
            "rl.other_engine", "tiny", 1e9, "sums", {"lr": 8.0}, ""
        ),  # the first that fits counts
    )
    monkeypatch.setattr(recipes, "RECIPES", recipes.RECIPES + more)
    reviews, sums, small = (
        recipes.defaults(Other, arguments)
        for arguments in ([], ["--data", "sums"], ["--preset=small", "--data=sums"])
    )
    assert (reviews.lr, reviews.kl_coef, reviews.data) == (2e-4, 0.1, "reviews")
    assert (sums.lr, sums.kl_coef, sums.stop_kl, sums.data) == (7.0, 0.0, None, "sums")
    assert (small.lr, small.preset, small.data) == (5.0, "small", "sums")


CPU = torch.device("cpu")


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """An empty folder in place of runs/."""
    monkeypatch.setattr(sources, "RUNS", tmp_path)
    return tmp_path


def save_models(folder, data: str = "reviews") -> None:
    policy = saved_gpt(folder / f"pretraining-{data}-tiny", context=128)
    path = folder / f"reward_model-{data}-tiny" / "model.safetensors"
    save_reward_model(path, RewardModel.from_policy(policy), GLASSBOX)


def test_prompts_of_a_file_are_in_one_split_each_and_those_without_room_in_none(tmp_path):
    rows = [{"prompt": f"Question {n}?{' lamp' * 20 * (n % 5 == 0)}\n"} for n in range(60)]
    (tmp_path / "prompts.json").write_text(json.dumps(rows))
    found = sources.source(str(tmp_path / "prompts.json"), None)
    every = {split: [r.prompt for r in found.prompts(split)] for split in SPLITS}
    assert sorted(sum(every.values(), [])) == sorted(row["prompt"] for row in rows)
    _, kept = open_prompts(str(tmp_path / "prompts.json"), GLASSBOX, room=16)
    assert {split: [r.prompt for r in records] for split, records in kept.items()} == {
        split: [prompt for prompt in prompts if "lamp" not in prompt]
        for split, prompts in every.items()
    }


def test_a_task_has_the_prompts_of_each_split_of_its_world(runs):
    save_models(runs)
    task = open_task(RunFlags(reward="gold", max_new_tokens=8), CPU)
    for split in SPLITS:
        assert task.prompts[split] == world_source("reviews").prompts(split)


# Rewards by flag


def opened(kind: str, data: str) -> RewardFn:
    rule = open_rule(source(data, None), data, {}, needed=False)
    return open_reward(RunFlags(reward=kind, data=data), GLASSBOX, CPU, rule)


def test_auto_is_the_reward_model_for_reviews_and_the_rule_for_sums(runs):
    save_models(runs)
    learned = opened("auto", "reviews")
    assert isinstance(learned, RewardModelReward) and not learned.model.training
    rule = opened("auto", "sums")
    assert isinstance(rule, RuleReward) and rule.rule is sums.exact_match


@pytest.mark.parametrize("kind", ["gold", "rule"])
def test_gold_and_rule_are_the_worlds_own_objective(kind):
    """No reward model is opened, so none has to exist."""
    gold = opened(kind, "reviews")
    assert isinstance(gold, RuleReward) and gold.rule is reviews.gold_reward
    exact = opened(kind, "sums")
    assert isinstance(exact, RuleReward) and exact.rule is sums.exact_match
    with pytest.raises(UserError):
        open_reward(RunFlags(reward=kind, data="pairs.json"), GLASSBOX, CPU, None)


# Answers of a file


@pytest.mark.parametrize("odd", [[4], {"x": 4}, True, False, "", " ", None])
def test_the_rule_takes_answers_of_text_alone(odd):
    """One that it cannot compare is refused, unless another reward is paid."""
    file, name = FileSource(Path("a.jsonl")), "a.jsonl"
    both = {"train": [PromptRecord("a", "4")], "test": [PromptRecord("b", odd)]}
    with pytest.raises(UserError):
        open_rule(file, name, both, needed=True)
    assert open_rule(file, name, both, needed=False) is None
    assert open_rule(file, name, {"train": both["train"]}, needed=False) is not None
    assert open_rule(file, name, {"train": [PromptRecord("a")]}, needed=True) is None


# The task as a whole


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_file_of_one_row_lacks_a_model_whatever_its_split(runs, split):
    prompt = next(text for text in map(str, range(100)) if split_of(text) == split)
    (runs / "one.jsonl").write_text(f'{{"prompt": "{prompt}", "answer": "x"}}')
    with pytest.raises(UserError):
        open_policy(None, str(runs / "one.jsonl"), "own", CPU)


def test_a_reward_model_that_cannot_read_what_will_be_written_is_refused() -> None:
    """Before an earlier run is moved aside, and not at the first reward."""
    small, large = glassbox_gpt(context=8), glassbox_gpt()
    ask = large, GLASSBOX, {"train": [PromptRecord("a b", None)], "test": []}
    reward, room = RewardModelReward(RewardModel(small)), 8 - len(GLASSBOX.encode("a b"))
    require_reach(reward, *ask, room)
    with pytest.raises(UserError):
        require_reach(reward, *ask, room + 1)
    require_reach(None, *ask, 60)
