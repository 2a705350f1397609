"""GRPO with a single model: when its penalty acts, what it estimates, and what it cannot do."""

from __future__ import annotations

import copy
import gc
import math
import warnings
from dataclasses import replace

import pytest
import torch
from engines import DIVERSE, engine_named, small_gpt
from slow import response_log_probs
from toys import weights
from watched import Noted, Validations, calls_of

from gpt.model import GPT
from rl.batches.rollout import Rollout
from rl.grpo_single_model_engine import single_model_grpo_loss
from rl.rewards.sources import RuleReward

SINGLE = engine_named("grpo_single_model")
CONFIG, run = SINGLE.config, SINGLE.run
run_original = engine_named("grpo").run  # with its frozen reference, on the same task
PENALTIES = pytest.mark.parametrize("penalty", ["k3", "rho_minus_log"])


# The penalty


@PENALTIES
def test_at_ratio_one_the_penalty_and_its_gradient_are_exactly_zero(penalty):
    """Equal to the last bit: loss and gradient of beta = 7 are those of beta = 0."""
    old = -torch.rand(4, 5, generator=torch.Generator().manual_seed(0)) * 8
    mask = torch.arange(5) < torch.tensor([[5], [3], [1], [4]])
    advantages = torch.tensor([[1.0], [-0.5], [2.0], [-2.5]])
    results = []
    for kl_coef in (0.0, 7.0):
        log_probs = old.clone().requires_grad_()
        given = replace(CONFIG, penalty=penalty), log_probs, old, advantages, mask
        loss = single_model_grpo_loss(*given, kl_coef=kl_coef, rows=4)
        results.append((loss.detach(), torch.autograd.grad(loss, log_probs)[0]))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert float(results[0][1].abs().max()) > 0.01


# The first step


@PENALTIES
def test_with_one_update_a_batch_the_penalty_never_acts(gradients, penalty):
    """And says so; with two minibatches or two passes it acts and is silent."""
    with pytest.warns(UserWarning, match="one update a batch .* exactly 0"):
        run(small_gpt(), DIVERSE, steps=1, updates_per_batch=1, kl_coef=5.0, penalty=penalty)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(small_gpt(), DIVERSE, steps=1, updates_per_batch=1, kl_coef=0.0)
        torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)
        ends = []
        for kl_coef in (5.0, 0.0):
            policy = small_gpt()
            run(
                policy,
                DIVERSE,
                steps=1,
                updates_per_batch=1,
                minibatches=2,
                kl_coef=kl_coef,
                penalty=penalty,
            )
            ends.append(weights(policy))
    assert not torch.equal(*ends)
    with pytest.warns(UserWarning, match="one update a batch"):  # one prompt: one minibatch
        replace(CONFIG, updates_per_batch=1, minibatches=2, prompts_per_step=1)


# Learning and drifting


def test_the_distances_are_measured_after_the_last_update_of_the_batch():
    """Against both policies, row by row: of the sampler and of the one that validation gets."""
    start, reward, seen = small_gpt(), Noted(DIVERSE), Validations()
    (row,) = run(copy.deepcopy(start), reward, steps=1, eval_every=1, validate=seen, lr=3e-2)
    (rollout,), (end,) = reward.rollouts, seen.policies
    assert seen.references == [None]
    sums = [0.0, 0.0]
    for i in range(len(rollout)):
        old, new = (response_log_probs(policy, rollout, i) for policy in (start, end))
        for before, now in zip(old, new, strict=True):
            log_rho = (now - before).item()
            rho = math.exp(log_rho)
            sums[0] += (rho - 1 - log_rho) / len(rollout)
            sums[1] += (rho * log_rho - (rho - 1)) / len(rollout)
    assert [row["kl_old_new"], row["kl_new_old"]] == pytest.approx(sums, rel=1e-3)
    assert min(sums) > 0.05 and abs(sums[0] - sums[1]) > 0.01


# Memory


def models_alive() -> list[GPT]:
    gc.collect()
    return [thing for thing in gc.get_objects() if type(thing) is GPT]


def test_no_second_copy_of_the_weights_exists(monkeypatch):
    """In training one model is alive, where GRPO has two; nothing is copied behind its back."""
    before, counts = len(models_alive()), []

    class Counting(RuleReward):
        def __call__(self, rollout: Rollout) -> torch.Tensor:
            counts.append(len(models_alive()) - before)
            return super().__call__(rollout)

    reward = Counting(lambda record, text, ended: text.count("a") / 8, "")
    run_original(small_gpt(), reward, steps=1, minibatches=2)
    policy, copies = small_gpt(), calls_of(monkeypatch, copy, "deepcopy")
    run(policy, reward, steps=2, minibatches=2)
    assert counts == [2, 1, 1] and not copies
