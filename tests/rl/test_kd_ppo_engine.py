"""KD-PPO end to end on a GPT of two layers: credit per token, and what the bonus does not do."""

from __future__ import annotations

import copy
import math
import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engines import (
    LETTERS,
    PROMPTS,
    NotedTeacher,
    Texts,
    chosen,
    engine_named,
    numbers,
    seen_gradients,
    small_gpt,
    tokens_of,
    weights,
)
from engines import SHARP_TEACHER as TEACHER
from harness.metric_log import MetricLog

from gpt import pretraining
from gpt.generate import SamplingParams
from gpt.log_probs import TokenScores
from gpt.model import GPT
from rl import kd_ppo_engine, ppo_engine
from rl.batches.rollout import Rollout, sample_rollout
from rl.equations.advantages import gae, group_advantages, leave_one_out_advantages, whiten
from rl.equations.kl import reward_penalty
from rl.kd_ppo_engine import (
    kd_token_rewards,
    rewards_of_tokens,
    teacher_reward,
)
from rl.ppo_engine import PPOConfig
from rl.rewards.sources import RuleReward
from rl.rewards.teacher import TeacherReward
from rl.training.actor_critic import Targets, gae_targets, ppo_loss
from rl.training.value_model import ValueModel

KD_PPO = engine_named("kd_ppo")
CONFIG, run = KD_PPO.config, KD_PPO.run


@pytest.fixture
def gradients(monkeypatch) -> list[torch.Tensor]:
    """The flat gradient of each optimizer step, as it reaches the clip."""
    return seen_gradients(monkeypatch)


@pytest.fixture
def seen_rewards(monkeypatch) -> list[torch.Tensor]:
    """The token rewards (N, T) of every step."""
    seen: list[torch.Tensor] = []
    real = kd_ppo_engine.gae_targets

    def spy(config, rollout, token_rewards, old_log_probs, value_model, **options):
        seen.append(token_rewards)
        return real(config, rollout, token_rewards, old_log_probs, value_model, **options)

    monkeypatch.setattr(kd_ppo_engine, "gae_targets", spy)
    return seen


def some_rollout(policy: GPT) -> Rollout:
    params = SamplingParams(max_new_tokens=8)
    return sample_rollout(policy, LETTERS, PROMPTS, params, 1, torch.Generator().manual_seed(3))


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
    got = kd_token_rewards(
        token_parts.sum(1), token_parts if dense else None, OLD, REF, MASK, kl_coef=0.1, bonus=4.0
    )
    torch.testing.assert_close(got, torch.tensor(expected))
    total = token_parts.sum(1) + 4 - 0.1 * torch.where(MASK, OLD - REF, 0.0).sum(1)
    torch.testing.assert_close(got.sum(1), total)  # the same for either placement
    plain = kd_token_rewards(
        token_parts.sum(1), token_parts if dense else None, OLD, None, MASK, kl_coef=0.0
    )
    assert plain.sum(1).tolist() == pytest.approx([-6.0, -0.5])


def test_a_replaced_reward_stands_at_the_last_token():
    """One row's tokens are NaN: its reward is the number that was put in its place."""
    parts = torch.where(MASK, P, 0.0).clone()
    parts[0, 1] = torch.nan
    rewards = torch.tensor([-7.0, -0.5])
    got = kd_token_rewards(rewards, parts, OLD, None, MASK, kl_coef=0.0)
    assert got.tolist() == [[0, 0, -7], [-0.5, 0, 0]]


