"""PPO: its loss, its targets, its critic and its KL."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from engines import DIVERSE, engine_named, small_gpt, some_rollout
from toys import LETTERS, seeded, weights
from watched import Call, calls_of

from gpt.log_probs import TokenScores
from gpt.model import GPT
from rl import loop, ppo_engine
from rl.actor_critic import ValueModel, gae_update, ppo_loss, train_critic
from rl.batches.rollout import CriticUpdate
from rl.loop import Run
from rl.rewards.reward import RuleReward
from rl.run.metrics import UpdateMeter

PPO = engine_named("ppo")
CONFIG, run = PPO.config, PPO.run

# The loss and its targets

OLD = torch.tensor([[-1.0, -1.5, 7.0]])
MASK = torch.tensor([[True, True, False]])
WORKED = CriticUpdate(
    old=OLD, ref=None, advantages=torch.tensor([[0.5, -1.0, 7.0]]), mask=MASK, td_errors=OLD,
    old_values=torch.tensor([[0.5, 0.4, 7.0]]), returns=torch.tensor([[0.0, 1.0, 7.0]]),
)  # fmt: skip
WORKED_SCORES = TokenScores(torch.tensor([[-0.9, -1.6, -3.0]]), torch.tensor([[1.2, 0.8, 9.0]]))


def test_the_loss_is_the_worked_example():
    """Policy 0.176126 + 0.1 * value 0.0625 - 0.01 * entropy 1; the padded column counts nowhere."""
    config = replace(CONFIG, entropy_coef=0.01, value_clip=0.2)
    values = torch.tensor([[0.2, 0.7, -9.0]])
    losses = ppo_loss(config, WORKED_SCORES, values, WORKED, tokens=2)
    assert float(losses.total) == pytest.approx(0.172376, abs=1e-6)
    assert float(losses.policy[MASK].mean()) == pytest.approx(0.176126, abs=1e-6)
    assert float(losses.value[MASK].mean()) == pytest.approx(0.0625, abs=1e-6)
    assert losses.value_clipped.tolist() == [[True, True, False]]
    near = ppo_loss(config, WORKED_SCORES, torch.tensor([[0.6, 0.7, -9.0]]), WORKED, tokens=2)
    assert near.value_clipped.tolist() == [[False, True, False]]  # 0.6 is within 0.2 of 0.5
    half = ppo_loss(config, WORKED_SCORES, values, WORKED, tokens=4).total
    assert float(half) == pytest.approx(0.172376 / 2, abs=1e-6)


def test_the_entropy_bonus_has_a_gradient():
    """-c_H over the two tokens that count."""
    entropy = WORKED_SCORES.entropy.clone().requires_grad_()
    config = replace(CONFIG, entropy_coef=0.01)
    scores = TokenScores(WORKED_SCORES.log_probs, entropy)
    ppo_loss(config, scores, torch.zeros(1, 3), WORKED, tokens=2).total.backward()
    torch.testing.assert_close(entropy.grad, torch.tensor([[-0.005, -0.005, 0.0]]))


def random_critic(policy: GPT) -> ValueModel:
    critic = ValueModel.from_policy(policy)
    torch.nn.init.normal_(critic.head.weight, std=0.5, generator=seeded(1))
    return critic


def test_targets_are_gae_whitened_over_the_batch():
    """By the double sum over every row; the returns are those from before the whitening."""
    policy = small_gpt()
    rollout, critic = some_rollout(policy), random_critic(policy)
    rewards = torch.randn(rollout.response_mask.shape, generator=seeded(2))
    config = replace(CONFIG, gamma=0.9, gae_lambda=0.8)
    values, mask = critic(rollout.sequences).detach(), rollout.response_mask
    targets = gae_update(config, rewards, rollout.log_probs, None, values, mask)
    raw = torch.zeros_like(values)
    for i, length in enumerate(rollout.lengths.tolist()):
        for t in range(length):
            for u in range(t, length):
                after = values[i, u + 1] if u + 1 < length else 0.0
                delta = rewards[i, u] + 0.9 * after - values[i, u]
                raw[i, t] += (0.9 * 0.8) ** (u - t) * delta
    expected = (raw - raw[mask].mean()) / raw[mask].std()
    torch.testing.assert_close(targets.advantages[mask], expected[mask], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(targets.returns[mask], (raw + values)[mask], rtol=1e-4, atol=1e-5)
    assert float(targets.advantages[~mask].abs().sum()) == 0


@pytest.fixture
def all_targets(monkeypatch) -> list[Call]:
    """The calls of `gae_update`: what it is given of every step, and its targets."""
    return calls_of(monkeypatch, ppo_engine, "gae_update")


def test_rewards_of_tokens_are_the_score_less_a_missing_eos_and_k1(monkeypatch, all_targets):
    """1.5 a letter, and 7 less for a response that was cut off; k1 is taken off at every token."""
    reward = RuleReward(lambda record, text, ended: 1.5 * len(text), "letters")
    options = dict(max_new_tokens=4, missing_eos_penalty=7.0)
    sampled = calls_of(monkeypatch, loop, "sample_rollout")
    run(small_gpt(), reward, steps=3, kl_coef=0.3, **options)
    rollout = sampled[-1].result
    _, token_rewards, old_log_probs, ref, *_ = all_targets[-1].args
    assert float((old_log_probs - ref).min()) < -0.01, "k1 is nowhere negative"
    kinds = set()
    for i, length in enumerate(rollout.lengths.tolist()):
        ended = bool(rollout.has_eos[i])
        score = 1.5 * len(rollout.responses[i]) - (0.0 if ended else 7.0)
        kinds.add((ended, score))
        expected = [-0.3 * float(old_log_probs[i, t] - ref[i, t]) for t in range(length)]
        expected[-1] += score
        assert token_rewards[i, :length].tolist() == pytest.approx(expected, abs=1e-5)
    assert len(kinds) > 3 and {ended for ended, _ in kinds} == {True, False}


def test_whitened_rewards_have_a_spread_of_one_and_the_mean_that_they_had(all_targets):
    for whitened in (False, True):
        run(small_gpt(), DIVERSE, steps=1, whiten_rewards=whitened)
    (_, plain, *_, mask), (_, scaled, *_) = (call.args for call in all_targets)
    x, y = plain[mask].double(), scaled[mask].double()
    torch.testing.assert_close(y, (x - x.mean()) / x.std() + x.mean(), rtol=1e-5, atol=1e-5)
    assert x.std() > 2 and x.mean() > 2 and not scaled[~mask].any()


# Learning


def test_the_critic_learns_to_predict_the_return():
    """A reward that the prompt alone decides: after a while the critic explains most of it."""
    by_prompt = RuleReward(lambda record, text, ended: float(len(record.prompt)), "length")
    options = dict(
        lr=1e-5, critic_lr=3e-3, value_clip=None, kl_coef=0.0, updates_per_batch=4,
        max_grad_norm=1.0,
    )  # fmt: skip
    rows = run(small_gpt(), by_prompt, steps=30, **options)
    assert rows[0]["explained_variance"] == pytest.approx(0, abs=1e-3)  # a critic of zeros
    assert rows[-1]["explained_variance"] > 0.6
    assert rows[-1]["value_loss"] < rows[0]["value_loss"] / 4


def test_a_step_without_a_gradient_moves_neither_model():
    """AdamW's decay would."""
    policy, critic = small_gpt(), random_critic(small_gpt())
    training = Run(CONFIG, policy, LETTERS)
    train_critic(training, critic, 0.1)
    before = weights(policy), weights(critic)
    for parameter in (*policy.parameters(), *critic.parameters()):
        parameter.grad = torch.zeros_like(parameter)
    training.optimizer_step()
    assert torch.equal(weights(policy), before[0]) and torch.equal(weights(critic), before[1])


