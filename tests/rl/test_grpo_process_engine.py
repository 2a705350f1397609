"""GRPO with process supervision: it learns from the steps alone."""

from __future__ import annotations

import pytest
import torch
from engines import DIVERSE, LetterSteps, engine_named, small_gpt
from toys import weights

from rl.grpo_process_engine import step_metrics
from rl.rewards.reward import RuleReward
from rl.rewards.step_rewards import OutcomeSteps, StepRewards

PROCESS = engine_named("grpo_process")
CONFIG, run = PROCESS.config, PROCESS.run


def test_the_numbers_of_steps_by_hand():
    """Groups of two: one of steps 0.5, 1 and 3, and one that teaches nothing."""
    rewards = torch.tensor([[0.5, 1.0], [3.0, 9.0], [0.2, 9.0], [0.2, 9.0]])
    mask = torch.tensor([[1, 1], [1, 0], [1, 0], [1, 0]]).bool()
    steps = StepRewards(rewards, torch.zeros(4, 2).long(), mask)
    advantages = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert step_metrics(steps, advantages, 2) == {
        "step_reward": pytest.approx((0.5 + 1 + 3 + 0.2 + 0.2) / 5),
        "steps_per_response": 5 / 4, "zero_spread_steps": 0.5,
    }  # fmt: skip


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
