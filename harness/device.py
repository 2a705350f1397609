"""The device that a run computes on, and in which precision."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from harness.errors import UserError
from harness.ranks.collectives import world


def peak_memory() -> float:
    """Peak memory of this process in bytes: of the card if one is used, else of the machine; 0: unknown."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return float(torch.cuda.max_memory_allocated())
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    unit = 1 if sys.platform == "darwin" else 1024
    return float(unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def free_memory(device: torch.device) -> float:
    """Bytes that are free on a card, or in the machine's memory; infinite where nobody knows."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    if device.type == "mps":
        return float(torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    return free_ram(Path("/"))


def free_ram(root: Path) -> float:
    """Free bytes by the files of Linux under `root`, within the limits of a container or of a job.

    A limit counts pages of files, which can go; what programs hold is `anon` (cgroup v2) or `total_rss`.
    Elsewhere it is all the memory that the machine has.
    """
    free = math.inf
    with suppress(AttributeError, OSError, ValueError):  # Windows has no sysconf
        free = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(KeyError, OSError):
        numbers = dict(re.findall(r"(\w+):\s+(\d+) kB", (root / "proc/meminfo").read_text()))
        free = 1024.0 * int(numbers["MemAvailable"])
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, kind, place = line.split(":", 2)
            limit, held = ("memory.limit_in_bytes", "total_rss") if kind else ("memory.max", "anon")
            top = root / "sys/fs/cgroup" / kind
            group = top / place.strip("/")
            for each in (group, *group.parents) if kind in ("", "memory") else ():
                with suppress(OSError, ValueError):  # "max", or none of this name
                    used = dict(map(str.split, (each / "memory.stat").read_text().splitlines()))
                    free = min(free, float((each / limit).read_text()) - int(used.get(held, 0)))
                if each == top:
                    break
    return free


def pick_device(name: str = "auto") -> torch.device:
    """cuda, then mps, then cpu for "auto"; otherwise the named device, or UserError without it."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
        if name == "cpu" and torch.backends.mps.is_available():
            name = "mps"
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda", "mps"):
            raise RuntimeError(device.type)
    except RuntimeError:  # torch's own lists two dozen kinds of hardware
        raise UserError(f"--device {name}: use auto, cpu, cuda, cuda:N or mps") from None
    missing = (device.type == "cuda" and not torch.cuda.is_available()) or (
        device.type == "mps" and not torch.backends.mps.is_available()
    )
    if missing:
        raise UserError(f"--device {name}: PyTorch finds no such device here; use --device cpu")
    if device == torch.device("cuda") and world() > 1:
        device = torch.device("cuda", torch.cuda.current_device())  # each rank has its own
    return device


def open_device(name: str = "auto", dtype: str = "float32") -> torch.device:
    """`pick_device`, and on CUDA: make it the current device and choose the float32 product.

    It is exact with --precision float32 and TF32 with bfloat16, where it serves the heads alone and
    moves their log-probs by about 0.002 nats.
    """
    device = pick_device(name)
    if device.type != "cuda":
        return device
    if device.index is not None:
        torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = dtype == "bfloat16"
    if dtype == "bfloat16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        print(
            f"note: {torch.cuda.get_device_name(device)} has no bfloat16 arithmetic and emulates it, "
            "slowly: --precision float32 is faster there",
            flush=True,
        )
    return device


def fast_precision(name: str = "auto") -> str:
    """bfloat16 on a CPU with products of it (AVX-512 BF16, AMX or Arm's), else float32.

    An older PyTorch does not know of Arm's: float32.
    """
    if pick_device(name).type != "cpu":
        return "float32"
    says: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    has = says.get("avx512_bf16") or says.get("amx_bf16") or says.get("bf16")  # the last is Arm's
    return "bfloat16" if has or torch.cpu._is_avx512_bf16_supported() else "float32"


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor` on this device; the copy to a GPU is not waited for."""
    return tensor.to(device, non_blocking=device.type == "cuda")


def precision(device: torch.device, dtype: str) -> AbstractContextManager[None]:
    """Inside: bfloat16 autocast over float32 weights, or nothing for "float32"."""
    if dtype == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Inside, products are computed in the dtype of their inputs."""
    if device.type == "meta":  # shapes alone: autocast does not know this device
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def rounds_factors(device: torch.device) -> bool:
    """Whether this is autocast on a CPU: `float32_heads` may then round a product's factors."""
    return device.type == "cpu" and torch.is_autocast_enabled("cpu")


@contextmanager
def usual_torch() -> Iterator[None]:
    """Inside, PyTorch's defaults are those of a new process, whatever a notebook has set."""
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    places = nullcontext() if device.type == "cpu" else torch.device("cpu")
    torch.set_default_dtype(torch.float32)
    try:
        with torch.inference_mode(False), torch.enable_grad(), places:
            yield
    finally:
        torch.set_default_dtype(dtype)


@contextmanager
def float32_heads(device: torch.device, rounded: bool) -> Iterator[None]:
    """Inside, products have the dtype of their inputs; of `rounded` factors where that is faster.

    A CPU with AMX then rounds the factors to bfloat16, as autocast does with all other weights, and adds
    up in float32: SmolLM2's log-probs move by 0.005 nats in the mean, by its blocks' by 0.014. One with
    AVX-512 BF16 alone rounds nothing, but takes oneDNN's product, 1.2 to 1.7 times as fast as MKL's.
    """
    with without_autocast(device):
        try:
            if rounded:
                torch.set_float32_matmul_precision("medium")
            yield
        finally:
            if rounded:
                torch.set_float32_matmul_precision("highest")


class _NothingDrawn(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(function, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs or {})


@contextmanager
def shapes_alone() -> Iterator[None]:
    """A module made inside has shapes and no memory, for the tensors of a file to become its weights.

    No weights are drawn: on the meta device that would load PyTorch's compiler, which takes 2 seconds.
    """
    with torch.device("meta"), _NothingDrawn():
        yield
