"""Engines whose sampler's weights are rounded: who draws, and that what corrects reaches the gradient."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from engines import DIVERSE, engine_named, small_gpt
from studies.enumerated import NOISE, World
from toys import weights

from gpt.log_probs import TokenScores
from rl import grpo_variants_engine, ppo_engine, reinforce_pp_engine, rloo_engine
from rl.equations.sampler_correction import CORRECTIONS
from rl.training.actor_critic import Targets, ppo_loss
from rl.training.sampler_weights import weighed

NAMES = ("ppo", "rloo", "reinforce_pp", "grpo_variants")
each = pytest.mark.parametrize("name", NAMES)
WEIGHING = [name for name, row in CORRECTIONS.items() if row.against == "old"]


@each
def test_a_rounded_sampler_draws_and_the_policy_stays_as_it_is(name):
    engine = engine_named(name)
    options = dict(steps=2, lr=0.0, sampler_precision="int8")
    options |= dict(critic_lr=0.0) if name == "ppo" else {}
    policy = small_gpt(noise=0.1)
    before = weights(policy)
    rows = engine.run(policy, DIVERSE, **options)
    assert torch.equal(weights(policy), before)
    assert all(row["sampler_kl"] > 0 and 0 < row["ess_responses"] < 1 for row in rows)
    assert abs(rows[0]["ratio_error_at_start"]) < 1e-6  # the old policy is scored, not the sampler
    options |= dict(sampler_precision="float32")
    plain = engine.run(small_gpt(noise=0.1), DIVERSE, **options)
    assert not rows[0].keys() <= plain[0].keys() and plain[0].keys() <= rows[0].keys()


@each
def test_weights_multiply_the_policy_gradient(name, monkeypatch, gradients):
    """Twice the weights, twice the gradient; none, none. The weights are those of `old_and_weights`."""
    engine = engine_named(name)
    given_weights, factors = engine.module.old_and_weights, iter((1.0, 2.0, 0.0))

    def scaled(*given):
        old_log_probs, w, measured = given_weights(*given)
        return old_log_probs, next(factors) * w, measured

    monkeypatch.setattr(engine.module, "old_and_weights", scaled)
    found = []
    for _ in range(3):
        gradients.clear()
        engine.run(small_gpt(noise=0.1), DIVERSE, steps=1, minibatches=1, kl_coef=0.0)
        found.append(gradients[0].clone())
    assert found[0].any()
    torch.testing.assert_close(found[1], 2 * found[0], rtol=1e-5, atol=1e-8)
    assert not found[2].any()


@pytest.mark.parametrize("name", WEIGHING)
def test_equal_policies_weigh_one_to_the_last_bit(name):
    config = replace(engine_named("rloo").config, correction=name)
    old = -torch.rand(5, 7, generator=torch.Generator().manual_seed(0)) * 9
    mask = torch.arange(7) < torch.tensor([[7], [5], [1], [3], [2]])
    w, kl, found = weighed(config, old, old.clone(), mask)
    assert torch.equal(w, mask.float()) and not kl.any() and found["ess"] == 1


def losses(config, log_probs, advantages, w):
    """What each engine makes of weighted advantages, (N, T) log-probs; sums of rows."""
    old, mask = log_probs.detach(), torch.ones_like(log_probs, dtype=torch.bool)
    rows, tokens = len(old), old.numel()
    if isinstance(config, ppo_engine.PPOConfig):
        none = torch.zeros_like(old)
        goal = Targets(old, none, (w * advantages).expand_as(old), none)
        scores = TokenScores(log_probs, none)
        return tokens * ppo_loss(config, scores, none, goal, mask, tokens).policy.mean()
    if isinstance(config, rloo_engine.RLOOConfig):
        given = (config, log_probs, old, w * advantages, mask)
        return rloo_engine.rloo_loss(*given, rows=1, tokens=1)
    if isinstance(config, reinforce_pp_engine.ReinforcePPConfig):
        given = (config, log_probs, old, None, w * advantages, mask)
        return reinforce_pp_engine.reinforce_pp_loss(*given, kl_coef=0.0, rows=1)
    given = grpo_variants_engine.Given(old, None, advantages, mask, w)
    scores = TokenScores(log_probs, torch.zeros_like(old))
    loss = grpo_variants_engine.variant_loss(config, scores, given, kl_coef=0.0, whole=mask)
    return rows * loss.total


FORMS = [
    ("ppo", {}), ("reinforce_pp", {}), ("rloo", {}), ("rloo", {"loss": "clipped"}),
    ("rloo", {"loss": "token"}), ("grpo_variants", {}), ("grpo_variants", {"surrogate": "gspo"}),
    ("grpo_variants", {"surrogate": "cispo"}), ("grpo_variants", {"surrogate": "sapo"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_the_expected_weighted_gradient_is_the_on_policy_one(name, form):
    """All 4,096 answers of a world listed: by weights of whole answers without a bound, to 1e-12.

    With token weights it is another one, because the tokens before are the sampler's.
    """
    world = World(0, NOISE["much"])
    logits, mu, _ = world.drawn
    old, drew = world.log_probs(logits), world.log_probs(mu)
    mask = torch.ones_like(old, dtype=torch.bool)
    config = replace(engine_named(name).config, **form, weight_cap=1e12, weight_floor=0.0)

    def expected(chance, correction):
        leaf = old.clone().requires_grad_()
        if correction == "policy":
            w = torch.ones_like(old[:, :1])
        else:
            w, _, _ = weighed(replace(config, correction=correction), old, drew, mask)
            w = w if correction == "token_tis" else w[:, :1]
        advantages = chance[:, None] * world.advantages
        (gradient,) = torch.autograd.grad(losses(config, leaf, advantages, w), leaf)
        flat = torch.zeros(5, 4, dtype=torch.float64)
        before = torch.nn.functional.pad(world.answers[:, :-1] + 1, (1, 0))
        score = torch.nn.functional.one_hot(world.answers, 4) - logits.softmax(-1)[before]
        for t in range(world.length):
            flat.index_add_(0, before[:, t], gradient[:, t, None] * score[:, t])
        return flat

    truth = expected(old.sum(1).exp(), "policy")
    assert truth.norm() > 1e-3
    found = expected(drew.sum(1).exp(), "sequence_tis")
    torch.testing.assert_close(found, truth, rtol=0, atol=1e-12)
    if name == "rloo" and not form or name == "ppo":
        other = expected(drew.sum(1).exp(), "token_tis")
        assert (other - truth).norm() > 0.1 * truth.norm()
