"""Opening a task: what is loaded by which flag, and what is said when something is missing."""

from __future__ import annotations

import json

import pytest
import torch

from data import names, reviews, sums
from data.splits import split_of
from gpt.checkpoint import save_gpt
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import load_tokenizer
from harness.errors import UserError
from reward_model.scalar_head import RewardModel, save_reward_model
from rl.grpo_engine import GRPOConfig
from rl.rewards.sources import RewardModelReward, RuleReward
from rl.training.open_reward import RewardChoice, open_reward
from rl.training.open_task import open_policy, open_prompts, open_task

CPU = torch.device("cpu")
GLASSBOX = load_tokenizer("glassbox")


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """An empty folder in place of runs/."""
    monkeypatch.setattr(names, "RUNS", tmp_path)
    return tmp_path


def save_models(folder, data: str = "reviews") -> None:
    shape = GPTConfig(GLASSBOX.n_vocab, 128, n_layer=1, n_head=2, n_embd=8)
    policy = GPT(shape).initialize(torch.Generator().manual_seed(0))
    save_gpt(folder / f"pretraining-{data}-tiny" / "model.safetensors", policy, GLASSBOX)
    path = folder / f"reward_model-{data}-tiny" / "model.safetensors"
    save_reward_model(path, RewardModel.from_policy(policy), GLASSBOX)


def preference_file(path) -> list[str]:
    rows = [
        {"prompt": f"Question {i}?\n", "chosen": f"Answer {i}.", "rejected": "No."}
        for i in range(60)
    ]
    path.write_text(json.dumps(rows), encoding="utf-8")
    return [row["prompt"] for row in rows]


# What is missing


@pytest.fixture
def some_pairs(tmp_path, monkeypatch) -> None:
    """A file x/pairs.json in the current folder."""
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "pairs.json").write_text('[{"prompt": "a", "chosen": "b", "rejected": "c"}]')
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("data", "preset", "command"),
    [
        ("reviews", "tiny", "python -m reward_model.reward_model_training"),
        ("reviews", "gpt2", "python -m reward_model.reward_model_training --preset gpt2"),
        ("sums", "tiny", "python -m gpt.pretraining --data sums"),
        ("x/pairs.json", "own", "python -m reward_model.reward_model_training --data x/pairs.json"),
        ("x/pairs.json", "tiny",
         "python -m reward_model.reward_model_training --data x/pairs.json --preset tiny"),
        ("x/pairs.json", "small",
         "python -m reward_model.reward_model_training --data x/pairs.json --preset small"),
    ],
)  # fmt: skip
def test_a_missing_policy_names_the_command_that_makes_it(runs, some_pairs, data, preset, command):
    with pytest.raises(UserError, match="no model to start from") as error:
        open_policy(None, data, preset, CPU)
    assert str(error.value).splitlines()[-1].strip() == command


def test_a_reward_model_beside_a_rule_is_refused(tmp_path):
    with pytest.raises(UserError, match="the reward is the exact match"):
        open_reward(RewardChoice("auto", "sums", "tiny", (tmp_path,)), GLASSBOX, CPU)


def test_a_response_budget_beyond_the_context_is_refused(runs):
    save_models(runs)
    with pytest.raises(UserError, match=r"leaves no room.*128 positions"):
        open_task(GRPOConfig(max_new_tokens=128), CPU)


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
    with pytest.raises(UserError, match=f"--reward {kind}: .*--reward model"):
        open_reward(RewardChoice(kind, "pairs.json", "tiny"), GLASSBOX, CPU)


# Prompts


@pytest.mark.parametrize("data", ["reviews", "sums"])
def test_world_prompts_of_the_three_splits_are_disjoint(data):
    prompts = open_prompts(data, GLASSBOX, 80)
    texts = {name: {record.prompt for record in records} for name, records in prompts.items()}
    assert set(texts) == {"train", "validation", "test"}
    assert sum(map(len, texts.values())) == len(set().union(*texts.values()))
    assert min(map(len, texts.values())) >= 512


def test_the_prompts_of_a_file_are_split_by_their_text(tmp_path, capsys):
    texts = preference_file(tmp_path / "pairs.json")
    prompts = open_prompts(str(tmp_path / "pairs.json"), GLASSBOX, 80)
    for split, records in prompts.items():
        assert [r.prompt for r in records] == [t for t in texts if split_of(t) == split]
    assert "60 of 60 rows kept" in capsys.readouterr().out


def test_prompts_without_room_are_left_out_and_counted(tmp_path, capsys):
    preference_file(tmp_path / "pairs.json")
    rows = json.loads((tmp_path / "pairs.json").read_text())
    rows[5]["prompt"] = "word " * 50
    (tmp_path / "pairs.json").write_text(json.dumps(rows), encoding="utf-8")
    prompts = open_prompts(str(tmp_path / "pairs.json"), GLASSBOX, 40)
    assert sum(map(len, prompts.values())) == 59
    assert "left out 1 of 60 prompts (2%)" in capsys.readouterr().out


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


def test_an_engine_opens_its_own_reward_or_none(runs):
    save_models(runs, "pairs")
    preference_file(runs / "pairs.json")
    config = GRPOConfig(data=str(runs / "pairs.json"))
    own = RuleReward(lambda *_: 1.0, "mine")

    def opened(*arguments):
        assert arguments[0] is config and arguments[1].fingerprint == GLASSBOX.fingerprint
        return own

    task = open_task(config, CPU, opened)
    assert task.reward_fn is own and task.reward_name == "mine"
    task = open_task(config, CPU, lambda *_: None)
    assert task.reward_fn is None and task.reward_name == "none"
