"""Models that stay as they are: every reference and every start of a run comes from here."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch.nn as nn

Model = TypeVar("Model", bound=nn.Module)


def frozen_copy(model: Model) -> Model:
    """A copy of `model` that stays as it is while `model` is trained, without gradients or dropout.

    Tensors that are frozen in `model` already are shared, not copied.
    """
    frozen = {id(tensor): tensor for tensor in model.parameters() if not tensor.requires_grad}
    return copy.deepcopy(model, frozen).eval().requires_grad_(False)
