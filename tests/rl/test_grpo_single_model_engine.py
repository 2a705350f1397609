"""GRPO with a single model: when its penalty acts, and that no second model is there."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from engines import DIVERSE, engine_named, small_gpt, some_rollout
from toys import weights

from data.collate import collate_responses
from rl.grpo_single_model_engine import batch_kl

SINGLE = engine_named("grpo_single_model")
CONFIG, run = SINGLE.config, SINGLE.run
PENALTIES = pytest.mark.parametrize("penalty", ["k3", "rho_minus_log"])


# The first step


@PENALTIES
def test_with_one_update_a_batch_the_penalty_never_acts(gradients, penalty):
    """And says so; with two minibatches or two passes it acts and is silent."""
    options = dict(steps=1, updates_per_batch=1, penalty=penalty)
    with pytest.warns(UserWarning):
        run(small_gpt(), DIVERSE, kl_coef=5.0, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(small_gpt(), DIVERSE, kl_coef=0.0, **options)
        torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)
        ends = []
        for kl_coef in (5.0, 0.0):
            policy = small_gpt()
            run(policy, DIVERSE, minibatches=2, kl_coef=kl_coef, **options)
            ends.append(weights(policy))
    assert not torch.equal(*ends)
    with pytest.warns(UserWarning):  # one prompt: one minibatch
        replace(CONFIG, updates_per_batch=1, minibatches=2, prompts_per_step=1)


def test_both_kls_of_a_batch_by_hand():
    """Ratios 2 and 1/2, and 4 in another row: rho - 1 - log rho is .306853, .193147 and 1.613706;
    rho log rho - rho + 1 is .386294, .153426 and 2.545177."""
    sequences = collate_responses([[1], [1]], [[2, 3], [4]], 8)
    rollout = replace(some_rollout(small_gpt()), sequences=sequences)
    new = torch.tensor([[2.0, 0.5], [4.0, 9.0]]).log()
    found = batch_kl(new - 3, torch.full((2, 2), -3.0), rollout)
    assert found["kl_old_new"] == pytest.approx((0.306853 + 0.193147 + 1.613706) / 2, abs=1e-5)
    assert found["kl_new_old"] == pytest.approx((0.386294 + 0.153426 + 2.545177) / 2, abs=1e-5)
