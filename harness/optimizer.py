"""AdamW with decay groups and the warm-up + cosine schedule, shared by every training loop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
import torch.nn as nn

from harness.console import say_once
from harness.flags import OptimizerFlags
from harness.ranks.collectives import sum_gradients

FINAL = 0.1  # of the peak learning rate, where the cosine ends
LONGEST_WARM_UP = 5  # a fifth of the steps: a short run would hardly have the rate it asks for


class Diverged(ValueError):
    """Training has left the finite numbers: which one, why, and after which step if that is known."""

    def __init__(self, quantity: str, value: float, step: int | None = None) -> None:
        super().__init__(
            f"{quantity} is {value}, so training has diverged: lower the learning rate (lr), or start "
            "from a model whose weights are finite"
        )
        self.step = step


def adamw(
    module: nn.Module, lr: float, *, betas: tuple[float, float] = (0.9, 0.95), weight_decay: float
) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101) with decay on matrices only."""
    trained = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = trained[0].device.type in ("cpu", "cuda")  # one kernel for all tensors: same numbers
    return torch.optim.AdamW(groups, lr=lr, betas=betas, fused=fused)


def cosine_schedule(step: int, total: int, *, peak: float, warmup_steps: int) -> float:
    """Learning rate of 0-based `step`: linear warm-up, then a cosine to a tenth of `peak`.

    The warm-up is at most a fifth of the steps.
    """
    warmup_steps = warm_up(warmup_steps, total)
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    progress = min((step - warmup_steps) / max(total - warmup_steps, 1), 1.0)
    return peak * (FINAL + (1 - FINAL) * 0.5 * (1 + math.cos(math.pi * progress)))


def warm_up(asked: int, total: int) -> int:
    """The steps of a warm-up, a fifth of all at most; it is said where more are asked for."""
    most = math.ceil(total / LONGEST_WARM_UP)
    if asked > most:
        say_once(f"warm-up: {most} of {total} steps, a fifth, not the {asked} of --warmup-steps")
    return min(asked, most)


def steps_of_passes(passes: int, rows: int, batch_size: int) -> int:
    """The optimizer steps that visit every row `passes` times; the last one goes on into another pass."""
    return max(math.ceil(passes * rows / batch_size), 1)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def follow_cosine(
    optimizer: torch.optim.Optimizer, step: int, total: int, config: OptimizerFlags
) -> float:
    """Set the learning rate of 0-based `step` as the flags ask; returns it."""
    lr = cosine_schedule(step, total, peak=config.lr, warmup_steps=config.warmup_steps)
    set_learning_rate(optimizer, lr)
    return lr


def clip_and_step(
    optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter], max_grad_norm: float
) -> torch.Tensor:
    """Sum the ranks' gradients, clip the sum, then step; returns the norm from before the clip.

    Losses are divided by the whole batch's denominator, so the sum over the ranks is its gradient.
    Diverged for a gradient that is not finite: stepped along, it would make every weight NaN.
    """
    parameters = list(parameters)
    sum_gradients(parameters)
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm)
    if not math.isfinite(norm):
        raise Diverged("the gradient's norm", float(norm))
    optimizer.step()
    return norm


def check_losses(row: Mapping[str, float]) -> None:
    """Diverged for a loss or a gradient's norm in a row of metrics that is not finite."""
    for name, value in row.items():
        if ("loss" in name or "grad_norm" in name) and not math.isfinite(value):
            raise Diverged(name, float(value))


def check_weights(name: str, module: nn.Module, step: int) -> None:
    """Diverged for a module with a weight that is not finite after this step."""
    for weight in module.parameters():
        if not weight.isfinite().all():
            worst = weight.detach()[~weight.isfinite()][0]
            raise Diverged(f"a weight of the {name}", float(worst), step)
