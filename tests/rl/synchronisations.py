"""Counts where a GPU would have to be waited for, on a CPU.

Every tensor stands for one on the device, but for those that a GPU run keeps on the host: made there
without a device (a permutation, a list of lengths), brought there by `.cpu()`, or computed from such
tensors alone. A number that is asked of a device tensor is a wait, and so is a shape that depends on
its values, and a host index into it, which is copied first.
"""

from __future__ import annotations

import traceback
from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

ASKS = {
    Tensor.item, Tensor.tolist, Tensor.cpu, Tensor.numpy, Tensor.__bool__, Tensor.__int__,
    Tensor.__float__, Tensor.__index__, Tensor.nonzero, torch.nonzero, Tensor.masked_select,
    torch.masked_select, Tensor.unique, torch.unique, torch.equal, Tensor.equal, Tensor.__contains__,
}  # fmt: skip
MADE_ON_HOST = {torch.tensor, torch.arange, torch.randperm, torch.rand, torch.randint, torch.empty,
                torch.zeros, torch.ones, torch.full}  # fmt: skip


def is_host(value: Any) -> bool:
    return getattr(value, "on_host", False)


class Synchronisations(TorchFunctionMode):
    """Inside, `count` grows with every wait; `places` says which lines waited."""

    def __init__(self) -> None:
        super().__init__()
        self.places: Counter[str] = Counter()

    @property
    def count(self) -> int:
        return sum(self.places.values())

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.waits(function, args):
            self.note()
        result = function(*args, **kwargs)
        if function is Tensor.cpu:
            return self.marked(result.view_as(result))
        if function is Tensor.to and names_a_device(args[1:], kwargs):
            return result.view_as(result)  # which is on the device, whatever it was made of
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        made = function in MADE_ON_HOST and kwargs.get("device") is None
        if made or (given and all(map(is_host, given)) and kwargs.get("device") is None):
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor):
                    self.marked(leaf)
        return result

    @staticmethod
    def marked(tensor: Tensor) -> Tensor:
        tensor.on_host = True  # type: ignore[attr-defined]
        return tensor

    @staticmethod
    def waits(function: Any, args: tuple[Any, ...]) -> bool:
        if not args or not isinstance(args[0], Tensor) or is_host(args[0]):
            return False
        if function in ASKS:
            return True
        if function in (Tensor.__getitem__, Tensor.__setitem__):
            indices = [leaf for leaf in tree_leaves(args[1]) if isinstance(leaf, Tensor)]
            return any(index.dtype == torch.bool or is_host(index) for index in indices)
        return function in (Tensor.index_select, torch.index_select) and is_host(args[2])

    def note(self) -> None:
        for frame in reversed(traceback.extract_stack()):
            name = frame.filename
            if not name.endswith("/synchronisations.py") and "/torch/" not in name:
                self.places[f"{name.split('/')[-1]}:{frame.lineno} {frame.line}"] += 1
                return


def names_a_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(isinstance(value, str | torch.device) for value in (*args, *kwargs.values()))
