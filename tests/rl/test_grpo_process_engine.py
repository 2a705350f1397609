"""GRPO with process supervision: advantages per token, and plain GRPO where there is one step."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from engines import DIVERSE, LetterSteps, engine_named, small_gpt
from toys import weights

from data import reviews, sums
from gpt.tokenizer import load_tokenizer
from reward_model.scalar_head import RewardModel
from rl.grpo_process_engine import ProcessGRPOConfig, open_step_rewards
from rl.rewards.sources import RewardModelReward, RuleReward
from rl.rewards.step_rewards import CheckedSteps, OutcomeSteps, RewardModelSteps
from rl.training.open_task import Task

PROCESS = engine_named("grpo_process")
CONFIG, run = PROCESS.config, PROCESS.run

# Learning


def test_it_learns_from_the_steps_and_only_from_them():
    """The outcome says nothing, and another outcome changes nothing."""
    constant = RuleReward(lambda *_: 1.0, "constant")
    ends = []
    for reward in (constant, DIVERSE):
        policy = small_gpt()
        run(policy, reward, steps=6, group_size=8, minibatches=2)
        ends.append(weights(policy))
    assert torch.equal(*ends)
    (row,) = run(small_gpt(), steps=1, step_reward_fn=OutcomeSteps())
    assert row["step_reward"] == row["reward"] and row["steps_per_response"] == 1
    assert row["zero_spread_steps"] == row["zero_spread_groups"]
    rows = run(small_gpt(), constant, group_size=8, minibatches=2)
    assert [row["zero_spread_groups"] for row in rows] == [1.0] * 20
    assert [row["reward"] for row in rows] == [1.0] * 20
    assert rows[0]["zero_spread_steps"] == 0
    assert rows[-1]["step_reward"] > rows[0]["step_reward"] + 0.5
    policy, same = small_gpt(), LetterSteps(lambda letters: 0.7)
    rows = run(policy, DIVERSE, step_reward_fn=same, steps=2, kl_coef=0.0)
    assert torch.equal(weights(policy), weights(small_gpt()))
    assert [row["zero_spread_steps"] for row in rows] == [1, 1]


# Which source, refusals, the controller and the document


def task_with(reward_fn, data: str) -> tuple[ProcessGRPOConfig, Task]:
    tokenizer = load_tokenizer("glassbox")
    return replace(CONFIG, data=data), Task(small_gpt(), tokenizer, {}, reward_fn, None)


EXACT = RuleReward(sums.exact_match, "exact match")
GOLD = RuleReward(reviews.gold_reward, "gold reward")


def learned() -> RewardModelReward:
    return RewardModelReward(RewardModel(small_gpt()))


@pytest.mark.parametrize(
    ("data", "reward", "steps_from", "expected"),
    [
        ("sums", EXACT, "auto", CheckedSteps),
        ("sums", EXACT, "rule", CheckedSteps),
        ("sums", learned(), "auto", CheckedSteps),
        ("sums", EXACT, "outcome", OutcomeSteps),
        ("reviews", learned(), "auto", RewardModelSteps),
        ("pairs.json", learned(), "auto", RewardModelSteps),
        ("pairs.json", learned(), "outcome", OutcomeSteps),
        ("reviews", GOLD, "auto", OutcomeSteps),
    ],
)
def test_the_source_is_the_one_asked_for(data, reward, steps_from, expected):
    config, task = task_with(reward, data)
    source = open_step_rewards(replace(config, steps_from=steps_from), task)["step_reward_fn"]
    assert type(source) is expected
    if isinstance(source, RewardModelSteps):
        assert source.model is reward.model and source.tokenizer is task.tokenizer
