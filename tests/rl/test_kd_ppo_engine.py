"""KD-PPO end to end on a GPT of two layers: credit per token, and what the bonus does not do."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from engines import SHARE_OF_A, Texts, engine_named, small_gpt, some_rollout
from engines import SHARP_TEACHER as TEACHER
from slow import chosen, tokens_of
from toys import weights
from watched import Call, NotedTeacher, Validations, calls_of, numbers

from gpt import pretraining
from rl import kd_ppo_engine
from rl.kd_ppo_engine import kd_token_rewards, rewards_of_tokens, teacher_reward
from rl.rewards.sources import RuleReward
from rl.rewards.teacher_reward import TeacherReward

KD_PPO = engine_named("kd_ppo")
CONFIG, run = KD_PPO.config, KD_PPO.run


@pytest.fixture
def targets(monkeypatch) -> list[Call]:
    """The calls of `gae_targets`: the second thing that it is given are the token rewards (N, T)."""
    return calls_of(monkeypatch, kd_ppo_engine, "gae_targets")


# Where the rewards stand

P = torch.tensor([[-1.0, -2.0, -3.0], [-0.5, 9.0, 9.0]])  # what the teacher gives to every token
OLD = torch.tensor([[-1.0, -1.5, -2.0], [-3.0, 7.0, 7.0]])
REF = torch.tensor([[-1.5, -1.0, -2.5], [-2.0, 8.0, 8.0]])
MASK = torch.tensor([[True, True, True], [True, False, False]])


@pytest.mark.parametrize(
    ("dense", "expected"),
    [
        # -0.1 * k1 is -0.05, 0.05, -0.05 and 0.1; the bonus 4 at the last token
        (True, [[-1.05, -1.95, 0.95], [3.6, 0, 0]]),
        (False, [[-0.05, 0.05, -2.05], [3.6, 0, 0]]),
    ],
)
def test_dense_and_terminal_rewards_by_hand(dense, expected):
    token_parts = torch.where(MASK, P, 0.0)
    parts = token_parts.sum(1), token_parts if dense else None, OLD
    got = kd_token_rewards(*parts, REF, MASK, kl_coef=0.1, bonus=4.0)
    torch.testing.assert_close(got, torch.tensor(expected))
    total = token_parts.sum(1) + 4 - 0.1 * torch.where(MASK, OLD - REF, 0.0).sum(1)
    torch.testing.assert_close(got.sum(1), total)  # the same for either placement
    plain = kd_token_rewards(*parts, None, MASK, kl_coef=0.0)
    assert plain.sum(1).tolist() == pytest.approx([-6.0, -0.5])


@pytest.mark.parametrize("form", ["reverse_kl", "sum"])
@pytest.mark.parametrize("placement", ["dense", "terminal"])
def test_the_rewards_of_a_run_by_unpadded_rows(targets, form, placement):
    """Two steps away from the start, so that teacher, student and reference are three models."""
    start, seen = small_gpt(), Validations()
    options = dict(teacher_reward=form, placement=placement, kl_coef=0.3)
    reward = NotedTeacher(teacher_reward(replace(CONFIG, **options), TEACHER))
    rows = run(copy.deepcopy(start), reward, steps=3, eval_every=1, validate=seen, **options)
    rollout, token_rewards = reward.rollouts[2], targets[2].args[1]
    totals = []
    for i in range(len(rollout)):
        prompt, response = tokens_of(rollout, i)
        with torch.no_grad():
            p, q, r = (chosen(m, prompt, response) for m in (TEACHER, seen.policies[1], start))
        own = form == "reverse_kl"  # the student's log-prob is taken off
        parts = [float(a - b if own else a) for a, b in zip(p, q, strict=True)]
        penalty = [-0.3 * float(a - b) for a, b in zip(q, r, strict=True)]
        totals.append(sum(parts))
        if placement == "terminal":
            parts = [0.0] * (len(parts) - 1) + [sum(parts)]
        expected = [a + b for a, b in zip(parts, penalty, strict=True)]
        got = token_rewards[i, : len(response)].tolist()
        assert got == pytest.approx(expected, rel=1e-3, abs=1e-4)
        assert not token_rewards[i, len(response) :].any()
    assert rows[2]["reward"] == pytest.approx(sum(totals) / len(totals), rel=1e-4)


def test_dense_rewards_need_a_teacher_and_a_sum():
    rollout = some_rollout(small_gpt())
    mean = TeacherReward(TEACHER, CONFIG, aggregate="mean")
    rule = RuleReward(lambda record, text, ended: 1.0, "rule")
    for reward in (mean, rule):
        with pytest.raises(ValueError, match="placement dense takes a teacher"):
            rewards_of_tokens(CONFIG, reward, rollout)
        assert rewards_of_tokens(replace(CONFIG, placement="terminal"), reward, rollout) is None
    parts = rewards_of_tokens(CONFIG, teacher_reward(CONFIG, TEACHER), rollout)
    torch.testing.assert_close(parts.sum(1), teacher_reward(CONFIG, TEACHER)(rollout))


# What is left when everything of its own is off: PPO


@pytest.mark.parametrize("taught", [True, False])
def test_terminal_without_text_is_ppo_bit_for_bit(taught):
    """The same reward object in both engines, also a rule; epochs, minibatches and micro-batches."""
    shared = dict(
        steps=4, updates_per_batch=2, minibatches=2, micro_batch_size=5, value_clip=0.2,
        entropy_coef=0.01,
    )  # fmt: skip
    reward = teacher_reward(CONFIG, TEACHER) if taught else SHARE_OF_A
    one, other, dense = (small_gpt() for _ in range(3))
    rows = run(one, reward, placement="terminal", **shared)
    other_rows = engine_named("ppo").run(other, reward, **shared)
    assert numbers(rows) == numbers(other_rows) and rows[-1]["kl"] > 0.01
    assert torch.equal(weights(one), weights(other))
    if taught:
        run(dense, reward, placement="dense", **shared)
        assert not torch.equal(weights(dense), weights(one))


# L_PT: a loss that works, and a bonus that does nothing


@pytest.mark.filterwarnings("ignore:pt_mode reward_bonus")
def test_the_bonus_reaches_no_gradient(gradients):
    """A first step at gamma = lambda = 1: with the bonus the gradient is the same to rounding."""
    options = dict(steps=1, gae_lambda=1.0, pt_mode="reward_bonus")
    for coef in (0.0, 5.0):
        (row,) = run(small_gpt(), pretraining_coef=coef, **options)
    assert row["pretraining_loss"] > 1
    torch.testing.assert_close(gradients[2], gradients[0], rtol=1e-3, atol=1e-5)


def test_the_bonus_is_minus_lambda_times_the_text_loss(targets):
    """One number, at the last token of every response; a run that has it is warned."""
    with pytest.warns(UserWarning, match="pt_mode reward_bonus") as warned:
        for coef in (0.0, 3.0):
            (row,) = run(small_gpt(), steps=1, pt_mode="reward_bonus", pretraining_coef=coef)
    assert len(warned) == 1
    plain, bonus = (call.args[1] for call in targets)
    difference = bonus - plain
    expected = pretraining.held_out_loss(small_gpt(), [Texts().batch(0)])
    assert row["pretraining_loss"] == pytest.approx(expected)
    assert row["loss"] == pytest.approx(row["policy_loss"] + 0.1 * row["value_loss"])
    values = difference.sum(1)
    torch.testing.assert_close(values, torch.full_like(values, -3 * expected))
    assert ((difference.abs() > 1e-4).sum(1) == 1).all()


# Learning


def test_it_learns_the_teacher():
    options = dict(prompts_per_step=32, updates_per_batch=2, minibatches=1, steps=30)
    rows = run(small_gpt(), lr=5e-3, kl_coef=0.0, **options)
    assert rows[0]["reverse_kl"] > 2.3
    assert sum(row["reverse_kl"] for row in rows[-5:]) / 5 < 0.6
    assert rows[-1]["teacher_log_prob"] > rows[0]["teacher_log_prob"] + 0.5
    assert rows[-1]["entropy"] > 1.2  # the teacher's is 1.56


# The penalty, the KL in the loss and a reference that moves


@pytest.mark.parametrize(
    ("update", "share"),
    [("never", [0, 0, 0]), ("per_iteration", [0, 1, 1]), ("mix", [0, 0.25, 0.25])],
)
def test_the_reference_moves_every_k_batches(update, share):
    """Every 2 of 3 batches: after the second, alpha * policy + (1 - alpha) * reference."""
    seen, options = Validations(), dict(reference_every=2, reference_mix=0.25)
    rows = run(
        small_gpt(), steps=3, eval_every=1, validate=seen, reference_update=update, **options
    )
    then, start = weights(seen.policies[1]), weights(small_gpt())  # the policy after two batches
    for reference, part in zip(seen.references, share, strict=True):
        torch.testing.assert_close(weights(reference), part * then + (1 - part) * start)
    # The third batch is sampled from that policy, and its KL measured from where the reference is.
    assert (abs(rows[2]["kl"]) < 1e-5) == (update == "per_iteration")
