"""Opening a task: which reward a flag opens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from toys import GLASSBOX, glassbox_gpt, saved_gpt

from data import sources
from data.files.source import FileSource
from data.records import PromptRecord
from data.sources import source
from data.splits import split_of
from data.worlds import reviews, sums
from harness.errors import UserError
from reward_model.scalar_head import RewardModel, save_reward_model
from rl.grpo_engine import GRPOConfig
from rl.rewards import verifiable
from rl.rewards.model import RewardModelReward
from rl.rewards.reward import RewardFn, RuleReward, open_reward, open_rule
from rl.run.config import RunFlags
from rl.run.task import open_policy, open_task, require_reach

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


# Rewards by flag


def opened(kind: str, data: str) -> RewardFn:
    rule = open_rule(source(data), data, {}, needed=False)
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
        verifiable.open_rule(file, name, both, True)
    assert verifiable.open_rule(file, name, both, False) is None
    assert open_rule(file, name, {"train": both["train"]}, needed=False) is not None
    assert open_rule(file, name, {"train": [PromptRecord("a")]}, needed=True) is None


# The task as a whole


def test_the_reviews_task_trains_on_the_model_and_measures_gold(runs):
    save_models(runs)
    task = open_task(GRPOConfig(), CPU)
    assert isinstance(task.reward_fn, RewardModelReward)
    assert task.gold is not None and task.gold.rule is reviews.gold_reward
    assert task.reward_fn is not task.gold
    assert not any(parameter.requires_grad for parameter in task.reward_fn.model.parameters())
    assert all(parameter.requires_grad for parameter in task.policy.parameters())
    assert not task.policy.training


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
