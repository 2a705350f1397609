"""The kit's random batches, and groups of rewards that look like those of a rule."""

from __future__ import annotations

import torch

from conformance.batches import Arguments as Arguments
from conformance.batches import between as between
from conformance.batches import number
from conformance.batches import ragged_mask as ragged_mask
from conformance.batches import some as some


def groups(generator: torch.Generator) -> Arguments:
    """Rewards of some groups, each with a level and a spread of its own, at times one without a spread.

    They are eighths, so that some are alike and the mean of equal ones is exactly theirs.
    """
    count, group_size = number(generator, 2, 5), number(generator, 2, 6)
    level = 3 * torch.randn(count, 1, generator=generator)
    spread = torch.rand(count, 1, generator=generator) + 0.2
    spread[0] *= number(generator, 0, 2)
    rewards = level + spread * torch.randn(count, group_size, generator=generator)
    return {"rewards": (8 * rewards).round().flatten() / 8, "group_size": group_size}
