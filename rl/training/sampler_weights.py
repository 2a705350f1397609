"""A policy that does not draw its own answers: rounded weights in its place, and what corrects for them.

An engine draws from `sampler_of` and multiplies its policy loss by the weights of `old_and_weights`. By
default the policy draws, and every weight is exactly 1.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gpt.model import GPT
from harness.flag_ranges import AboveZero, NotNegative
from rl.batches.rollout import Rollout, old_policy_log_probs, rollout_log_probs
from rl.batches.samplers import round_weights
from rl.equations.kl import rho_minus_log
from rl.equations.losses import row_sums, sequence_ratio
from rl.equations.sampler_correction import (
    CORRECTIONS,
    Correction,
    Name,
    effective_share,
    sampler_weights,
)
from rl.training.config import EngineConfig
from rl.training.metrics import as_floats


@dataclass(frozen=True)
class SamplerFlags(EngineConfig):
    """Another sampler"""

    sampler_precision: Literal["float32", "bfloat16", "int8"] = "float32"
    """What the sampler's weights are rounded to: all of them, or the linear layers row by row."""
    correction: Name = "token_tis"
    """What makes up for it: a row of CORRECTIONS (rl/equations/sampler_correction.py)."""
    weight_floor: NotNegative = 0.5
    """Of the masks: a weight pi_old / mu below it counts as 0."""
    weight_cap: AboveZero = 2.0
    """C: the largest weight; above it the truncating rules take C, and the masks 0."""

    has_own_losses = False  # whether the engine knows the corrections that are losses of their own

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.row.of and not self.weight_floor <= 1 <= self.weight_cap:
            raise ValueError(
                f"weight_floor {self.weight_floor:g} to weight_cap {self.weight_cap:g} must hold 1, the "
                "weight where the sampler is the policy: lower the floor, or raise the cap"
            )
        if self.row.against == "sampler" and not self.has_own_losses:
            raise ValueError(
                f"correction {self.correction} is a loss of its own, which rl.async_grpo_engine has: take "
                "one that weighs, such as token_tis"
            )
        if self.rounds and self.row.of == "token" and self.ratio_of_responses:
            raise ValueError(
                f"correction {self.correction} weighs single tokens, and this loss has one ratio for a "
                "response: take sequence_tis"
            )

    @property
    def ratio_of_responses(self) -> bool:
        """Whether the loss has one ratio for a whole response."""
        return False

    @property
    def rounds(self) -> bool:
        return self.sampler_precision != "float32"

    @property
    def row(self) -> Correction:
        """What the correction's name stands for."""
        return CORRECTIONS[self.correction]


def sampler_of(config: SamplerFlags, policy: GPT) -> GPT:
    """mu: the policy itself, or a copy of it with rounded weights."""
    if not config.rounds:
        return policy
    mu = copy.deepcopy(policy).requires_grad_(False)
    round_weights(mu, config.sampler_precision)
    return mu


def old_and_weights(
    config: SamplerFlags, policy: GPT, rollout: Rollout
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """The old policy's log-probs (N, T), the weights w (N, T) or (N, 1), what is logged of them."""
    if not config.rounds:
        old_log_probs = old_policy_log_probs(policy, rollout, config)
        return old_log_probs, torch.ones_like(old_log_probs[:, :1]), {}
    old_log_probs = rollout_log_probs(policy, rollout, config)
    weights, _, numbers = weighed(config, old_log_probs, rollout.log_probs, rollout.response_mask)
    if config.row.of != "token":
        weights = weights.amax(1, keepdim=True)  # one for the whole response
    measured = as_floats(numbers)
    return old_log_probs, weights, measured | {"lag": 0}


@torch.no_grad()
def weighed(
    config: SamplerFlags,
    old_log_probs: Tensor,  # (N, T)
    sampler_log_probs: Tensor,  # (N, T)
    mask: Tensor,  # (N, T)
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The weights (N, T) of the correction, 0 at padding, KL(mu, pi_old) (N,), and what is logged."""
    row, given = config.row, (old_log_probs, sampler_log_probs, mask)
    bounds = (config.weight_floor, config.weight_cap)
    ratio = sampler_weights(*given, row.of or "token", "all", *bounds)
    weights = (
        sampler_weights(*given, row.of, row.limit, *bounds) if row.of else mask.to(ratio.dtype)
    )
    used, whole = ratio[mask], sequence_ratio(*given).squeeze(1)
    cut = (weights != ratio)[mask] if row.of else torch.zeros_like(used)
    kl = row_sums(rho_minus_log(old_log_probs, sampler_log_probs), mask)  # (N,): tokens are mu's
    numbers = {
        "sampler_kl": kl.mean(), "ess": effective_share(used), "ess_responses": effective_share(whole),
        "weights_cut": cut.float().mean(), "weight_max": used.max(),
    }  # fmt: skip
    return weights, kl, numbers
