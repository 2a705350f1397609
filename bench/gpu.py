"""One device in a few numbers: tokens and steps a second, and the peak of memory.

    python bench/gpu.py --keep docs/gpu.json      GPT-2's and SmolLM2's size on the card here, 8 minutes
    python bench/gpu.py --device cpu --toy        the same code with the smallest model, anywhere

First, whether the device draws the CPU's tokens and has its gradient, in float32. Then sampling, updates
of the policy, GRPO's whole steps and those of a reward model (bench/sides.py), in float32, with TF32
products and in bfloat16; every response is as long as it may be, and a number is the median of the
repeats after one that does not count. Then the tests marked gpu, and where SmolLM2's weights are at hand
a short GRPO. **It has not run on a card yet.**
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import importlib.util
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from sides import OURS, Accumulated, model_of, sampled
from turns import Case, Side, peak_mib, reset_peak

from harness.command_line import run_command
from harness.device import open_device
from harness.errors import UserError
from harness.files import read_jsonl, write_json
from harness.flags import AtLeastOne, check_ranges
from harness.paths import MODEL_FILE, REPOSITORY
from harness.seeds import make_generator

PRECISIONS = ("float32", "TF32", "bfloat16")  # TF32: float32 whose products are of 10 bits
WORK = {"sample": "tokens", "update": "updates", "grpo": "steps", "reward": "steps"}


@dataclass(frozen=True)
class GpuConfig:
    """Measure sampling and training on one device."""

    device: str = "auto"
    """cuda, cpu, mps; "auto" takes the first of them that is here."""
    toy: bool = False
    """The smallest model and few rows, to try the code."""
    rows: AtLeastOne = 64
    """Rows that are sampled at once, in groups of 8, and rows of an update; pairs of a reward model."""
    repeats: AtLeastOne = 3
    """Repeats that count."""
    minutes: float = 8.0
    """What is not begun by then is left out."""
    weights: Path = Path("runs/smollm2")
    """Folder of SmolLM2-135M-Instruct (scripts/smollm2.py); without it its shape has random weights."""
    keep: Path | None = None
    """Write the numbers into this JSON file."""

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def has_weights(self) -> bool:
        return (self.weights / MODEL_FILE).is_file()

    @property
    def cases(self) -> list[Case]:
        """All work at both sizes."""
        folder = str(self.weights) if self.has_weights else ""
        shared = Case("sample", "tiny", 2, 2, 3, 4)
        large = replace(
            shared, prompts=max(self.rows // 8, 1), group=8, prompt_tokens=64, new_tokens=64
        )
        sizes = [replace(large, preset="gpt2"), replace(large, preset="smollm2", folder=folder)]
        return [
            replace(size, task=task, prompts=size.rows, group=2) if task == "reward"
            else replace(size, task=task)
            for size in ([shared] if self.toy else sizes) for task in WORK
        ]  # fmt: skip


def wait(device: torch.device) -> None:
    """Return once the device has done what it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


class Timed:
    """Turns (bench/turns.py) of this process alone: so many repetitions after one that does not count."""

    def __init__(self, repeats: int, device: torch.device) -> None:
        self.left, self.device, self.times = repeats + 2, device, list[float]()
        reset_peak()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def next(self) -> bool:
        wait(self.device)
        self.times.append(time.perf_counter())
        self.left -= 1
        return self.left > 0

    @property
    def seconds(self) -> float:
        pairs = zip(self.times, self.times[1:], strict=False)
        return statistics.median([end - begin for begin, end in pairs][1:])

    @property
    def peak(self) -> float:
        """GB: of tensors on a card, else of the process."""
        on_card = self.device.type == "cuda"
        return (
            torch.cuda.max_memory_allocated(self.device) if on_card else peak_mib() * 2**20
        ) / 1e9


def beside_the_cpu(case: Case, device: torch.device) -> dict[str, Any]:
    """How many rows are drawn otherwise, and how far the gradient of shared prompts is off; in float32."""
    case = replace(case, prompts=2, group=2)
    drawn, gradients = [], []
    for where in ("cpu", str(device)):
        model = model_of(case, where)
        drawn.append(sampled(model, case, make_generator(0, "sampling")).response_tokens)
        Accumulated(case, where).backward(model)
        parts = [p.grad.flatten().cpu() for p in model.parameters() if p.grad is not None]
        gradients.append(torch.cat(parts))
    rows = int((drawn[0] != drawn[1]).any(1).sum())
    gap = float((gradients[1] - gradients[0]).norm() / gradients[0].norm())
    print(f"{case.preset}: {rows} of {case.rows} rows drawn otherwise, gradient off by {gap:.1e}")
    return {"model": case.preset, "rows": case.rows, "drawn_otherwise": rows, "gradient_off": gap}


