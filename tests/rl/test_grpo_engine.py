"""GRPO: its first gradient, its loss, and what learning does to the numbers."""

from __future__ import annotations

import copy
import math
import statistics
from dataclasses import replace

import pytest
import torch
from engines import DIVERSE, LETTERS, SHARE_OF_A, Noted, engine_named, seen_gradients, small_gpt

from gpt.model import GPT
from rl import grpo_engine
from rl.batches.rollout import Rollout
from rl.equations.kl import k3
from rl.equations.losses import clip_acted, likelihood_ratio
from rl.grpo_engine import grpo_loss
from rl.rewards.sources import RuleReward

GRPO = engine_named("grpo")
CONFIG, run = GRPO.config, GRPO.run


@pytest.fixture
def gradients(monkeypatch) -> list[torch.Tensor]:
    """The flat gradient of each optimizer step, as it reaches the clip."""
    return seen_gradients(monkeypatch)


# The first step


def reinforce_gradient(policy: GPT, rollout: Rollout, rows: list[int], values: list[float]):
    """-1/n sum_i A_i 1/L_i sum_t grad log pi(y_t), row by row, unpadded; A by `statistics`."""
    policy = copy.deepcopy(policy)
    loss = torch.zeros(())
    for i in rows:
        group = values[i // 4 * 4 : i // 4 * 4 + 4]
        spread = statistics.stdev(group)
        advantage = (values[i] - statistics.mean(group)) / (spread + 1e-4) if spread else 0.0
        prompt = LETTERS.encode(rollout.records[i].prompt)
        response = rollout.response_tokens[i][rollout.response_mask[i]].tolist()
        log_probs = policy(torch.tensor([prompt + response]))[0].log_softmax(-1)
        chosen = [log_probs[len(prompt) - 1 + t, token] for t, token in enumerate(response)]
        loss = loss - advantage * sum(chosen) / len(response) / len(rows)
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])


@pytest.mark.parametrize("kl_coef", [0.0, 0.5])
def test_the_first_gradient_is_that_of_reinforce(monkeypatch, gradients, kl_coef):
    """For any kl_coef: at pi = pi_ref the gradient of k3 is 0. The minibatches are given."""
    halves = [[4, 5, 6, 7, 12, 13, 14, 15], [0, 1, 2, 3, 8, 9, 10, 11]]
    monkeypatch.setattr(
        grpo_engine, "minibatches", lambda *args: [torch.tensor(half) for half in halves]
    )
    start, reward = small_gpt(), Noted(DIVERSE)
    run(copy.deepcopy(start), reward, steps=1, kl_coef=kl_coef)
    (rollout,) = reward.rollouts
    assert len(set(rollout.lengths.tolist())) > 1, "all responses are of one length"
    values = DIVERSE(rollout).tolist()
    expected = reinforce_gradient(start, rollout, halves[0], values)
    assert float(expected.abs().max()) > 0.01
    torch.testing.assert_close(gradients[0], expected, rtol=1e-4, atol=1e-6)
    later = reinforce_gradient(start, rollout, halves[1], values)  # the policy has moved since
    assert float((gradients[1] - later).abs().max()) > 1e-4


def test_the_loss_adds_the_kl_inside_the_same_mean():
    """1/rows sum_i 1/L_i sum_t (-min(...) + beta k3), by loops; empty rows add nothing.

    Ratios inside and outside of 0.8 to 1.3, for either sign of the advantage.
    """
    ratio = torch.tensor([[1.0, 2.0, 0.5, 9], [0.5, 2.0, 1.1, 9], [9, 9, 9, 9]])
    old = torch.full((3, 4), -2.0)
    new, reference = old + ratio.log(), old + 0.3
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()
    advantages = [1.5, -0.5, 9.0]
    config = replace(CONFIG, clip_low=0.2, clip_high=0.3)
    surrogate = penalty = 0.0
    for i, length in ((0, 3), (1, 2)):
        for t in range(length):
            rho, delta = float(ratio[i, t]), float(reference[i, t] - new[i, t])
            clipped = min(max(rho, 0.8), 1.3)
            surrogate -= min(rho * advantages[i], clipped * advantages[i]) / length / 5
            penalty += 0.4 * (math.exp(delta) - delta - 1) / length / 5
    given = (new, old, reference, torch.tensor(advantages)[:, None], mask)
    loss = grpo_loss(config, *given, kl_coef=0.4, rows=5)
    assert float(loss) == pytest.approx(surrogate + penalty, rel=1e-5)
    was_clipped = clip_acted(likelihood_ratio(new, old), given[3], 0.2, 0.3)
    assert was_clipped[mask].tolist() == [False, True, False, True, False]
    without = grpo_loss(config, new, old, None, *given[3:], kl_coef=0.4, rows=5)
    assert float(without) == pytest.approx(surrogate, rel=1e-5)


def test_groups_without_spread_contribute_the_kl_alone():
    """Equal rewards in the second group: its rows add beta * k3, in value and in gradient."""
    new = -torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
    new.requires_grad_()
    old, reference = new.detach() - 0.05, new.detach() - 0.3
    mask = torch.ones(4, 3, dtype=torch.bool)
    advantages = grpo_engine.group_advantages(torch.tensor([0.0, 1, 0.7, 0.7]), 2)
    loss = grpo_loss(CONFIG, new, old, reference, advantages, mask, kl_coef=0.02, rows=4)
    (gradient,) = torch.autograd.grad(loss, new)
    (alone,) = torch.autograd.grad(0.02 * k3(new, reference).sum() / 12, new)
    torch.testing.assert_close(gradient[2:], alone[2:])
    assert float((gradient[:2] - alone[:2]).abs().min()) > 1e-3


# Learning


def test_what_was_learned_shows_in_kl_entropy_and_length():
    """Longer is better here: eight letters without an EOS."""
    reward = RuleReward(lambda record, text, ended: len(text) / 8, "length")
    rows = run(small_gpt(), reward, group_size=8, minibatches=2, kl_coef=0.0)
    assert rows[-1]["eos_rate"] < 0.2 < rows[0]["eos_rate"]
    assert rows[-1]["response_length"] > rows[0]["response_length"] + 1
    assert "kl" not in rows[-1]
    rows = run(small_gpt(), SHARE_OF_A, group_size=8)
    assert rows[-1]["kl"] > 0.5 and rows[-1]["kl_k3"] > 0.1
    assert rows[-1]["entropy"] < rows[0]["entropy"] - 0.5
