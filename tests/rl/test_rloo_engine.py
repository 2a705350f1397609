"""RLOO: exact gradients, the advantages and three losses."""

from __future__ import annotations

import copy
import statistics
from dataclasses import replace

import pytest
import torch
from engines import DIVERSE, SHARE_OF_A, engine_named, small_gpt
from slow import assert_gradient, differ, response_gradient, response_log_probs
from watched import HALVES, Noted, Updates, given_halves

from rl.rloo_engine import rloo_advantages

RLOO = engine_named("rloo")
CONFIG, run = RLOO.config, RLOO.run


# The gradients


def reinforce_factors(rows: list[int], values: list[float], divisor: float) -> list[float]:
    """A_i / divisor of these rows: A_i = value minus the mean of the other three of the group."""
    factors = [0.0] * len(values)
    for i in rows:
        others = [values[j] for j in range(i // 4 * 4, i // 4 * 4 + 4) if j != i]
        factors[i] = (values[i] - sum(others) / 3) / divisor
    return factors


def test_the_second_gradient_has_no_ratio(monkeypatch):
    """The paper takes two optimizer steps a batch: plain REINFORCE of the moved policy again."""
    given_halves(monkeypatch)
    policy, reward = small_gpt().double(), Noted(DIVERSE)
    updates = Updates(monkeypatch, policy)
    run(policy, reward, steps=1)
    (rollout,), values = reward.rollouts, DIVERSE(reward.rollouts[0]).tolist()
    start, moved = updates.policies
    factors = reinforce_factors(HALVES[1], values, 8)
    expected = response_gradient(moved, rollout, factors)
    assert_gradient(updates.gradients[1], expected, 2e-7)
    assert differ(expected, response_gradient(start, rollout, factors))


def test_the_kl_of_the_response_is_part_of_its_reward(monkeypatch):
    """At the third step the policy has left the reference: R - kl_coef (log pi - log pi_ref)(y|x)."""
    policy, reward = small_gpt().double(), Noted(SHARE_OF_A)
    start = copy.deepcopy(policy)
    updates = Updates(monkeypatch, policy)
    run(policy, reward, steps=3, kl_coef=0.3, lr=3e-2)
    rollout, sampler = reward.rollouts[2], updates.policies[2]
    values, plain = [], SHARE_OF_A(rollout).tolist()
    for i in range(16):
        with torch.no_grad():
            k1 = sum(response_log_probs(sampler, rollout, i))
            k1 -= sum(response_log_probs(start, rollout, i))
        values.append(plain[i] - 0.3 * float(k1))
    expected, without = (
        response_gradient(sampler, rollout, reinforce_factors(list(range(16)), rewards, 16))
        for rewards in (values, plain)
    )
    assert_gradient(updates.gradients[2], expected, 1e-5)  # the sampler's are float32
    assert differ(expected, without)


# The advantages and the losses


def test_advantages_subtract_the_others_of_the_group_after_the_kl():
    """R = 1, 0.5, 0 and the KL of the responses 2, 0, -1, over tokens of which padding is none."""
    old = torch.tensor([[-1.0, -2, 7], [-4, 7, 7], [-3, -1, -1]])
    reference = torch.tensor([[-2.0, -3, -9], [-4, -9, -9], [-1, -2, -1]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]]).bool()
    config = replace(CONFIG, group_size=3)
    rewards = torch.tensor([1.0, 0.5, 0.0])
    found = rloo_advantages(config, rewards, old, reference, mask, 0.1)
    assert found.tolist() == [[pytest.approx(a, abs=1e-6)] for a in (0.5, 0.05, -0.55)]
    without = rloo_advantages(config, rewards, old, None, mask, 0.0)
    assert without.tolist() == [[pytest.approx(a, abs=1e-6)] for a in (0.75, 0.0, -0.75)]
    equal = rloo_advantages(config, torch.full((3,), 0.7), old, reference, mask, 0.1)
    # -beta (k_i - mean of the other k): equal rewards leave the KL, the nearest response gains
    assert equal.tolist() == [[pytest.approx(a, abs=1e-6)] for a in (-0.25, 0.05, 0.2)]
    nothing = rloo_advantages(config, torch.full((3,), 0.7), old, None, mask, 0.0)
    assert nothing.tolist() == [[0.0], [0.0], [0.0]]


def test_normalised_advantages_have_the_standard_deviation_of_the_batch():
    """One factor for all groups, though their spreads differ by ten."""
    rewards = torch.tensor([1.0, 2, 4, 10, 20, 60])
    log_probs = -torch.ones(6, 2)
    mask = torch.ones(6, 2, dtype=torch.bool)
    config = replace(CONFIG, group_size=3)
    plain = rloo_advantages(config, rewards, log_probs, None, mask, 0.0)
    config = replace(config, normalize_advantages=True)
    normalised = rloo_advantages(config, rewards, log_probs, None, mask, 0.0)
    values = [-2.0, -0.5, 2.5, -30.0, -15.0, 45.0]
    assert plain[:, 0].tolist() == pytest.approx(values)
    spread = statistics.stdev(values)
    assert normalised[:, 0].tolist() == pytest.approx([value / spread for value in values])