@pytest.mark.parametrize("form", ["reverse_kl", "sum"])
@pytest.mark.parametrize("placement", ["dense", "terminal"])
def test_the_rewards_of_a_run_by_unpadded_rows(seen_rewards, form, placement):
    """Two steps away from the start, so that teacher, student and reference are three models."""
    start = small_gpt()
    policy = copy.deepcopy(start)
    options = dict(teacher_reward=form, placement=placement, kl_coef=0.3)
    reward = NotedTeacher(teacher_reward(replace(CONFIG, **options), TEACHER))
    sampler: list[GPT] = []

    def validate(policy: GPT, reference: GPT, step: int) -> dict[str, float]:
        sampler.append(copy.deepcopy(policy))
        return {}

    rows = run(policy, reward, steps=3, eval_every=1, validate=validate, **options)
    rollout, token_rewards = reward.rollouts[2], seen_rewards[2]
    totals = []
    for i in range(len(rollout)):
        prompt, response = tokens_of(rollout, i)
        with torch.no_grad():
            p, q, r = (chosen(m, prompt, response) for m in (TEACHER, sampler[1], start))
        parts = [
            float(a - b) if form == "reverse_kl" else float(a) for a, b in zip(p, q, strict=True)
        ]
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
        with pytest.raises(ValueError, match="placement dense takes a teacher's reward apart"):
            rewards_of_tokens(CONFIG, reward, rollout)
        assert rewards_of_tokens(replace(CONFIG, placement="terminal"), reward, rollout) is None
    parts = rewards_of_tokens(CONFIG, teacher_reward(CONFIG, TEACHER), rollout)
    torch.testing.assert_close(parts.sum(1), teacher_reward(CONFIG, TEACHER)(rollout))


# The first step


def test_at_the_first_step_ratio_is_one_and_kl_is_zero():
    (row,) = run(small_gpt(), steps=1, minibatches=2)
    assert row["ratio_error_at_start"] < 1e-5
    assert abs(row["kl"]) < 1e-6 and abs(row["kl_k3"]) < 1e-6
    assert row["reward"] == pytest.approx(-row["reverse_kl"], rel=1e-5)
    (row,) = run(small_gpt(), steps=1, value_coef=0.0)
    assert row["clip_high_fraction"] == row["clip_low_fraction"] == 0
    assert abs(row["loss"]) < 1e-5 and row["grad_norm"] > 0.01


def first_gradient(policy: GPT, rollout: Rollout, placement: str, pretraining_coef: float):
    """Row by row, unpadded, gamma = lambda = 1 and a critic of zeros: reward to go, whitened."""
    policy = copy.deepcopy(policy)
    to_go, terms = [], []
    for i in range(len(rollout)):
        prompt, response = tokens_of(rollout, i)
        p, q = (chosen(model, prompt, response) for model in (TEACHER, policy))
        parts = [float(a) - b.item() for a, b in zip(p, q, strict=True)]
        if placement == "terminal":
            parts = [0.0] * (len(parts) - 1) + [sum(parts)]
        to_go += [sum(parts[t:]) for t in range(len(parts))]
        terms += q
    mean = sum(to_go) / len(to_go)
    std = math.sqrt(sum((x - mean) ** 2 for x in to_go) / (len(to_go) - 1) + 1e-8)
    loss = -sum((a - mean) / std * term for a, term in zip(to_go, terms, strict=True)) / len(terms)
    text = Texts().batch(0)
    pairs = zip(text.tokens, text.lengths.tolist(), strict=True)
    rows = [row[: length + 1].tolist() for row, length in pairs]
    terms = [term for row in rows for term in chosen(policy, row[:1], row[1:])]
    loss = loss - pretraining_coef * sum(terms) / len(terms)
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])


@pytest.mark.parametrize("placement", ["dense", "terminal"])
@pytest.mark.parametrize("pretraining_coef", [0.0, 0.3])
def test_the_first_gradient_is_that_of_reinforce(gradients, placement, pretraining_coef):
    start, reward = small_gpt(), NotedTeacher(teacher_reward(CONFIG, TEACHER))
    run(
        copy.deepcopy(start), reward, steps=1, gae_lambda=1.0, placement=placement,
        pretraining_coef=pretraining_coef,
    )  # fmt: skip
    (rollout,) = reward.rollouts
    assert len(set(rollout.lengths.tolist())) > 1, "all responses are of one length"
    expected = first_gradient(start, rollout, placement, pretraining_coef)
    assert float(expected.abs().max()) > 0.01
    torch.testing.assert_close(gradients[0], expected, rtol=2e-4, atol=2e-6)


# The loss


