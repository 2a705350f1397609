"""The policy that samples where it is not the policy in training: older, or in lower precision."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from gpt.model import GPT
from harness.frozen_copy import frozen_copy
from harness.training_state import changing_state, load_changing_state


@torch.no_grad()
def round_weights(model: GPT, precision: str) -> None:
    """Round a model's weights in place as an inference engine would.

    bfloat16: every weight. int8: the matrices of the linear layers, each row (one output) as a multiple
    of its largest weight / 127; embeddings and LayerNorms stay. float32: none.
    """
    if precision == "bfloat16":
        for weight in model.parameters():
            weight.copy_(weight.to(torch.bfloat16))
    elif precision == "int8":
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                rows = module.weight
                unit = rows.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
                rows.copy_((rows / unit).round() * unit)


class Sampler:
    """What draws the batches: for batch b the policy after `versions[b]` optimizer steps, rounded.

    It keeps the weights that a later batch will ask for, and no others. They are part of a run's state.
    """

    def __init__(self, policy: GPT, versions: list[int], precision: str) -> None:
        self.policy, self.versions, self.precision = policy, versions, precision
        self.updates = 0  # optimizer steps that the policy has taken
        self.kept: dict[int, dict[str, Tensor]] = {}
        self.model: GPT | None = None  # made when the policy itself cannot sample
        self.keep()

    def keep(self) -> None:
        """Copy the policy's weights if a batch is to be drawn with them."""
        if self.updates in self.versions:
            state = changing_state(self.policy)
            self.kept[self.updates] = {name: tensor.clone() for name, tensor in state.items()}

    def updated(self) -> None:
        """Count an optimizer step."""
        self.updates += 1
        self.keep()

    def lag(self, batch: int) -> int:
        """The optimizer steps between the policy that draws `batch` and the policy as it is."""
        return self.updates - self.versions[batch]

    def of(self, batch: int) -> GPT:
        """The model that draws `batch`: the policy itself if it is neither older nor rounded."""
        version = self.versions[batch]
        weights = self.kept[version]
        wanted = self.versions[batch + 1 :]
        self.kept = {number: kept for number, kept in self.kept.items() if number in wanted}
        if version == self.updates and self.precision == "float32":
            return self.policy
        if self.model is None:  # rounding would reach the tensors that a frozen copy shares
            exact = self.precision == "float32"
            self.model = (frozen_copy if exact else copy.deepcopy)(self.policy).requires_grad_(
                False
            )
        load_changing_state(self.model, weights)
        round_weights(self.model, self.precision)
        return self.model

    def state_dict(self) -> dict[str, Any]:
        """Tensors and a count."""
        return {"updates": self.updates, "kept": self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self.updates, self.kept = state["updates"], dict(state["kept"])
