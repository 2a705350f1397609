"""GRPO with process supervision: advantages per token, and plain GRPO where there is one step."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from engines import DIVERSE, SHARE_OF_A, LetterSteps, engine_named, small_gpt
from minibatch import MASK, NEW, OLD, RATIO, REF, k3_by_hand, mean_of_means, pessimistic
from slow import assert_gradient, response_gradient, z_scores
from toys import weights
from watched import HALVES, Noted, given_halves

from data import reviews, sums
from gpt.tokenizer import load_tokenizer
from harness.errors import UserError
from reward_model.scalar_head import RewardModel
from rl.batches.rollout import Rollout
from rl.grpo_process_engine import ProcessGRPOConfig, open_step_rewards, process_grpo_loss
from rl.rewards.sources import RewardModelReward, RuleReward
from rl.rewards.step_rewards import CheckedSteps, OutcomeSteps, RewardModelSteps
from rl.training.open_task import Task

PROCESS = engine_named("grpo_process")
CONFIG, run = PROCESS.config, PROCESS.run

# The first step


def token_advantages(rollout: Rollout, row: int) -> list[float]:
    """The z-scores, among all steps of the group, of the steps that end at a token or later."""
    source, first = LetterSteps(), row // 4 * 4
    steps = [(k, *step) for k in range(first, first + 4) for step in source.steps_of(rollout, k)]
    scores = z_scores([source.worth(text) for _, _, text in steps], len(steps))
    own = [(end, z) for (k, end, _), z in zip(steps, scores, strict=True) if k == row]
    return [sum(z for end, z in own if end >= t) for t in range(int(rollout.lengths[row]))]


@pytest.mark.parametrize("kl_coef", [0.0, 0.5])
def test_the_first_gradient_is_that_of_reinforce_with_an_advantage_per_token(
    monkeypatch, gradients, kl_coef
):
    given_halves(monkeypatch)
    start, reward = small_gpt(), Noted(SHARE_OF_A)
    run(copy.deepcopy(start), reward, steps=1, kl_coef=kl_coef, micro_batch_size=3)
    (rollout,) = reward.rollouts
    counts = {len(LetterSteps().steps_of(rollout, i)) for i in HALVES[0]}
    assert len(counts) > 1, "all responses have as many steps"
    every = [token_advantages(rollout, i) for i in range(16)]
    factors = [[(i in HALVES[0]) * a / len(row) / 8 for a in row] for i, row in enumerate(every)]
    assert_gradient(gradients[0], response_gradient(start, rollout, factors))


def test_the_loss_by_loops():
    """1/rows sum_i 1/L_i sum_t (-min(rho A_it, clip(rho) A_it) + beta k3); empty rows add nothing."""
    advantages = [[1.5, 1.0, -2.0, 9.0], [-0.5, 0.25, 9.0, 9.0], [9.0] * 4]
    expected = mean_of_means(lambda i, t: pessimistic(float(RATIO[i, t]), advantages[i][t]))
    expected += 0.4 * mean_of_means(k3_by_hand)
    config = replace(CONFIG, clip_low=0.2, clip_high=0.3)
    given = (NEW, OLD, REF, torch.tensor(advantages), MASK)
    loss = process_grpo_loss(config, *given, kl_coef=0.4, rows=5)
    assert float(loss) == pytest.approx(expected, rel=1e-5)


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


@pytest.mark.parametrize(
    ("data", "reward", "steps_from", "message"),
    [
        ("reviews", learned(), "rule", "reviews has no rule for the steps"),
        ("pairs.json", learned(), "rule", "pairs.json has no rule for the steps"),
        ("sums", EXACT, "reward_model", "the exact match, not a learned"),
        ("reviews", GOLD, "reward_model", "the gold reward, not a learned"),
    ],
)
def test_a_source_that_is_not_there_is_refused_in_one_sentence(data, reward, steps_from, message):
    config, task = task_with(reward, data)
    with pytest.raises(UserError, match=message) as refused:
        open_step_rewards(replace(config, steps_from=steps_from), task)
    assert "\n" not in str(refused.value)


def test_broken_step_rewards_are_refused():
    source = LetterSteps(lambda letters: math.nan if letters.endswith("b") else 1.0)
    with pytest.raises(ValueError, match="step rewards are not finite"):
        run(small_gpt(), steps=1, step_reward_fn=source)
