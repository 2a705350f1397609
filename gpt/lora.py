"""LoRA, written by hand: small trained matrices beside frozen ones (Hu et al. 2021, arXiv:2106.09685).

    h = W0 x + (alpha / r) B A x           Eq. 3: W0 (out, in) frozen, A (r, in) and B (out, r) trained
    A random, B = 0                        at the start the model is the base, to the last bit
    W = W0 + (alpha / r) B A               merged: an ordinary GPT, no slower than the base

Adapters sit on the four projections of each block. So gradients, Adam and checkpoints hold A and B
alone, and every `frozen_copy`, which references and the starts of runs are, shares the base.
"""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from gpt.model import GPT
from harness.device import shapes_alone, without_autocast
from harness.flags import MemoryFlags
from harness.seeds import make_generator
from harness.training_state import unchanging_names

ALPHA_OVER_RANK = 2.0  # alpha / r: alpha is twice the rank
Model = TypeVar("Model", bound=nn.Module)


class LoRALinear(nn.Linear):
    """A frozen nn.Linear, whose tensors it takes over, with an adapter of its own beside it."""

    def __init__(
        self, base: nn.Linear, rank: int, generator: torch.Generator | None = None
    ) -> None:
        with shapes_alone():  # its tensors are the base's
            super().__init__(base.in_features, base.out_features)
        self.weight, self.bias = base.weight, base.bias
        self.scale = ALPHA_OVER_RANK
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
        with without_autocast(self.weight.device):
            return self.weight + self.scale * self.lora_B @ self.lora_A


def add_adapters(model: GPT, rank: int, generator: torch.Generator | None = None) -> GPT:
    """Freeze `model` and put new adapters on its projections, in place; returns it."""
    model.requires_grad_(False)
    for block in model.h:
        for projection in model.projections:
            part, name = projection.split(".")
            owner = getattr(block, part)
            base = getattr(owner, name)
            setattr(owner, name, LoRALinear(base, rank, generator))
    return model


def adapters(module: nn.Module) -> dict[str, LoRALinear]:
    """The adapters anywhere in `module` by the name of their projection, such as h.0.attn.c_attn."""
    return {name: part for name, part in module.named_modules() if isinstance(part, LoRALinear)}


def has_adapters(part: object) -> bool:
    """Whether this is a module with adapters in it."""
    return isinstance(part, nn.Module) and bool(adapters(part))


def thaw(module: nn.Module) -> None:
    """Let everything in `module` be trained, but for what lies frozen under adapters."""
    base = unchanging_names(module)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name not in base)


def copy_to_train(model: GPT) -> GPT:
    """A copy that can be trained beside `model`; of one with adapters over the same frozen tensors."""
    shared = [model.get_parameter(name) for name in unchanging_names(model)]
    copied = copy.deepcopy(model, {id(tensor): tensor for tensor in shared})
    thaw(copied)
    return copied


def frozen_copy(model: Model) -> Model:
    """A copy of `model` without gradients or dropout; what is frozen already is shared."""
    frozen = {id(tensor): tensor for tensor in model.parameters() if not tensor.requires_grad}
    return copy.deepcopy(model, frozen).eval().requires_grad_(False)


@torch.no_grad()
def linears_to_bfloat16(model: nn.Module) -> nn.Module:
    """Round the weights of a frozen model's linear layers to bfloat16, in place; returns the model.

    Under bfloat16 autocast, the only place for such a model, every result stays the same bit for bit:
    autocast rounds these weights in each forward. Half the memory, and 96 casts per decoded token less
    at GPT-2's depth.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.out_features > 1:
            module.to(torch.bfloat16)
    return model


def merged_state(module: nn.Module) -> dict[str, Tensor]:
    """The state dict without adapters: each is merged into its projection, on the CPU."""
    state: dict[str, Tensor] = dict(module.state_dict())
    for name, layer in adapters(module).items():
        del state[f"{name}.lora_A"], state[f"{name}.lora_B"]
        state[f"{name}.weight"] = layer.merged_weight().cpu()
    return state


def fit_for_training(config: MemoryFlags, model: GPT) -> GPT:
    """Let `model` be trained as the flags ask, in place: checkpointed blocks, adapters. Returns it."""
    model.gradient_checkpointing = config.gradient_checkpointing
    if config.lora_rank:
        generator = make_generator(config.seed, "adapters")
        add_adapters(model, config.lora_rank, generator)
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        print(f"LoRA: {trained:,} weights are trained, {model.parameter_count():,} with the frozen")
    return model


def critic_trunk(config: MemoryFlags, model: GPT) -> GPT:
    """A copy of a frozen model to train beside it: with LoRA only new adapters over its tensors."""
    if not config.lora_rank:
        return copy_to_train(model)
    over = copy.deepcopy(model, {id(tensor): tensor for tensor in model.parameters()})
    return add_adapters(over, config.lora_rank, make_generator(config.seed, "critic adapters"))
