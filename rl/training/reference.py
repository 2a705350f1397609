"""A reference that moves: copied from the policy, or mixed with it, every few batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpt.model import GPT
from harness.flag_ranges import AtLeastOne, Share
from harness.optimizer import mix_into


@dataclass(frozen=True)
class MovingReference:
    """A reference that moves"""

    reference_update: Literal["never", "per_iteration", "mix"] = "never"
    """per_iteration: the reference becomes the policy every reference_every batches. mix: a part."""
    reference_every: AtLeastOne = 20
    """Rollout batches between updates of the reference."""
    reference_mix: Share = 0.6
    """alpha of mix: reference <- alpha * policy + (1 - alpha) * reference (TR-DPO)."""


def check_moving_reference(config: MovingReference, lora_rank: int, **penalties: float) -> None:
    """ValueError for a reference that cannot move so, or that none of the `penalties` holds on to."""
    if config.reference_update != "never" and not any(penalties.values()):
        raise ValueError(
            "reference_update moves what a KL penalty holds on to: give a "
            f"{' or a '.join(penalties)} above 0, or leave it at never"
        )
    share = config.reference_mix if config.reference_update == "mix" else 1.0
    if lora_rank and share < 1:
        raise ValueError(
            f"a reference that takes {share:g} of the policy mixes weights, which adapters cannot "
            "express in their rank: let it take all of it, 1, or leave lora_rank out"
        )


def moved_reference(config: MovingReference, step: int, reference: GPT, policy: GPT) -> None:
    """reference <- alpha * policy + (1 - alpha) * reference, where it is due after `step` batches.

    per_iteration: alpha = 1 (arXiv:2402.03300, Algorithm 1, line 3). mix: TR-DPO (arXiv:2404.09656).
    """
    if config.reference_update == "never" or step % config.reference_every:
        return
    alpha = config.reference_mix if config.reference_update == "mix" else 1.0
    mix_into(reference, policy, alpha)
