"""Opening a task: which reward a flag opens."""

from __future__ import annotations

import pytest
import torch

from data import sources
from data.records import PromptRecord
from data.worlds import reviews, sums
from gpt.checkpoint import save_gpt
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import load_tokenizer
from harness.errors import UserError
from reward_model.scalar_head import RewardModel, save_reward_model
from rl.grpo_engine import GRPOConfig
from rl.rewards.sources import RewardModelReward, RuleReward
from rl.training.open_reward import RewardChoice, answer_rule, open_reward
from rl.training.open_task import open_task

CPU = torch.device("cpu")
GLASSBOX = load_tokenizer("glassbox")


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """An empty folder in place of runs/."""
    monkeypatch.setattr(sources, "RUNS", tmp_path)
    return tmp_path


def save_models(folder, data: str = "reviews") -> None:
    shape = GPTConfig(GLASSBOX.n_vocab, 128, n_layer=1, n_head=2, n_embd=8)
    policy = GPT(shape).initialize(torch.Generator().manual_seed(0))
    save_gpt(folder / f"pretraining-{data}-tiny" / "model.safetensors", policy, GLASSBOX)
    path = folder / f"reward_model-{data}-tiny" / "model.safetensors"
    save_reward_model(path, RewardModel.from_policy(policy), GLASSBOX)


# Rewards by flag


def test_auto_is_the_reward_model_for_reviews_and_the_rule_for_sums(runs):
    save_models(runs)
    learned = open_reward(RewardChoice("auto", "reviews", "tiny"), GLASSBOX, CPU)
    assert isinstance(learned, RewardModelReward) and not learned.model.training
    rule = open_reward(RewardChoice("auto", "sums", "tiny"), GLASSBOX, CPU)
    assert isinstance(rule, RuleReward) and rule.rule is sums.exact_match


@pytest.mark.parametrize("kind", ["gold", "rule"])
def test_gold_and_rule_are_the_worlds_own_objective(kind):
    """No reward model is opened, so none has to exist."""
    gold = open_reward(RewardChoice(kind, "reviews", "tiny"), GLASSBOX, CPU)
    assert isinstance(gold, RuleReward) and gold.rule is reviews.gold_reward
    exact = open_reward(RewardChoice(kind, "sums", "tiny"), GLASSBOX, CPU)
    assert isinstance(exact, RuleReward) and exact.rule is sums.exact_match
    with pytest.raises(UserError):
        open_reward(RewardChoice(kind, "pairs.json", "tiny"), GLASSBOX, CPU)


# Answers of a file


@pytest.mark.parametrize("odd", [[4], {"x": 4}, True, False, "", " ", None])
def test_the_rule_takes_answers_of_text_alone(odd):
    """One that it cannot compare is refused, unless another reward is paid."""
    both = {"train": [PromptRecord("a", "4")], "test": [PromptRecord("b", odd)]}
    with pytest.raises(UserError):
        answer_rule("a.jsonl", both, True)
    assert answer_rule("a.jsonl", both, False) is None
    assert answer_rule("a.jsonl", {"train": both["train"]}, False) is not None
    assert answer_rule("a.jsonl", {"train": [PromptRecord("a")]}, True) is None


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