def test_the_loss_is_the_worked_example():
    """Policy 0.176126 + 0.1 * value 0.0625 - 0.01 * entropy 1; the padded column counts nowhere."""
    old = torch.tensor([[-1.0, -1.5, 7.0]])
    mask = torch.tensor([[True, True, False]])
    targets = Targets(
        old_log_probs=old,
        old_values=torch.tensor([[0.5, 0.4, 7.0]]),
        advantages=torch.tensor([[0.5, -1.0, 7.0]]),
        returns=torch.tensor([[0.0, 1.0, 7.0]]),
    )
    scores = TokenScores(torch.tensor([[-0.9, -1.6, -3.0]]), torch.tensor([[1.2, 0.8, 9.0]]))
    values = torch.tensor([[0.2, 0.7, -9.0]])
    config = replace(CONFIG, value_coef=0.1, entropy_coef=0.01, value_clip=0.2)
    losses = ppo_loss(config, scores, values, targets, mask, tokens=2)
    assert float(losses.total) == pytest.approx(0.172376, abs=1e-6)
    half = ppo_loss(config, scores, values, targets, mask, tokens=4)
    assert float(half.total) == pytest.approx(0.172376 / 2, abs=1e-6)
    alone = replace(config, value_coef=0.0, entropy_coef=0.0)
    policy_loss = ppo_loss(alone, scores, values, targets, mask, tokens=2).total
    assert float(policy_loss) == pytest.approx(0.176126, abs=1e-6)


def test_returns_are_values_plus_raw_advantages():
    """Before the whitening (a V for every state: (N, T))."""
    policy = small_gpt()
    rollout = some_rollout(policy)
    critic = ValueModel.from_policy(policy)
    torch.nn.init.normal_(critic.head.weight, std=0.5, generator=torch.Generator().manual_seed(1))
    mask = rollout.response_mask
    rewards = torch.randn(mask.shape, generator=torch.Generator().manual_seed(2))
    config = replace(CONFIG, gamma=0.9, gae_lambda=0.8)
    targets = gae_targets(config, rollout, rewards, rollout.log_probs, critic)
    assert targets.old_values.shape == mask.shape
    for i, length in enumerate(rollout.lengths.tolist()):
        v = [*targets.old_values[i, :length].tolist(), 0.0]
        for t in range(length):
            raw = sum(
                (0.9 * 0.8) ** (u - t) * (float(rewards[i, u]) + 0.9 * v[u + 1] - v[u])
                for u in range(t, length)
            )
            assert float(targets.returns[i, t]) == pytest.approx(raw + v[t], rel=1e-4, abs=1e-5)
    valid = targets.advantages[mask]
    assert float(valid.mean()) == pytest.approx(0, abs=1e-5)
    assert float(valid.std()) == pytest.approx(1, abs=1e-4)


# What is left when everything of its own is off: PPO


def test_terminal_without_text_is_ppo_bit_for_bit():
    """The same reward object in both engines; epochs, minibatches and micro-batches."""
    shared = dict(
        steps=4, updates_per_batch=2, minibatches=2, micro_batch_size=5, value_clip=0.2,
        entropy_coef=0.01, prompts_per_step=16, group_size=1, lr=1e-2, critic_lr=1e-2, warmup=1,
        kl_coef=0.02, max_new_tokens=8, eval_every=100, max_norm=1e9, checkpoint_every=1000,
        stop_kl=None,
    )  # fmt: skip
    one, other = small_gpt(), small_gpt()
    reward = teacher_reward(CONFIG, TEACHER)
    rows = run(one, reward, placement="terminal", **shared)
    plain = PPOConfig(**shared)
    other_rows = ppo_engine.train(plain, other, LETTERS, reward, PROMPTS, MetricLog(4))
    assert numbers(rows) == numbers(other_rows) and rows[-1]["kl"] > 0.01
    assert torch.equal(weights(one), weights(other))
    dense = small_gpt()
    run(dense, reward, placement="dense", **shared)
    assert not torch.equal(weights(dense), weights(one))


def test_a_rule_may_be_the_terminal_reward():
    rule = RuleReward(lambda record, text, ended: text.count("a") / 8, "share of a")
    rows = run(small_gpt(), rule, placement="terminal", steps=25)
    assert rows[-1]["reward"] > rows[0]["reward"] + 0.2


# L_PT: a loss that works, and a bonus that does nothing


