"""REINFORCE++: the gradients, advantages and losses of both variants."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Sequence
from dataclasses import replace

import torch
from engines import SHARE_OF_A, engine_named, small_gpt
from slow import assert_gradient, differ, response_gradient, response_log_probs
from watched import Noted, Updates

from gpt.model import GPT
from rl.batches.rollout import Rollout
from rl.reinforce_pp_engine import reinforce_pp_advantages

REINFORCE_PP = engine_named("reinforce_pp")
CONFIG, run = REINFORCE_PP.config, REINFORCE_PP.run
BASELINE = dict(variant="baseline", group_size=4, prompts_per_step=4)


# The gradients


def k1_per_token(policy: GPT, reference: GPT, rollout: Rollout) -> list[list[float]]:
    """log pi - log pi_ref of every token of every response."""
    with torch.no_grad():
        pairs = [
            (response_log_probs(policy, rollout, i), response_log_probs(reference, rollout, i))
            for i in range(len(rollout))
        ]
    return [[float(a - b) for a, b in zip(*pair, strict=True)] for pair in pairs]


def reward_to_go(values: list[float], k1: list[list[float]], beta: float) -> list[list[float]]:
    """R - beta * the k1 of this token and all later ones."""
    return [
        [value - beta * sum(row[t:]) for t in range(len(row))]
        for value, row in zip(values, k1, strict=True)
    ]


def minus_group_mean(values: list[float], k1: list[list[float]]) -> list[list[float]]:
    """R minus the mean of its four, once for each token."""
    return [
        [values[i] - sum(values[i // 4 * 4 : i // 4 * 4 + 4]) / 4] * len(row)
        for i, row in enumerate(k1)
    ]


def normalised(advantages: list[list[float]], over: str) -> list[list[float]]:
    """By the mean and standard deviation of all tokens, or of the first token of each response."""
    if over == "token":
        pool = [a for row in advantages for a in row]
    else:
        advantages = [[row[0]] * len(row) for row in advantages]
        pool = [row[0] for row in advantages]
    mean, spread = statistics.mean(pool), statistics.stdev(pool)
    return [[(a - mean) / spread for a in row] for row in advantages]


def with_k2(advantages: list[list[float]], k1: list[list[float]]) -> list[list[float]]:
    """A loss of 0.3 k2 besides: its gradient is 0.3 k1 grad log pi."""
    return [
        [a - 0.3 * k for a, k in zip(*rows, strict=True)]
        for rows in zip(advantages, k1, strict=True)
    ]


def reinforce_gradient(
    policy: GPT, rollout: Rollout, rows: Sequence[int], advantages: list[list[float]]
) -> torch.Tensor:
    """-1/n sum_i 1/L_i sum_t A_it grad log pi(y_t), row by row, unpadded."""
    factors = [
        [(i in rows) * a / len(row) / len(rows) for a in row] for i, row in enumerate(advantages)
    ]
    return response_gradient(policy, rollout, factors)


def test_the_kl_of_the_plain_variant_is_in_each_tokens_reward(monkeypatch):
    """At the third step the policy has left the reference; nothing of the KL is in the loss."""
    policy, reward = small_gpt().double(), Noted(SHARE_OF_A)
    start, updates = copy.deepcopy(policy), Updates(monkeypatch, policy)
    run(policy, reward, steps=3, kl_coef=0.3, lr=3e-2)
    rollout, sampler = reward.rollouts[2], updates.policies[2]
    values, k1 = SHARE_OF_A(rollout).tolist(), k1_per_token(sampler, start, rollout)
    to_go = reward_to_go(values, k1, 0.3)
    advantages = normalised(to_go, "token")
    expected = reinforce_gradient(sampler, rollout, range(16), advantages)
    assert_gradient(updates.gradients[2], expected, 2e-5)  # the sampler's are float32
    whole = [[row[0]] * len(row) for row in to_go]  # the KL of earlier tokens as well
    others = [normalised(raw, "token") for raw in (whole, reward_to_go(values, k1, 0.0))]
    for wrong in (*others, with_k2(advantages, k1)):
        assert differ(expected, reinforce_gradient(sampler, rollout, range(16), wrong))


def test_the_kl_of_the_baseline_variant_is_k2_in_the_loss(monkeypatch):
    """At the third step the policy has left the reference; nothing of the KL is in the reward."""
    policy, reward = small_gpt().double(), Noted(SHARE_OF_A)
    start, updates = copy.deepcopy(policy), Updates(monkeypatch, policy)
    run(policy, reward, steps=3, kl_coef=0.3, lr=3e-2, **BASELINE)
    rollout, sampler = reward.rollouts[2], updates.policies[2]
    values, k1 = SHARE_OF_A(rollout).tolist(), k1_per_token(sampler, start, rollout)
    advantages = normalised(minus_group_mean(values, k1), "sequence")
    expected = reinforce_gradient(sampler, rollout, range(16), with_k2(advantages, k1))
    assert_gradient(updates.gradients[2], expected, 2e-5)
    assert differ(expected, reinforce_gradient(sampler, rollout, range(16), advantages))


# The advantages and the loss


def test_reward_to_go_is_whitened_over_all_tokens():
    """r = .1 .2 1 and -.5 1 with gamma 0.9, the KL from given log-probs; padding is no token."""
    rewards = torch.tensor([1.0, 1.0])
    old = torch.tensor([[-1.0, -2, -3, 50], [-1, -2, 50, 50]])
    # k1 = -1, -2, 0 and 5, 0 with kl_coef 0.1
    reference = torch.tensor([[0.0, 0, -3, -50], [-6, -2, -50, -50]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]).bool()
    config = replace(CONFIG, gamma=0.9)
    found = reinforce_pp_advantages(config, rewards, old, reference, mask, 0.1)
    expected = torch.tensor([[0.586106, 0.620182, 0.279423, 0], [-1.765134, 0.279423, 0, 0]])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    # undiscounted 1.3 1.2 1 and 0.5 1: over sequences, the returns of the responses 1.3 and 0.5
    config = replace(CONFIG, norm_over="sequence")
    found = reinforce_pp_advantages(config, rewards, old, reference, mask, 0.1)
    torch.testing.assert_close(found, torch.tensor([[0.5], [-0.5]]) * 2**0.5)
