"""Starting the ranks of a run: processes on this machine, or those that torchrun started.

python -m rl.grpo_engine                      small models on a CPU: one process per core
python -m rl.grpo_engine --ranks 1            one process
python -m rl.grpo_engine --ranks 4            four: on GPUs, one each
torchrun --nnodes 2 --nproc-per-node 8 ... -m rl.grpo_engine      several machines

The command's own process is none of the ranks that it starts: it waits, answers signals, and can end a
rank that hangs.
"""

from __future__ import annotations

import os
import platform
import signal
import socket
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import connection
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from harness import signals
from harness.errors import UserError, first_line
from harness.files import sha256_of
from harness.paths import REPOSITORY
from harness.process import PACKAGES, keep_freed_memory
from harness.ranks import collectives

MAX_DEFAULT_RANKS = 8  # a batch of 16 prompts gives more ranks too little to do
BYTES_A_WEIGHT = 48  # measured: the weight, its gradient, Adam's moments, the start, activations
BYTES_A_RANK = 2**28  # of a process that has loaded PyTorch
MEETING_TIME = timedelta(minutes=5)  # torchrun starts its ranks at about the same time
SILENCE = timedelta(hours=12)  # of a rank on another machine, which may have lost its power
NEVER = timedelta(days=365)  # on one machine the end of a process is noticed; a reward may be slow
LAST = 5  # seconds that a rank has to leave when another one has failed

Guard = Callable[[], AbstractContextManager[Any]]
Work = Callable[[], Any]


@dataclass(frozen=True)
class RankRequest:
    """How many processes a command asks for, and where; None: as many as suit its model."""

    ranks: int | None = 1
    device: str = "auto"
    is_small: bool = True
    weights: int = 0  # of the largest model that is named
    flags: Mapping[str, str] = field(default_factory=dict)  # the same on all ranks of torchrun


def cores() -> int:
    """The cores that this process may use, by the system, its container and OMP_NUM_THREADS."""
    try:
        limits = [len(os.sched_getaffinity(0))]
    except AttributeError:  # macOS, Windows
        limits = [os.cpu_count() or 1]
    with suppress(OSError, ValueError):  # no container (`docker run --cpus`), or "max": no limit
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        limits.append(int(quota) // int(period))
    with suppress(KeyError, ValueError):
        limits.append(int(os.environ["OMP_NUM_THREADS"]))
    return max(min(limits), 1)


def free_memory() -> int:
    """Bytes that this machine, or its container, has left."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        left = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):  # not Linux
        return sys.maxsize
    with suppress(OSError, ValueError):  # no container, or "max": no limit
        limit, used = (
            int(Path("/sys/fs/cgroup", f"memory.{name}").read_text()) for name in ("max", "current")
        )
        left = min(left, limit - used)
    return left


def default_ranks(is_small: bool, device: str, weights: int = 0) -> int:
    """One rank per core for a small model on a CPU, as far as memory goes; otherwise one rank."""
    accelerated = torch.cuda.is_available() or torch.backends.mps.is_available()
    on_cpu = device == "cpu" or (device == "auto" and not accelerated)
    if not on_cpu or not is_small:
        return 1
    fit = free_memory() // (BYTES_A_RANK + BYTES_A_WEIGHT * weights)
    return max(min(cores(), MAX_DEFAULT_RANKS, fit), 1)


def run_on_ranks(work: Work, request: RankRequest, guard: Guard = nullcontext) -> None:
    """work() on every rank; those that this process starts, and waits for, are each inside of guard()."""
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun has started us, once per rank
        local, store, number, count = _meet_by_torchrun()
        _require_devices(local, request.device)
        torch.set_num_threads(max(cores() // local, 1))
        _join_group(number, count, store, request.device, NEVER if local == count else SILENCE)
        _require_agreement(request.flags)
        return _take_part(number, work)
    count = request.ranks or default_ranks(request.is_small, request.device, request.weights)
    by_default = request.ranks is None and request.is_small  # a rank per core
    threads = 1 if by_default else max(cores() // count, 1)
    if count < 2:
        return work()
    _require_devices(count, request.device)
    # A fork costs nothing, but a process that has met CUDA, macOS's frameworks or a second thread
    # must not be forked: a forked rank has one thread, as those of a small model on a CPU.
    forks = platform.system() == "Linux" and not torch.cuda.is_available() and threads == 1
    signals.STATE = RawArray("i", len(signals.NUMBERS))
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        given = (count, threads, request.device, folder, os.isatty(0), signals.STATE, work, guard)
        try:  # no daemons: a reward may start processes of its own
            ranks = multiprocessing.start_processes(
                _as_rank, given, count, join=False, start_method="fork" if forks else "spawn"
            )
        except OSError as error:  # no more processes, or no memory for one
            raise UserError(
                f"a process for --ranks {count} could not be started ({error.strerror}): "
                "use --ranks 1, or raise the limit of processes (ulimit -u)"
            ) from error
        _wait_for(ranks.processes)


def _wait_for(ranks: Sequence[Any]) -> None:
    """Until all have ended. Where one fails, or a signal comes, the others are to leave, then killed.

    A rank that fails has said why, and its status is the command's.
    """

    def running() -> list[Any]:
        return [rank for rank in ranks if rank.exitcode is None]

    try:
        while (left := running()) and not any(rank.exitcode for rank in ranks):
            connection.wait([rank.sentinel for rank in left])
    finally:
        signals.STATE[signals.ENDS] = True
        end = time.monotonic() + LAST
        while (left := running()) and time.monotonic() < end:
            for rank in left:
                rank.terminate()  # again and again: a thread of torch's may catch one, unnoticed
            connection.wait([rank.sentinel for rank in left], timeout=0.2)
        for rank in ranks:
            rank.kill()
            rank.join()
        status = max(rank.exitcode for rank in ranks)
        if status > 0:
            sys.exit(status)
    if any(rank.exitcode for rank in ranks):
        raise UserError(
            f"{collectives.LostRank()} --resume goes on from what it has saved, if anything"
        )


def _as_rank(
    number: int, count: int, threads: int, device: str, folder: str, terminal: bool, state: Any,
    work: Work, guard: Guard,
) -> None:  # fmt: skip
    """Run work() as rank `number` of `count` on this machine, in a process of its own."""
    signals.PARENT, signals.STATE = os.getppid(), state
    os.environ["LOCAL_RANK"] = str(number)
    if platform.system() != "Windows":  # no need of the machine's network
        loopback = "lo0" if platform.system() == "Darwin" else "lo"
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    try:
        with suppress(OSError):  # Windows
            if number == 0 and terminal:  # multiprocessing takes it away
                sys.stdin = open("/dev/tty", encoding="utf-8")
        torch.set_num_threads(threads)
        keep_freed_memory()  # as its parent does
        with ending_children(), guard():
            store = dist.FileStore(os.path.join(folder, "meeting"), count)
            _join_group(number, count, store, device)
            _take_part(number, work)
    except Exception:  # a bug
        sys.exit(traceback.format_exc())


def _meet_by_torchrun() -> tuple[int, Any, int, int]:
    """How many ranks are on this machine, the store where all have met, this rank's number, their count."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT")
    given = {name: os.environ.get(name, "missing") for name in names}
    number, count, local, port = (int(v) if v.isdecimal() else -1 for v in given.values())
    if not (0 <= number < count and 0 < local <= count and 0 < port < 1 << 16):
        raise UserError(
            "torchrun's variables do not fit together "
            f"({', '.join(map(' '.join, given.items()))}): start the ranks with torchrun, which sets them"
        )
    address = os.environ.get("MASTER_ADDR", "")
    try:
        socket.getaddrinfo(address, port)  # torch would ask for it until the time is over
        store, *_ = next(iter(dist.rendezvous("env://", timeout=MEETING_TIME)))
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"the ranks of torchrun do not meet at MASTER_ADDR {address!r}, port {port} "
            f"({first_line(error)[:100]}): check the address and that all of them were started"
        ) from None
    return local, store, number, count


