"""One device in a few numbers: tokens a second, updates a second and the peak of memory.

    python bench/gpu.py                                        GPT-2's 124M shape on the card here
    python bench/gpu.py --device cpu --preset tiny --rows 4    the same code at toy size, anywhere

First, whether the device draws the CPU's tokens and has its gradient, in float32. Then sampling and
policy updates (log-probs, clipped surrogate, backward, clip, AdamW), in float32 and in bfloat16.
Weights and rows are random, every response is as long as it may be, and a number is the median of the
repeats after one that does not count. **It has not run on a card yet.**
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from sides import BETAS, LR, MAX_NORM, loss_ours, model_of, sampled, sampled_batch
from turns import Case, peak_mib, reset_peak

from gpt.model import GPT, Preset
from harness.command_line import run_command
from harness.device import open_device, precision
from harness.errors import UserError
from harness.flags import AtLeastOne
from harness.optimizer import adamw, clip_and_step
from harness.seeds import make_generator


@dataclass(frozen=True)
class GpuConfig:
    """Measure sampling and updates on one device."""

    device: str = "auto"
    """cuda, cpu, mps; "auto" takes the first of them that is here."""
    preset: Preset = "gpt2"
    """Shape of the model."""
    rows: AtLeastOne = 64
    """Rows that are sampled at once, and rows of an update."""
    micro_rows: AtLeastOne = 8
    """Rows of a forward pass of an update."""
    prompt_tokens: AtLeastOne = 64
    """Tokens of each prompt."""
    new_tokens: AtLeastOne = 64
    """Tokens of each response."""
    repeats: AtLeastOne = 3
    """Repeats that count."""

    @property
    def case(self) -> Case:
        sizes = dict(prompt_tokens=self.prompt_tokens, new_tokens=self.new_tokens)
        return Case("sample", self.preset, prompts=self.rows, **sizes)


def wait(device: torch.device) -> None:
    """Return once the device has done what it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def measured(
    config: GpuConfig, device: torch.device, work: Callable[[], object]
) -> tuple[float, float]:
    """Seconds that `work` takes, and the peak in GB: of tensors on a card, else of the process."""
    times = []
    reset_peak()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    for _ in range(config.repeats + 1):
        wait(device)
        begin = time.perf_counter()
        work()
        wait(device)
        times.append(time.perf_counter() - begin)
    on_card = device.type == "cuda"
    peak = torch.cuda.max_memory_allocated(device) if on_card else peak_mib() * 2**20
    return statistics.median(times[1:]), peak / 1e9


def accumulated(model: GPT, case: Case, micro_rows: int, dtype: str) -> None:
    """The gradient of the surrogate over all rows, `micro_rows` in a forward pass."""
    batch, old, advantages = (x.to(model.device) for x in sampled_batch(case))
    for rows in torch.arange(case.rows).split(micro_rows):
        here = rows.to(model.device)
        loss = loss_ours(model, batch.rows(rows), old[here], advantages[here], dtype)
        (loss * len(rows) / case.rows).backward()


def beside_the_cpu(config: GpuConfig, device: torch.device) -> None:
    """Print how many rows are drawn otherwise, and how far the gradient is off; in float32."""
    case = replace(config.case, prompts=min(config.rows, 4))
    drawn, gradients = [], []
    for where in ("cpu", str(device)):
        model = model_of(case, where)
        drawn.append(sampled(model, case, make_generator(0, "sampling")).response_tokens)
        accumulated(model, case, config.micro_rows, "float32")
        parts = [p.grad.flatten().cpu() for p in model.parameters() if p.grad is not None]
        gradients.append(torch.cat(parts))
    rows = int((drawn[0] != drawn[1]).any(1).sum())
    gap = float((gradients[1] - gradients[0]).norm() / gradients[0].norm())
    print(f"beside the CPU: {rows} of {case.rows} rows drawn otherwise, gradient off by {gap:.1e}")


def one_precision(config: GpuConfig, device: torch.device, dtype: str) -> None:
    """Measure and print sampling and an update."""
    open_device(config.device, dtype)
    model = model_of(config.case, str(device))
    optimizer = adamw(model, LR, betas=BETAS, weight_decay=0.0)

    def sample() -> None:
        with precision(device, dtype):
            sampled(model, config.case, make_generator(0, "sampling"))

    def update() -> None:
        optimizer.zero_grad(set_to_none=True)
        accumulated(model, config.case, config.micro_rows, dtype)
        clip_and_step(optimizer, model.parameters(), MAX_NORM)

    seconds, peak = measured(config, device, sample)
    rate = config.rows * config.new_tokens / seconds
    print(f"{dtype}: {rate:,.0f} tokens a second, peak {peak:.2f} GB")
    seconds, peak = measured(config, device, update)
    print(f"{dtype}: {1 / seconds:.3g} updates a second, peak {peak:.2f} GB")


def main(config: GpuConfig) -> None:
    device = open_device(config.device)
    if config.device == "auto" and device.type == "cpu":
        raise UserError(
            "PyTorch finds no card here: see to its driver and build, or add --device cpu --preset tiny "
            "--rows 4 for toy sizes"
        )
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    print(f"{name}, PyTorch {torch.__version__}: {config.preset}, {config.case.described}")
    beside_the_cpu(config, device)
    for dtype in ("float32", "bfloat16"):
        one_precision(config, device, dtype)


if __name__ == "__main__":
    run_command(main, GpuConfig)
