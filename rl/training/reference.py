"""A reference that moves: copied from the policy, or mixed with it, every few batches."""

from __future__ import annotations

from typing import Protocol

from gpt.model import GPT
from gpt.optimizer import mix_into


class MovingReference(Protocol):
    """The fields of an engine's config that say whether and when its reference moves."""

    @property
    def reference_update(self) -> str: ...

    @property
    def reference_every(self) -> int: ...

    @property
    def reference_mix(self) -> float: ...


def moved_reference(config: MovingReference, step: int, reference: GPT, policy: GPT) -> None:
    """Change the reference in place where it is due after `step` batches.

    per_iteration: reference <- policy (iterative GRPO, arXiv:2402.03300, Algorithm 1, line 3).
    mix: reference <- alpha * policy + (1 - alpha) * reference (arXiv:2404.09656).
    """
    if config.reference_update == "never" or step % config.reference_every:
        return
    alpha = config.reference_mix if config.reference_update == "mix" else 1.0
    mix_into(reference, policy, alpha)
