"""LoRA, written by hand: small trained matrices beside frozen ones (Hu et al. 2021, arXiv:2106.09685).

    h = W0 x + (alpha / r) B A x           Eq. 3: W0 (out, in) frozen, A (r, in) and B (out, r) trained
    A random, B = 0                        at the start the model is the base, to the last bit
    W = W0 + (alpha / r) B A               merged: an ordinary GPT, no slower than the base

Adapters sit on the four projections of each block. Embeddings, LayerNorms and biases stay as they
are. So gradients, Adam and checkpoints hold A and B alone, and every frozen copy shares the base
(harness/frozen_copy.py). A and W0 are as nn.Linear holds them, which is the orientation of PEFT's files too.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from gpt.model import GPT

PROJECTIONS = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")  # of each block


class LoRALinear(nn.Linear):
    """A frozen nn.Linear, whose tensors it takes over, with an adapter of its own beside it."""

    def __init__(
        self,
        base: nn.Linear,
        rank: int,
        alpha: float,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(base.in_features, base.out_features, device="meta")
        self.weight, self.bias = base.weight, base.bias
        self.scale = alpha / rank
        # As in the paper's code; the paper says Gaussian. Biases of nn.Linear start in this range.
        bound = base.in_features**-0.5
        start = torch.empty(rank, base.in_features).uniform_(-bound, bound, generator=generator)
        self.lora_A = nn.Parameter(start.to(base.weight))  # (r, in)
        self.lora_B = nn.Parameter(base.weight.new_zeros(base.out_features, rank))  # (out, r)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., in) -> W0 x + (alpha / r) B A x (..., out)."""
        change = F.linear(F.linear(x, self.lora_A), self.lora_B)  # B A x
        return super().forward(x) + self.scale * change

    @torch.no_grad()
    def merged_weight(self) -> Tensor:
        """W0 + (alpha / r) B A, (out, in)."""
        return self.weight + self.scale * self.lora_B @ self.lora_A


def add_adapters(
    model: GPT,
    rank: int,
    alpha: float | None = None,
    generator: torch.Generator | None = None,
    projections: Sequence[str] = PROJECTIONS,
) -> GPT:
    """Freeze `model` and put new adapters on its projections, in place; returns it.

    `alpha` is twice the rank unless given. Raises ValueError for a model that has adapters already.
    """
    if has_adapters(model):
        raise ValueError("the model has adapters already: merge them first")
    model.requires_grad_(False)
    for block in model.h:
        for projection in projections:
            part, name = projection.split(".")
            owner = getattr(block, part)
            base = getattr(owner, name)
            setattr(owner, name, LoRALinear(base, rank, alpha or 2 * rank, generator))
    return model


def adapters(module: nn.Module) -> dict[str, LoRALinear]:
    """The adapters anywhere in `module` by the name of their projection, such as h.0.attn.c_attn."""
    return {name: part for name, part in module.named_modules() if isinstance(part, LoRALinear)}


def has_adapters(part: object) -> bool:
    """Whether this is a module with adapters in it."""
    return isinstance(part, nn.Module) and bool(adapters(part))


def base_names(module: nn.Module) -> set[str]:
    """The names of the tensors that lie frozen under adapters: all of their GPT but A and B."""
    names = set()
    for prefix, trunk in module.named_modules():
        if isinstance(trunk, GPT) and has_adapters(trunk):
            own = (name for name in trunk.state_dict() if not name.endswith(("lora_A", "lora_B")))
            names |= {f"{prefix}.{name}" if prefix else name for name in own}
    return names


def thaw(module: nn.Module) -> None:
    """Let everything in `module` be trained, but for what lies frozen under adapters."""
    base = base_names(module)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name not in base)


def copy_to_train(model: GPT) -> GPT:
    """A copy that can be trained beside `model`; of one with adapters over the same frozen tensors."""
    shared = [model.get_parameter(name) for name in base_names(model)]
    copied = copy.deepcopy(model, {id(tensor): tensor for tensor in shared})
    thaw(copied)
    return copied


def copy_with_adapters(
    base: GPT, rank: int, alpha: float | None = None, generator: torch.Generator | None = None
) -> GPT:
    """New adapters over the tensors of `base`, which are shared and from now on frozen."""
    shared = copy.deepcopy(base, {id(tensor): tensor for tensor in base.parameters()})
    return add_adapters(shared, rank, alpha, generator)


# What is written ----------------------------------------------------------------------------------


def merged_state(module: nn.Module) -> dict[str, Tensor]:
    """The state dict of the same module without adapters: each is merged into its projection.

    Merged weights are on the CPU, so that the device never holds all of them a second time.
    """
    state: dict[str, Tensor] = dict(module.state_dict())
    for name, layer in adapters(module).items():
        del state[f"{name}.lora_A"], state[f"{name}.lora_B"]
        state[f"{name}.weight"] = layer.merged_weight().cpu()
    return state


def changing_state(part: Any) -> Any:
    """What a checkpoint holds of a part of a run: its state, without what lies frozen under adapters."""
    state = part.state_dict()
    if not has_adapters(part):
        return state
    base = base_names(part)
    return {name: tensor for name, tensor in state.items() if name not in base}


def load_changing_state(part: Any, state: Mapping[str, Any]) -> None:
    """Restore what `changing_state` gave. ValueError for the state of other adapters, or of none."""
    if not has_adapters(part):
        part.load_state_dict(state)
        return
    if state.keys() != changing_state(part).keys():
        raise ValueError("it holds other tensors than the adapters of this model")
    part.load_state_dict(part.state_dict() | dict(state))