def measured(config: GpuConfig, case: Case, kind: str, device: torch.device) -> dict[str, Any]:
    """Run and print one kind of work in one precision."""
    dtype = "bfloat16" if kind == "bfloat16" else "float32"
    open_device(config.device, dtype)
    torch.backends.cuda.matmul.allow_tf32 = kind != "float32"  # in bfloat16 the heads', as in a run
    turns = Timed(config.repeats, device)
    side = Side(kind, "ours", replace(case, precision=dtype), 1, device=str(device))
    OURS[case.task](side, turns)
    count = case.rows * case.new_tokens if case.task == "sample" else 1
    rate, unit = count / turns.seconds, WORK[case.task]
    speed = f"{rate:,.3g} {unit} a second, peak {turns.peak:.2f} GB"
    print(f"{case.preset}, {kind}, {case.task}: {speed}", flush=True)
    return {
        "model": case.preset, "work": case.task, "sizes": case.described, "precision": kind,
        f"{unit}_a_second": round(rate, 3), "peak_gb": round(turns.peak, 3),
    }  # fmt: skip


def marked_tests() -> str:
    """The last line of pytest for the tests marked gpu."""
    if importlib.util.find_spec("pytest") is None:
        return "not run: pytest is not installed"
    words = "-m pytest -q -m gpu -p no:cacheprovider tests/gpt".split()
    run = subprocess.run([sys.executable, *words], cwd=REPOSITORY, capture_output=True, text=True)
    print(run.stdout[-3000:] if run.returncode else "", end="")
    return (run.stdout.strip().splitlines() or [run.stderr[-300:]])[-1]


def short_grpo(config: GpuConfig) -> dict[str, Any]:
    """Four steps of GRPO on SmolLM2 in bfloat16, as the command runs them: its last row of metrics."""
    with tempfile.TemporaryDirectory(prefix="gpu-") as out:
        command = [sys.executable, "-m", "rl.grpo_engine", "--data", "instructions", "--model"]
        command += [str(config.weights.resolve()), "--steps", "4", "--precision", "bfloat16"]
        command += ["--device", config.device, "--out", out]
        command += ["--eval-prompts", "0", "--test-prompts", "0"]
        run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
        if run.returncode:
            raise UserError(f"GRPO on SmolLM2 has failed: {run.stderr[-600:]}")
        row = read_jsonl(Path(out, "metrics.jsonl"))[-1]
    return {name: value for name, value in row.items() if isinstance(value, (int, float))}


def main(config: GpuConfig) -> None:
    begin, device = time.perf_counter(), open_device(config.device)
    if config.device == "auto" and device.type == "cpu":
        raise UserError(
            "PyTorch finds no card here: see to its driver and build, or add --device cpu --toy"
        )
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    found: dict[str, Any] = {
        "device": name, "date": time.strftime("%Y-%m-%d"), "weights": config.has_weights,
        "versions": {
            "python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda,
        },
    }  # fmt: skip
    print(f"{name}, PyTorch {torch.__version__}")
    firsts = [case for case in config.cases if case.task == "sample"]
    found["beside_the_cpu"] = [beside_the_cpu(case, device) for case in firsts]
    found["tests"] = marked_tests()
    print(f"tests marked gpu: {found['tests']}", flush=True)
    if config.has_weights and not config.toy:
        found["grpo_on_smollm2"] = short_grpo(config)
        print(f"GRPO on SmolLM2: {found['grpo_on_smollm2']}", flush=True)
    found["numbers"], found["left_out"] = [], []
    for case in config.cases:
        for kind in PRECISIONS:
            if time.perf_counter() - begin > 60 * config.minutes:
                found["left_out"].append(f"{case.preset}, {kind}, {case.task}")
            else:
                found["numbers"].append(measured(config, case, kind, device))
            if config.keep is not None:
                write_json(config.keep, found)
    if found["left_out"]:
        print(f"after {config.minutes:g} minutes were left out: {'; '.join(found['left_out'])}")


if __name__ == "__main__":
    run_command(main, GpuConfig)