def test_the_epochs_end_once_the_policy_has_moved(gradients, monkeypatch):
    """No step with the minibatch that is too far off, and no minibatch after it."""
    forwards = calls_of(monkeypatch, loop, "token_scores")
    options = dict(steps=1, updates_per_batch=6, lr=5e-2)
    run(small_gpt(), **options)
    assert len(gradients) == 12 and len(forwards) == 6
    gradients.clear(), forwards.clear()
    (row,) = run(small_gpt(), target_kl=1e-4, **options)
    assert 2 <= len(gradients) < 12
    assert len(forwards) == len(gradients) // 2 + 1
    assert row["approx_kl"] > 0


def test_the_epochs_end_above_one_and_a_half_times_the_target(gradients, monkeypatch):
    """KL(old || new) of every minibatch is given: 3 is 1.5 * 2 itself and not above it."""
    kls = iter([0.0, 2.5, 3.0, 3.5, 0.0, 0.0])
    monkeypatch.setattr(UpdateMeter, "approx_kl", property(lambda meter: next(kls)))
    run(small_gpt(), steps=1, updates_per_batch=6, target_kl=2.0)
    assert len(gradients) == 2 * 3  # of policy and critic


# The KL in the loss and in the reward, and what is logged of both models


@pytest.mark.parametrize("name", ["ppo", "kd_ppo"])
def test_a_kl_in_the_loss_alone_asks_the_reference(name):
    options = dict(kl_coef=0.0, stop_kl=None, steps=1)
    for coef, asked in ((0.0, False), (0.3, True)):
        (row,) = engine_named(name).run(small_gpt(), kl_loss_coef=coef, **options)
        assert ("kl" in row) == asked


def test_the_kl_in_the_loss_is_its_mean_over_the_tokens():
    reference = torch.tensor([[-1.4, -1.0, 7.0]])
    config = replace(CONFIG, entropy_coef=0.01, value_clip=0.2, kl_coef=0.0, kl_loss_coef=0.3)
    expected = (0.5**2 / 2 + 0.6**2 / 2) / 2  # log pi - log pi_ref is 0.5 and -0.6
    values, targets = torch.tensor([[0.2, 0.7, -9.0]]), replace(WORKED, ref=reference)
    losses = ppo_loss(config, WORKED_SCORES, values, targets, tokens=2)
    assert float(losses.total) == pytest.approx(0.172376 + 0.3 * expected, abs=1e-6)
    assert float(losses.policy[MASK].mean()) == pytest.approx(0.176126, abs=1e-6)
    with pytest.raises(ValueError):
        ppo_loss(config, WORKED_SCORES, values, WORKED, tokens=2)