def test_a_constant_added_to_every_reward_is_cancelled_by_every_baseline():
    """z-scores, leave-one-out, and whitened GAE at gamma = lambda = 1; with lambda < 1 it is not."""
    generator = torch.Generator().manual_seed(0)
    c = -13.0
    rewards = torch.randn(12, generator=generator, dtype=torch.float64)
    for baseline in (group_advantages, leave_one_out_advantages):
        torch.testing.assert_close(baseline(rewards + c, 4), baseline(rewards, 4))
    parts, values = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)
    mask = torch.arange(5) < torch.tensor([[5], [2], [3]])
    parts = torch.where(mask, parts, 0.0)

    def advantages(bonus: float, decay: float) -> torch.Tensor:
        old = torch.zeros_like(parts)
        rewards = kd_token_rewards(parts.sum(1), parts, old, None, mask, kl_coef=0.0, bonus=bonus)
        return gae(rewards, values, mask, 1.0, decay)[0]

    whitened = [whiten(advantages(bonus, 1.0), mask) for bonus in (0.0, c)]
    torch.testing.assert_close(*whitened, rtol=1e-10, atol=1e-10)
    shift = (advantages(c, 1.0) - advantages(0.0, 1.0))[mask]
    torch.testing.assert_close(shift, torch.full_like(shift, c))
    shift = advantages(c, 0.9) - advantages(0.0, 0.9)  # c (gamma lambda)^(L - 1 - t)
    torch.testing.assert_close(shift[0], c * 0.9 ** torch.arange(4, -1, -1).double())


def test_the_bonus_reaches_no_gradient_and_the_loss_does(gradients):
    """A first step at gamma = lambda = 1: with the bonus the gradient is the same to rounding."""
    first = {}
    for name, options in {
        "nothing": dict(pretraining_coef=0.0),
        "bonus": dict(pretraining_coef=5.0, pt_mode="reward_bonus"),
        "loss": dict(pretraining_coef=5.0, pt_mode="loss"),
    }.items():
        gradients.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (row,) = run(small_gpt(), steps=1, gae_lambda=1.0, **options)
        first[name] = gradients[0]
        assert name == "nothing" or row["pretraining_loss"] > 1
    torch.testing.assert_close(first["bonus"], first["nothing"], rtol=1e-3, atol=1e-5)
    assert float((first["loss"] - first["nothing"]).abs().max()) > 0.1
    text = small_gpt()
    (5.0 * pretraining.language_model_loss(text, Texts().batch(0))).backward()
    alone = torch.cat([parameter.grad.flatten() for parameter in text.parameters()])
    torch.testing.assert_close(first["loss"] - first["nothing"], alone, rtol=1e-4, atol=1e-5)