def _require_agreement(flags: Mapping[str, str]) -> None:
    """UserError where a rank was started with other flags than rank 0, or runs other code."""
    files = sorted(path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py"))
    digests = {path.relative_to(REPOSITORY).as_posix(): sha256_of(path)[:12] for path in files}
    first, *others = collectives.gather({**flags, **digests})
    for number, other in enumerate(others, start=1):
        for name in first | other:
            one, two = first.get(name, "missing"), other.get(name, "missing")
            if one != two:
                raise UserError(
                    f"{name} differs between the ranks, {one} on rank 0 and {two} on rank {number}: "
                    "start all with the same flags and the same code"
                )


def _require_devices(count: int, device: str) -> None:
    """Refuse more ranks than GPUs or far more than cores, several on one named GPU or on Apple's."""
    if count > MAX_DEFAULT_RANKS * (os.cpu_count() or 1):
        raise UserError(f"--ranks {count}, but there are {os.cpu_count()} cores: lower --ranks")
    if count < 2 or device == "cpu":
        return
    if device == "mps" or (device == "auto" and torch.backends.mps.is_available()):
        raise UserError(f"--ranks {count}: ranks work on CPUs and on CUDA; add --device cpu")
    if not torch.cuda.is_available():
        return
    if ":" in device:
        raise UserError(
            f"--ranks {count} wants a GPU each, --device {device} names one: leave the number out"
        )
    if count > torch.cuda.device_count():
        raise UserError(
            f"--ranks {count}, but PyTorch sees {torch.cuda.device_count()} GPUs: lower --ranks"
        )


@contextmanager
def ending_children() -> Iterator[None]:
    """Around a program: where it fails, end what a reward has started; Python would wait for that."""
    try:
        yield
    except BaseException:
        for child in multiprocessing.active_children():
            if not child.daemon:  # those end with Python
                child.kill()
        raise


def _join_group(
    number: int, count: int, store: Any, device: str, timeout: timedelta = NEVER
) -> None:
    """Join the other ranks; UserError if that fails. A rank silent for `timeout` counts as lost."""
    collectives.STORE = store
    cuda = torch.cuda.is_available() and device != "cpu"
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    # Torch waits in C++, where no handler of Python's runs: a signal is to end this process.
    handlers = {each: signal.signal(each, signal.SIG_DFL) for each in signals.SIGNALS}
    try:
        dist.init_process_group(
            backend, store=store, rank=number, world_size=count, timeout=timeout
        )
    except RuntimeError as error:
        time.sleep(1)  # until that has happened, if another rank is gone
        raise UserError(
            f"the ranks cannot be joined ({first_line(error)[-120:]}): check "
            "GLOO_SOCKET_IFNAME and the limit of open files, or use --ranks 1"
        ) from None
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)


def _take_part(number: int, work: Work) -> None:
    """work() as this rank; one that fails stays connected, for `first_to_fail`."""
    if number:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")
        warnings.simplefilter("ignore")  # the first rank gives them
    work()
    collectives.gather(None)  # nobody leaves before the last one is done
    collectives.STORE = None
    dist.destroy_process_group()
