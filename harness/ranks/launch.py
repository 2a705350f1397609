"""Starting the ranks of a run (harness/ranks/collectives.py): processes on this machine, or those that torchrun started.

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
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from harness.ranks import collectives
from harness.ranks.shared_memory import Board

# One single-threaded process per core is faster for models up to this width (docs/ranks.md).
SMALL_WIDTH_PRESETS = ("tiny", "study", "teacher", "english", "small")
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
    limits = [allowed, container_cores(), int(wished) if wished.isdigit() else allowed]
    return max(min(limits), 1)


def container_cores(limit: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """How many cores' time a container may use (`docker run --cpus`): it sees all of the machine's."""
    try:
        quota, period = limit.read_text().split()
        return max(int(quota) // int(period), 1)
    except (OSError, ValueError):  # no such file, or "max": no limit
        return sys.maxsize


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
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        _require_devices(local, getattr(config, "device", "auto"))
        torch.set_num_threads(max(cores() // local, 1))
        return _take_part(number, count, store, main, config)
    count, threads = _ranks_and_threads(config)
    if count < 2:
        return main(config)
    _require_devices(count, getattr(config, "device", "auto"))
    # A fork costs nothing, but a process that has met CUDA, macOS's frameworks or a second thread
    # must not be forked: a forked rank has one thread, as those of a small model on a CPU.
    forks = platform.system() == "Linux" and not torch.cuda.is_available() and threads == 1
    context: Any = multiprocessing.get_context("fork" if forks else "spawn")
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        file = os.path.join(folder, "meeting")
        here = Meeting(count, threads, file, Board(context, count), os.getpid())
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
            if _another_speaks:  # let it finish its sentence
                connection.wait([child.sentinel for child in children], timeout=5)
            for child in children:
                child.terminate()
            raise
        finally:
            for child in children:
                child.join()


def _ranks_and_threads(config: Any) -> tuple[int, int]:
    """What the flags ask for: ranks by default have one thread, a number of them shares the cores."""
    count = getattr(config, "ranks", 1)
    if count is not None:
        return count, max(cores() // count, 1)
    if getattr(config, "weights", None) is not None:  # published ones are not small
        return 1, cores()
    device = getattr(config, "device", "auto")
    return default_ranks(getattr(config, "preset", "tiny"), device), 1


@dataclass(frozen=True)
class Meeting:
    """Where the ranks on one machine find each other."""

    count: int
    threads: int  # of each
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
        torch.set_num_threads(self.threads)
        store = dist.FileStore(self.file, self.count)
        return _take_part(
            number, self.count, store, main, config, self.board.take_part(number, gone)
        )


def _require_devices(count: int, device: str) -> None:
    """Refuse more ranks than GPUs, several on one named GPU, and several on Apple's."""
    if count < 2 or device == "cpu":
        return
    if device == "mps" or (device == "auto" and torch.backends.mps.is_available()):
        raise ValueError(f"--ranks {count}: ranks work on CPUs and on CUDA; add --device cpu")
    if not torch.cuda.is_available():
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

    def gone() -> bool:
        return os.getppid() != here.parent

    threading.Thread(target=_wait_for_nobody, args=(gone,), daemon=True).start()
    with guard():
        here.join(number, gone, main, config)


def _wait_for_nobody(gone: Callable[[], bool]) -> None:
    """End this rank if the first one is killed before they have met: torch would wait half an hour.

    Once they have, every wait looks for it itself.
    """
    while not dist.is_initialized():
        if gone():
            os._exit(1)
        time.sleep(0.2)


def _take_part(
    number: int,
    count: int,
    store: Any,
    main: Callable[[Any], Any],
    config: Any,
    board: Board | None = None,
) -> Any:
    """Join the others, run, leave."""
    global _store
    _store = store
    cuda = torch.cuda.is_available() and getattr(config, "device", "auto") != "cpu"
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    collectives.use_shared_memory(
        board
    )  # who has failed by now is missed here, not in torch's half an hour
    try:
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        dist.init_process_group(backend, store=store, rank=number, world_size=count)
        if number:
            sys.stdout = Path(os.devnull).open("w", encoding="utf-8")
            warnings.simplefilter("ignore")  # the first rank gives them
        result = main(config)
        collectives.gather(None)  # nobody leaves before the last one is done
        _store = None
        return result
    finally:
        collectives.use_shared_memory(None)
        if dist.is_initialized():
            dist.destroy_process_group()


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
