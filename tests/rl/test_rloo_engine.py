"""RLOO: exact gradients, the advantages and three losses."""

from __future__ import annotations

import copy
import statistics
from dataclasses import replace

import pytest
import torch
from engines import DIVERSE, SHARE_OF_A, engine_named, small_gpt
from minibatch import pessimistic
from slow import assert_gradient, differ, response_gradient, response_log_probs
from watched import HALVES, Noted, Updates, given_halves

from rl import rloo_engine
from rl.rloo_engine import rloo_advantages, rloo_loss

RLOO = engine_named("rloo")
CONFIG, run = RLOO.config, RLOO.run
FORMS = ("sequence", "clipped", "token")

each_form = pytest.mark.parametrize("form", FORMS)


# The gradients


def reinforce_factors(rows: list[int], values: list[float], divisor: float) -> list[float]:
    """A_i / divisor of these rows: A_i = value minus the mean of the other three of the group."""
    factors = [0.0] * len(values)
    for i in rows:
        others = [values[j] for j in range(i // 4 * 4, i // 4 * 4 + 4) if j != i]
        factors[i] = (values[i] - sum(others) / 3) / divisor
    return factors


@each_form
@pytest.mark.parametrize("kl_coef", [0.0, 0.5])
def test_the_first_gradient_is_that_of_reinforce(monkeypatch, form, kl_coef):
    """In float64, for any kl_coef: at pi = pi_ref every k1 is 0. The minibatches are given.

    The token loss divides by the tokens of its minibatch, the others by the rows.
    """
    given_halves(monkeypatch)
    policy, reward = small_gpt().double(), Noted(DIVERSE)
    updates = Updates(monkeypatch, policy)
    run(policy, reward, steps=1, kl_coef=kl_coef, loss=form, micro_batch_size=3)
    (rollout,) = reward.rollouts
    assert len(set(rollout.lengths.tolist())) > 1, "all responses are of one length"
    divisor = int(rollout.lengths[HALVES[0]].sum()) if form == "token" else 8
    values = DIVERSE(rollout).tolist()
    factors = reinforce_factors(HALVES[0], values, divisor)
    expected = response_gradient(updates.policies[0], rollout, factors)
    assert_gradient(updates.gradients[0], expected, 2e-7)  # rewards are float32


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


RATIOS = torch.tensor([[1.0, 2.0, 0.5, 9], [0.5, 2.0, 1.1, 9], [1.3, 1.1, 9, 9], [9, 9, 9, 9]])
LENGTHS = (3, 2, 2, 0)
SIGNED = [1.5, -0.5, 2.0, 9.0]
TOKENS = torch.arange(4) < torch.tensor(LENGTHS)[:, None]
BEFORE = torch.tensor([[-2.0], [-1.5], [-0.5], [-1.0]]).expand(4, 4)
GIVEN = (BEFORE + RATIOS.log(), BEFORE, torch.tensor(SIGNED)[:, None], TOKENS)
PRODUCTS = [1.0 * 2.0 * 0.5, 0.5 * 2.0, 1.3 * 1.1]
VALID = [(i, t) for i in range(4) for t in range(LENGTHS[i])]


def where_clipped(config, new, old, advantages, mask) -> torch.Tensor:
    """(n, T) bool: the tokens at which the engine's meter counts the clip."""
    return rloo_engine.acted(config)(new, old, advantages, mask).expand_as(mask)


@pytest.mark.parametrize(
    ("form", "expected", "clipped"),
    [
        # no ratio, no length, nothing clipped
        ("sequence", -sum(SIGNED[i] * float(GIVEN[0][i, t]) for i, t in VALID) / 5, [0] * 7),
        # one ratio for the response, the product over its tokens: 1, 1 and 1.43
        ("clipped", sum(pessimistic(PRODUCTS[i], SIGNED[i]) / 5 for i in range(3)), [0] * 5 + [1] * 2),
        # a ratio for each token, divided by the tokens of the minibatch
        (
            "token",
            sum(pessimistic(float(RATIOS[i, t]), SIGNED[i]) / 11 for i, t in VALID),
            [0, 1, 0, 1, 0, 0, 0],
        ),
    ],
)  # fmt: skip
def test_the_losses_by_loops(form, expected, clipped):
    config = replace(CONFIG, loss=form, clip_high=0.3)
    loss = rloo_loss(config, *GIVEN, rows=5, tokens=11)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert where_clipped(config, *GIVEN)[TOKENS].tolist() == clipped


# The penalty


def test_k1_is_taken_off_the_reward():
    """Its sums over the tokens are 2, 0 and -1; what stands at padding counts nowhere."""
    k1 = torch.tensor([[1.0, 1.0, 50.0], [1.0, -1.0, 50.0], [-1.0, 50.0, 50.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 0], [1, 0, 0]]).bool()
    reference = torch.full((3, 3), -2.0)
    config = replace(CONFIG, group_size=3)
    rewards = torch.tensor([1.0, 0.5, 0.0])
    found = rloo_advantages(config, rewards, reference + k1, reference, mask, 0.1)
    expected = [0.8, 0.5, 0.1]
    mean = sum(expected) / 3
    wanted = [1.5 * (value - mean) for value in expected]
    assert found[:, 0].tolist() == pytest.approx(wanted, abs=1e-6)
