"""Every engine on a CUDA device that is not there: does it mix devices up, and how often would it wait?

    make waits                                     builds bench/pretend_card.cpp once (g++), then this
    python bench/pretend_card.py --only grpo dpo   some engines, every line that waits

The device lies in host memory that is filled with NaN, so mixing devices raises and what nobody wrote
shows. A copy to the host, a number that is asked for and a shape that depends on values each count as
a wait, in the backward thread too. It has no kernels, no graphs and no NCCL: it says nothing about
speed. It needs the CPU build of the PyTorch whose headers it was written for (2.13).
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import os
import shutil
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = Path(__file__).with_suffix(".cpp")
LIBRARY = ROOT / "build" / "libpretend_card.so"
A_STEP = {"grpo": 6}  # waits that a whole step may have; a further micro-batch may have none
KEPT = "h2d_async"  # a copy to the device that is not waited for

waits: Counter[tuple[str, str, str]] = Counter()  # (kind, operation, line)


def build() -> str | None:
    """Compile the device if it is not there yet; why not, if it cannot be."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return "PyTorch is not installed"
    torch_folder = Path(found.origin).parent
    if not (torch_folder / "lib" / "libtorch_cpu.so").exists() or list(
        torch_folder.glob("lib/libtorch_cuda*")
    ):
        return "it needs the CPU build of PyTorch on Linux"
    if LIBRARY.exists() and LIBRARY.stat().st_mtime > SOURCE.stat().st_mtime:
        return None
    if shutil.which("g++") is None:
        return "there is no g++ here"
    LIBRARY.parent.mkdir(exist_ok=True)
    include, libraries = torch_folder / "include", torch_folder / "lib"
    command = [
        "g++", "-O1", "-std=c++20", "-fPIC", "-shared", f"-I{include}",
        f"-I{include}/torch/csrc/api/include", str(SOURCE), "-o", str(LIBRARY), f"-L{libraries}",
        "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{libraries}",
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        return f"g++ could not build it: {result.stderr.strip().splitlines()[0]}"
    return None


def note(kind: str, operation: str) -> None:
    """Called by the device for everything that would wait."""
    if kind == "op":
        return
    thread = threading.current_thread().__class__.__name__
    where = "the backward thread" if thread == "_DummyThread" else "?"
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if "/torch/" not in name and name not in (__file__, "<string>"):
            where = f"{'/'.join(name.split('/')[-2:])}:{frame.f_lineno}"
            break
        frame = frame.f_back
    waits[kind, operation, where] += 1


def load() -> None:
    """Put the device into this process. PyTorch must not have been loaded before."""
    assert "torch" not in sys.modules, "the device has to be loaded before PyTorch"
    sys.modules["pretend_card"] = sys.modules[__name__]  # by this name the device calls `note`
    ctypes.CDLL(str(LIBRARY), ctypes.RTLD_GLOBAL)
    import torch

    cuda: Any = torch.cuda
    cuda._lazy_init = lambda: None
    cuda.is_available, cuda.is_initialized = lambda: True, lambda: False
    cuda.is_bf16_supported = lambda including_emulation=True: True
    cuda.current_device, cuda.device_count = lambda: 0, lambda: 1
    cuda._is_in_bad_fork = lambda: False
    common: Any = sys.modules.get("torch.cuda.amp.common") or __import__(
        "torch.cuda.amp.common", fromlist=["common"]
    )
    common.amp_definitely_not_available = lambda: False
    storage: Any = torch.UntypedStorage
    host = storage.cpu

    def to_host(self: Any) -> Any:
        if self.device.type != "cuda":
            return host(self)
        whole = torch.empty(0, dtype=torch.uint8, device="cuda")
        whole.set_(self, 0, (self.nbytes(),), (1,))
        return whole.cpu().untyped_storage()

    storage.cpu = torch.storage._StorageBase.cpu = to_host


@contextmanager
def counting() -> Iterator[Counter[tuple[str, str, str]]]:
    """The waits inside."""
    import torch

    waits.clear()
    torch.ops.pretend_card.set_hook(True)
    try:
        yield waits
    finally:
        torch.ops.pretend_card.set_hook(False)


def counted(engine: Any, rows: int) -> Counter[tuple[str, str, str]]:
    """What a step of 16 responses waits for with `rows` of them in a forward pass."""
    from engines import SHARE_OF_A, small_gpt

    wished = dict(
        steps=1, minibatches=1, updates_per_batch=1, prompts_per_step=4, group_size=4, batch_size=8,
        micro_batch_size=rows,
    )  # fmt: skip
    options = {name: value for name, value in wished.items() if engine.has(name)}
    if engine.teacher is not None:
        engine = replace(engine, teacher=copy.deepcopy(engine.teacher).to("cuda"))
    policy = small_gpt().to("cuda")
    with counting() as found:
        engine.run(policy, SHARE_OF_A if engine.rule else None, **options)
        return Counter({key: n for key, n in found.items() if key[0] != KEPT})


def main(only: tuple[str, ...]) -> int:
    """Run the engines; 1 if one mixes devices up or waits more often than it may."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "rl"), str(ROOT / "tests")]
    warnings.simplefilter("ignore")
    os.environ["GLASSBOX_DECODING"] = "captured"
    import engines
    import torch

    from gpt import decode_static
    from rl.rewards.step_rewards import StepRewards

    # Stand-ins: a replay runs the function again, and the tests' own steps make their tensors here.
    stand_in: Any = decode_static
    stand_in.recorded, stand_in.aside = lambda function, device: function, lambda _: nullcontext()
    steps: Any = engines.LetterSteps
    steps_of = steps.__call__
    steps.__call__ = lambda self, rollout, rewards: StepRewards(
        *(x.to(rollout.response_tokens.device) for x in steps_of(self, rollout, rewards))
    )
    torch.set_num_threads(1)
    failed = 0
    for engine in engines.ENGINES:
        if only and engine.name not in only:
            continue
        try:
            two, four = counted(engine, 8), counted(engine, 4)
        except RuntimeError as error:
            print(f"{engine.name}: {str(error).splitlines()[0]}")
            failed = 1
            continue
        more = (sum(four.values()) - sum(two.values())) / 2
        wrong = more > 0 or sum(two.values()) > A_STEP.get(engine.name, 100)
        failed |= wrong
        print(
            f"{engine.name:22} a step waits {sum(two.values()):3} times, a further micro-batch "
            f"{more:g}{'   TOO OFTEN' if wrong else ''}"
        )
        for (kind, operation, line), times in (four if wrong or only else Counter()).most_common():
            print(f"    {times} x {line}  {kind} {operation}")
    return int(failed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        usage="python bench/pretend_card.py\n  [flags]\nEvery engine on a pretended card."
    )
    parser.add_argument("--only", nargs="+", default=(), help="engines, with every line that waits")
    asked = parser.parse_args()
    reason = build()
    if reason is not None:
        print(f"skipped: {reason}")
        sys.exit(0)
    load()
    sys.exit(main(tuple(asked.only)))