def test_the_bonus_is_minus_lambda_times_the_text_loss(seen_rewards):
    """One number, at the last token of every response."""
    for options in (dict(pretraining_coef=0.0), dict(pretraining_coef=3.0)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (row,) = run(small_gpt(), steps=1, pt_mode="reward_bonus", **options)
    plain, bonus = seen_rewards
    difference = bonus - plain
    expected = pretraining.held_out_loss(small_gpt(), [Texts().batch(0)])
    assert row["pretraining_loss"] == pytest.approx(expected)
    values = difference.sum(1)
    torch.testing.assert_close(values, torch.full_like(values, -3 * expected))
    assert ((difference.abs() > 1e-4).sum(1) == 1).all()


def test_the_engine_says_that_the_bonus_does_nothing():
    with pytest.warns(UserWarning, match="nothing is protected. Use pt_mode loss"):
        run(small_gpt(), steps=1, pt_mode="reward_bonus", pretraining_coef=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(small_gpt(), steps=1, pt_mode="reward_bonus", pretraining_coef=0.0)
        run(small_gpt(), steps=1, pretraining_coef=1.0)


def test_the_text_is_fresh_at_every_optimizer_step_and_only_the_policys():
    texts = Texts()
    run(
        small_gpt(), steps=2, updates_per_batch=2, minibatches=3, pretraining_coef=1.0, corpus=texts
    )
    assert texts.asked == list(range(12))
    texts.asked.clear()
    with pytest.warns(UserWarning):
        run(
            small_gpt(), steps=2, updates_per_batch=2, minibatches=3, pretraining_coef=1.0,
            pt_mode="reward_bonus", corpus=texts,
        )  # fmt: skip
    assert texts.asked == [0, 6]
    run(small_gpt(), steps=1, corpus=texts)
    assert len(texts.asked) == 2
    with pytest.raises(ValueError, match="pretraining_coef needs a corpus"):
        run(small_gpt(), steps=1, pretraining_coef=1.0, corpus=None)


def test_only_the_loss_keeps_what_was_learned():
    """A student that knows the text of a, b and c; after the distillation it is asked again."""
    student = small_gpt()
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2)
    for index in range(60):
        loss = pretraining.language_model_loss(student, Texts().batch(index + 5000))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    held_out = Texts().held_out_batches()
    before = pretraining.held_out_loss(student, held_out)
    after = {}
    for mode in ("loss", "reward_bonus"):
        policy = copy.deepcopy(student)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(policy, steps=30, lr=3e-3, kl_coef=0.0, pretraining_coef=1.0, pt_mode=mode)
        after[mode] = pretraining.held_out_loss(policy, held_out)
    assert before < 1.3  # log 3 is 1.1
    assert after["loss"] < before + 0.15
    assert after["reward_bonus"] > before + 0.3


# Learning

LEARNING = dict(
    prompts_per_step=32, updates_per_batch=2, minibatches=1, steps=30, lr=5e-3, kl_coef=0.0
)


@pytest.mark.parametrize(("placement", "limit"), [("dense", 0.6), ("terminal", 1.3)])
def test_it_learns_the_teacher(placement, limit):
    rows = run(small_gpt(), placement=placement, **LEARNING)
    assert rows[0]["reverse_kl"] > 2.3
    assert sum(row["reverse_kl"] for row in rows[-5:]) / 5 < limit
    assert rows[-1]["teacher_log_prob"] > rows[0]["teacher_log_prob"] + 0.5
    assert rows[-1]["entropy"] > 1.2  # the teacher's is 1.56


def test_it_does_not_learn_with_the_sign_flipped():
    class Against(TeacherReward):
        def token_rewards(self, rollout: Rollout) -> torch.Tensor:
            return -super().token_rewards(rollout)

    against = Against(TEACHER, CONFIG, aggregate="sum", reverse_kl=True)
    rows = run(small_gpt(), against, **(LEARNING | dict(steps=20)))
    assert rows[-1]["reverse_kl"] > rows[0]["reverse_kl"] + 1


def test_log_p_alone_ends_in_the_shortest_text():
    row = run(small_gpt(), teacher_reward="sum", **LEARNING)[-1]
    assert row["response_length"] < 2.5 and row["entropy"] < 1


def test_the_critic_learns():
    rows = run(small_gpt(), steps=20, lr=1e-5, updates_per_batch=4)
    assert rows[0]["explained_variance"] == pytest.approx(0, abs=1e-3)  # a critic of zeros
    assert rows[-1]["value_loss"] < 0.7 * rows[0]["value_loss"]
    assert rows[-1]["explained_variance"] > 0.1


# Refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gamma": 1.1}, "gamma and gae_lambda must be in 0..1"),
        ({"gae_lambda": -0.1}, "gamma and gae_lambda must be in 0..1"),
        ({"value_clip": 0.0}, "value_clip must be positive, or None"),
        ({"pretraining_coef": -1.0}, "pretraining_coef must not be negative"),
        ({"pretraining_batch_size": 0}, "pretraining_batch_size must be at least 1"),
        ({"reward": "model"}, "the teacher is the reward"),
        ({"reward_model": (Path("x"),)}, "the teacher is the reward"),
    ],
)
def test_what_cannot_work_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **changes)


# The penalty, the KL in the loss, Monte-Carlo targets and a reference that moves


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # k1 is 0.5, -0.5 and 0.5; the teacher's part and the bonus as in the example above
        ("k1", [-1.05, -1.95, 0.95]),
        ("absolute", [-1.05, -2.05, 0.95]),
        ("squared", [-1.0125, -2.0125, 0.9875]),
    ],
)
@pytest.mark.parametrize("dense", [True, False])
def test_the_named_penalty_is_taken_off_every_tokens_reward(name, expected, dense):
    parts = torch.where(MASK, P, 0.0)
    got = kd_token_rewards(
        parts.sum(1), parts if dense else None, OLD, REF, MASK, kl_coef=0.1, bonus=4.0,
        penalty=reward_penalty(name),
    )  # fmt: skip
    if not dense:  # the teacher's part moves to the last token
        moved = [1.0, 2.0, -3.0]
        expected = [a + b for a, b in zip(expected, moved, strict=True)]
    assert got[0].tolist() == pytest.approx(expected, abs=1e-5)


