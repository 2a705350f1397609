"""Models that stay as they are: every reference and every start of a run comes from here."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch.nn as nn

Model = TypeVar("Model", bound=nn.Module)


def frozen_copy(model: Model) -> Model:
    """A copy of `model` without gradients or dropout; what is frozen already is shared."""
    frozen = {id(tensor): tensor for tensor in model.parameters() if not tensor.requires_grad}
    return copy.deepcopy(model, frozen).eval().requires_grad_(False)
