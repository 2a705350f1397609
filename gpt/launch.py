"""Starting the ranks of a run (gpt/ranks.py): processes on this machine, or those that torchrun started.

python -m rl.grpo_engine                      small models on a CPU: one process per core
python -m rl.grpo_engine --ranks 1            one process
python -m rl.grpo_engine --ranks 4            four: on GPUs, one each
torchrun --nnodes 2 --nproc-per-node 8 ... -m rl.grpo_engine      several machines
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from gpt import ranks
from gpt.board import Board

# One single-threaded process per core is faster for models up to this width (docs/ranks.md).
SMALL_WIDTH_PRESETS = ("tiny", "study", "teacher", "small")
MOST_BY_DEFAULT = 8  # a batch of 16 prompts gives more ranks too little to do

Guard = Callable[[], AbstractContextManager[Any]]

_store: Any = None  # where the ranks met
_another_speaks = False  # of the failure that ends the run


def cores() -> int:
    """The cores that this process may use; a user's OMP_NUM_THREADS counts as a wish for fewer."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        allowed = os.cpu_count() or 1
    wished = os.environ.get("OMP_NUM_THREADS", "")
    return max(min(allowed, int(wished)) if wished.isdigit() else allowed, 1)


def default_ranks(preset: str, device: str) -> int:
    """One rank per core for a small model on a CPU; otherwise one, whose threads use the cores."""
    accelerated = torch.cuda.is_available() or torch.backends.mps.is_available()
    on_cpu = device == "cpu" or (device == "auto" and not accelerated)
    if not on_cpu or preset not in SMALL_WIDTH_PRESETS:
        return 1
    return min(cores(), MOST_BY_DEFAULT)


def run_on_ranks(main: Callable[[Any], Any], config: Any, guard: Guard = nullcontext) -> Any:
    """main(config) on every rank; returns what it returns on this one, rank 0.

    The flags `ranks`, `preset` and `device` of the config say how many, where it has them. `guard()`
    is the context in which each rank lives and fails.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun has started us, once per rank
        store, number, count = next(iter(dist.rendezvous("env://")))
        return _take_part(number, count, store, main, config)
    count = getattr(config, "ranks", 1)
    device = getattr(config, "device", "auto")
    if count is None:
        count = default_ranks(getattr(config, "preset", "tiny"), device)
    if count < 2:
        return main(config)
    _require_devices(count, device)
    # A fork costs nothing, but a process that has met CUDA, or macOS's frameworks, must not be forked.
    forks = platform.system() == "Linux" and not torch.cuda.is_available()
    context: Any = multiprocessing.get_context("fork" if forks else "spawn")
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        here = Meeting(count, os.path.join(folder, "meeting"), Board(context, count), os.getpid())
        children = [
            context.Process(target=_as_rank, args=(number, here, main, config, guard), daemon=True)
            for number in range(1, count)
        ]
        for child in children:
            child.start()

        def one_has_ended() -> bool:
            return any(child.exitcode not in (None, 0) for child in children)

        try:
            with guard():  # here, while the others can still be asked who failed first
                return here.join(0, one_has_ended, main, config)
        except BaseException:
            for child in children:
                if _another_speaks:  # let it finish its sentence
                    child.join(5)
                child.terminate()
            raise
        finally:
            for child in children:
                child.join()


@dataclass(frozen=True)
class Meeting:
    """Where the ranks on one machine find each other."""

    count: int
    file: str
    board: Board
    parent: int  # the process of rank 0

    def join(
        self, number: int, gone: Callable[[], bool], main: Callable[[Any], Any], config: Any
    ) -> Any:
        """Run as this rank; `gone()` says whether another one has ended before its time."""
        if platform.system() != "Windows":  # no need of the machine's network
            loopback = "lo0" if platform.system() == "Darwin" else "lo"
            os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
        os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"] = str(number), str(self.count)
        ranks.talk_on(self.board.take_part(number, gone))
        try:
            return _take_part(
                number, self.count, dist.FileStore(self.file, self.count), main, config
            )
        finally:
            ranks.talk_on(None)


def _require_devices(count: int, device: str) -> None:
    """Refuse more ranks than GPUs, or several on one named GPU."""
    if device == "cpu" or not torch.cuda.is_available():
        return
    if ":" in device:
        raise ValueError(
            f"--ranks {count} wants a GPU each, --device {device} names one: leave the number out"
        )
    if count > torch.cuda.device_count():
        raise ValueError(
            f"--ranks {count}, but PyTorch sees {torch.cuda.device_count()} GPUs: lower --ranks"
        )


def _as_rank(
    number: int, here: Meeting, main: Callable[[Any], Any], config: Any, guard: Guard
) -> None:
    """The life of a rank that `run_on_ranks` has started."""
    with guard():
        here.join(number, lambda: os.getppid() != here.parent, main, config)


def _take_part(number: int, count: int, store: Any, main: Callable[[Any], Any], config: Any) -> Any:
    """Join the others, run, leave."""
    global _store
    _store = store
    here = int(os.environ.get("LOCAL_WORLD_SIZE", count))
    torch.set_num_threads(max(cores() // here, 1))
    cuda = torch.cuda.is_available() and getattr(config, "device", "auto") != "cpu"
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if cuda else "gloo", store=store, rank=number, world_size=count
    )
    if number:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")
    result = main(config)
    ranks.gather(None)  # nobody leaves before the last one is done
    dist.destroy_process_group()
    return result


def first_to_fail() -> bool:
    """True for the rank that speaks of a failure: the first one. Always true of a single process."""
    global _store, _another_speaks
    if _store is None:
        return True
    store, _store = _store, None  # asked once: whoever fails, fails once
    try:
        _another_speaks = store.add("failed", 1) > 1
    except RuntimeError:  # the store has gone with its rank, which has spoken
        _another_speaks = True
    return not _another_speaks