class Noted(TeacherReward):
    """Keeps every rollout that it scores."""

    def __init__(self, reward: TeacherReward) -> None:
        options = dict(aggregate=reward.aggregate, reverse_kl=reward.reverse_kl)
        super().__init__(reward.teacher, reward.config, **options)
        self.rollouts: list[Rollout] = []

    def with_metrics(self, rollout: Rollout):
        self.rollouts.append(rollout)
        return super().with_metrics(rollout)


def test_the_penalty_of_a_run_is_the_one_of_the_flag(seen_rewards):
    """After two steps: the same sampler and the same samples, so only the penalty differs."""
    start = small_gpt()
    options = dict(steps=2, kl_coef=0.3, lr=0.1)
    rewards = {}
    for name in ("k1", "absolute"):
        noted = Noted(teacher_reward(CONFIG, TEACHER))
        seen_rewards.clear()
        run(copy.deepcopy(start), noted, kl_penalty=name, **options)
        rewards[name] = (noted.rollouts[1], seen_rewards[1])
    (first, plain), (second, absolute) = rewards.values()
    assert first.responses == second.responses
    with torch.no_grad():
        ref = kd_ppo_engine.rollout_log_probs(start, first, CONFIG)
    k1 = torch.where(first.response_mask, first.log_probs - ref, 0.0)
    assert float(k1.min()) < -0.01
    torch.testing.assert_close(plain - absolute, 0.3 * (k1.abs() - k1), rtol=1e-3, atol=1e-4)


def test_the_kl_in_the_loss_holds_the_student_back():
    options = dict(steps=10, kl_coef=0.0, stop_kl=1e9)
    free, held = run(small_gpt(), **options), run(small_gpt(), kl_loss_coef=3.0, **options)
    assert held[-1]["kl"] < free[-1]["kl"] / 2


def test_the_critic_can_learn_from_monte_carlo_returns():
    """Dense rewards, lambda 0.5: the critic's target is the whole return to go, by loops."""
    policy = small_gpt()
    rollout, critic = some_rollout(policy), ValueModel.from_policy(policy)
    torch.nn.init.normal_(critic.head.weight, std=0.5, generator=torch.Generator().manual_seed(1))
    rewards = torch.randn(
        rollout.response_mask.shape, generator=torch.Generator().manual_seed(2)
    ).masked_fill(~rollout.response_mask, 0.0)
    config = replace(CONFIG, gae_lambda=0.5, critic_lambda=1.0)
    returns = gae_targets(config, rollout, rewards, rollout.log_probs, critic).returns
    for i, length in enumerate(rollout.lengths.tolist()):
        for t in range(length):
            assert float(returns[i, t]) == pytest.approx(float(rewards[i, t:].sum()), abs=1e-5)


@pytest.mark.parametrize(
    ("update", "share"),
    [("never", [0, 0, 0]), ("per_iteration", [0, 1, 1]), ("mix", [0, 0.25, 0.25])],
)
def test_the_reference_moves_every_k_batches(update, share):
    """Every 2 of 3 batches: after the second, alpha * policy + (1 - alpha) * reference."""
    start = small_gpt()
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def validate(policy: GPT, reference: GPT, step: int) -> dict[str, float]:
        seen.append((weights(policy), weights(reference)))
        return {}

    rows = run(
        copy.deepcopy(start), steps=3, eval_every=1, validate=validate, reference_update=update,
        reference_every=2, reference_mix=0.25,
    )  # fmt: skip
    then = seen[1][0]  # the policy after two batches
    for (_, reference), part in zip(seen, share, strict=True):
        torch.testing.assert_close(reference, part * then + (1 - part) * weights(start))
    # The third batch is sampled from that policy, and its KL measured from where the reference is.
    assert (abs(rows[2]["kl"]) < 1e-5) == (update == "per_iteration")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(kl_loss_coef=0.1), "would count the same KL twice"),
        (dict(reference_update="mix", kl_coef=0.0), "reference_update moves what a KL penalty"),
        (dict(reference_every=0), "reference_every must be at least 1"),
        (dict(reference_mix=0.0), "reference_mix above 0 and at most 1"),
    ],
)
def test_the_new_flags_refuse_what_cannot_work(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(CONFIG, **changes)
    replace(CONFIG, reference_update="mix", kl_coef=0.0, kl_loss_coef=0.1)  # a KL to hold on to
