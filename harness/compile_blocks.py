"""torch.compile for the update, where a compiler is at hand: numbers differ in their last bits only.

Blocks are compiled one by one, so that one compilation serves them all. A copy of a compiled model is
a plain one, and a forward pass with a cache goes past what is compiled: the cache grows with every token.
"""

from __future__ import annotations

import torch
import torch.nn as nn

BACKEND = "inductor"


def why_not(device: torch.device, backend: str = BACKEND) -> str:
    """Why nothing can be compiled here, in a few words; empty where it works."""
    try:
        torch.compile(lambda x: (x * 2 + 1).sin(), backend=backend)(torch.ones(8, device=device))
    except Exception as error:  # no C++ compiler, no Triton, no Python headers: each its own class
        lines = str(error).strip().splitlines()
        return lines[0] if lines else type(error).__name__
    return ""


def compile_blocks(model: nn.Module, device: torch.device, backend: str = BACKEND) -> bool:
    """Compile the transformer blocks in `model`, in place; False, and a sentence, where it cannot be."""
    reason = why_not(device, backend)
    if reason:
        print(f"--compile: nothing can be compiled here ({reason}); the update runs without it")
        return False
    for stack in model.modules():
        if isinstance(stack, nn.ModuleList):
            for block in stack:
                block.compile(backend=backend)
    return True
