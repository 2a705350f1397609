"""The losses of the engines on one minibatch, by loops: the surrogate and what a KL adds to it.

The GRPO family's are in test_grpo_variants_engine.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from engines import engine_named
from slow import MASK, NEW, OLD, RATIO, REF, k3_by_hand, mean_of_means, pessimistic
from torch import Tensor

from rl.equations.kl import k3
from rl.equations.losses import clip_acted, grpo_objective, likelihood_ratio
from rl.grpo_single_model_engine import PENALTIES
from rl.kd_grpo_engine import kd_grpo_loss
from rl.reinforce_pp_engine import reinforce_pp_loss
from rl.rloo_engine import clip_mask_of, rloo_loss

SIGNED = [1.5, -0.5, 9.0]  # an advantage for each response
PER_TOKEN = [[1.5, 1.0, -2.0, 9.0], [-0.5, 0.25, 9.0, 9.0], [9.0] * 4]
OF_RESPONSES, OF_TOKENS = torch.tensor(SIGNED)[:, None], torch.tensor(PER_TOKEN)
PENALTY = torch.tensor([[0.1, 0.2, 0.6, 9], [0.5, 0.3, 9, 9], [9, 9, 9, 9]])
VALID = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
PRODUCTS = [1.0 * 2.0 * 0.7, 0.5 * 2.2]  # outside of the clip and inside


def ratio(i: int, t: int) -> float:
    return float(RATIO[i, t])


def signed(i: int, t: int) -> float:
    return pessimistic(ratio(i, t), SIGNED[i])


def per_token(i: int, t: int) -> float:
    return pessimistic(ratio(i, t), PER_TOKEN[i][t])


def k2(i: int, t: int) -> float:
    return float(REF[i, t] - NEW[i, t]) ** 2 / 2


def loss_of(loss: Callable[..., Tensor], name: str, *given: Any, **options: Any) -> Callable:
    """The loss as a function of kl_coef, in a minibatch of five rows. Without a KL there is no REF."""
    sizes = {key: options.pop(key) for key in ("tokens",) if key in options}
    config = replace(engine_named(name).config, clip_range=0.2, **options)

    def with_kl(kl_coef: float) -> Tensor:
        arguments = [None if x is REF and not kl_coef else x for x in given]
        return loss(config, NEW, OLD, *arguments, MASK, kl_coef=kl_coef, responses=5, **sizes)

    return with_kl


def rloo_of(form: str) -> Callable:
    """It has no KL in the loss."""
    config = replace(engine_named("rloo").config, clip_range=0.2, loss=form)
    return lambda kl_coef: rloo_loss(config, NEW, OLD, OF_RESPONSES, MASK, responses=5, tokens=11)


def objective_of(ref: Tensor, advantages: Tensor, kl: Callable = k3) -> Callable:
    """The objective that GRPO's engines call."""
    given = NEW, OLD, ref, advantages, MASK, kl
    return lambda kl_coef: grpo_objective(*given, clip_range=0.2, kl_coef=kl_coef, responses=5)


LOSSES = {
    "grpo": (
        objective_of(REF, OF_RESPONSES), mean_of_means(signed), mean_of_means(k3_by_hand),
    ),
    "process": (
        objective_of(REF, OF_TOKENS), mean_of_means(per_token), mean_of_means(k3_by_hand),
    ),
    "reinforce++": (
        loss_of(reinforce_pp_loss, "reinforce_pp", REF, OF_TOKENS), mean_of_means(per_token), 0.0,
    ),
    "reinforce++ baseline": (
        loss_of(
            reinforce_pp_loss, "reinforce_pp", REF, OF_TOKENS, variant="baseline", group_size=4,
            prompts_per_step=4,
        ),
        mean_of_means(per_token), mean_of_means(k2),
    ),
    "single model, k3": (
        objective_of(OLD, OF_RESPONSES, PENALTIES["k3"]),
        mean_of_means(signed),
        mean_of_means(lambda i, t: 1 / ratio(i, t) - 1 + float(NEW[i, t] - OLD[i, t])),
    ),
    "single model, rho_minus_log": (
        objective_of(OLD, OF_RESPONSES, PENALTIES["rho_minus_log"]),
        mean_of_means(signed),
        mean_of_means(lambda i, t: ratio(i, t) - 1 - float(NEW[i, t] - OLD[i, t])),
    ),
    "teacher, clipped": (
        loss_of(kd_grpo_loss, "kd_grpo", PENALTY, OF_RESPONSES), mean_of_means(signed), 0.7 / 5,
    ),
    "teacher, reinforce": (  # PENALTY's means are 0.3 and 0.4
        loss_of(
            kd_grpo_loss, "kd_grpo", PENALTY, OF_RESPONSES, policy_loss="reinforce",
            updates_per_batch=1,
        ),
        -sum(SIGNED[i] * float(NEW[i, t]) for i, t in VALID) / 5, 0.7 / 5,
    ),
    # no ratio and no length; one ratio for the response; the tokens of the minibatch as divisor
    "rloo, sequence": (
        rloo_of("sequence"), -sum(SIGNED[i] * float(NEW[i, t]) for i, t in VALID) / 5, 0.0,
    ),
    "rloo, clipped": (
        rloo_of("clipped"), sum(pessimistic(PRODUCTS[i], SIGNED[i]) / 5 for i in (0, 1)), 0.0,
    ),
    "rloo, token": (rloo_of("token"), sum(signed(i, t) / 11 for i, t in VALID), 0.0),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_by_loops(name):
    """An empty row adds nothing, and the KL stands inside the same mean."""
    loss, surrogate, penalty = LOSSES[name]
    assert float(loss(0.0)) == pytest.approx(surrogate, rel=1e-5)
    assert float(loss(0.4)) == pytest.approx(surrogate + 0.4 * penalty, rel=1e-5)


def test_where_the_clip_acts():
    """On the bad side alone: as it is counted of a token, and of a whole response."""
    was_clipped = clip_acted(likelihood_ratio(NEW, OLD), OF_RESPONSES, 0.2, 0.2)
    assert was_clipped[MASK].tolist() == [False, True, False, True, False]
    for form, expected in (
        ("sequence", [0] * 5), ("clipped", [1, 1, 1, 0, 0]), ("token", [0, 1, 0, 1, 0]),
    ):  # fmt: skip
        config = replace(engine_named("rloo").config, clip_range=0.2, loss=form)
        found = clip_mask_of(config)(NEW, OLD, OF_RESPONSES, MASK).expand_as(MASK)
        assert found[MASK].tolist() == expected
