"""Starting the ranks of a run: processes on this machine, or those that torchrun started.

python -m rl.grpo_engine                      small models on a CPU: one process per core
python -m rl.grpo_engine --ranks 1            one process
python -m rl.grpo_engine --ranks 4            four: on GPUs, one each
torchrun --nnodes 2 --nproc-per-node 8 ... -m rl.grpo_engine      several machines
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from harness.errors import UserError
from harness.here import HERE
from harness.process import PACKAGES, ROOT
from harness.ranks import collectives
from harness.signals import SIGNALS

MOST_BY_DEFAULT = 8  # a batch of 16 prompts gives more ranks too little to do
BYTES_A_WEIGHT = 48  # measured: the weight, its gradient, Adam's moments, the start, activations
BYTES_A_RANK = 2**28  # of a process that has loaded PyTorch
MEETING_TIME = timedelta(minutes=5)  # torchrun starts its ranks at about the same time
SILENCE = timedelta(hours=12)  # of a rank on another machine, which may have lost its power
PATIENCE = 10  # seconds that a rank has to leave when the run is over
GONE_AFTER = 1  # seconds in which a rank that has gone is noticed

Guard = Callable[[], AbstractContextManager[Any]]
Work = Callable[[], Any]


@dataclass(frozen=True)
class Wish:
    """How many processes a command asks for, and where; None: as many as its model is fastest on."""

    ranks: int | None = 1
    device: str = "auto"
    is_small: bool = True
    weights: int = 0  # of the largest model that is named
    flags: Mapping[str, str] = field(
        default_factory=dict
    )  # in which the ranks of torchrun must agree


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
    """One rank per core for a small model on a CPU; otherwise one, whose threads use the cores.

    Each has all of the model: fewer where memory is left for fewer.
    """
    accelerated = torch.cuda.is_available() or torch.backends.mps.is_available()
    on_cpu = device == "cpu" or (device == "auto" and not accelerated)
    if not on_cpu or not is_small:
        return 1
    fit = free_memory() // (BYTES_A_RANK + BYTES_A_WEIGHT * weights)
    return max(min(cores(), MOST_BY_DEFAULT, fit), 1)


def run_on_ranks(work: Work, wish: Wish, guard: Guard = nullcontext) -> Any:
    """work() on every rank, each inside of guard(); returns what it returns on this one, rank 0."""
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun has started us, once per rank
        local, store, number, count = _meet_by_torchrun()
        _require_devices(local, wish.device)
        torch.set_num_threads(max(cores() // local, 1))
        with _ending_with_the_others(lambda: False):
            _join_group(number, count, store, wish.device, SILENCE if local < count else None)
        _require_agreement(wish.flags)
        return _take_part(number, work)
    count, threads = _ranks_and_threads(wish)
    if count < 2:
        return work()
    _require_devices(count, wish.device)
    # A fork costs nothing, but a process that has met CUDA, macOS's frameworks or a second thread
    # must not be forked: a forked rank has one thread, as those of a small model on a CPU.
    forks = platform.system() == "Linux" and not torch.cuda.is_available() and threads == 1
    context: Any = multiprocessing.get_context("fork" if forks else "spawn")
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        file = os.path.join(folder, "meeting")
        here = Meeting(count, threads, wish.device, file, os.getpid())
        children: list[Any] = []

        def one_has_ended() -> bool:  # whatever its status: these leave together
            return any(child.exitcode is not None for child in children)

        try:
            for number in range(1, count):  # no daemons: a reward may start processes of its own
                child = context.Process(target=_as_rank, args=(number, here, work, guard))
                try:
                    child.start()
                except OSError as error:  # no more processes, or no memory for one
                    raise UserError(
                        f"a process for --ranks {count} could not be started ({error.strerror}): "
                        "use --ranks 1, or raise the limit of processes (ulimit -u)"
                    ) from error
                children.append(child)
            with guard():  # here, while the others can still be asked who failed first
                return here.join(0, one_has_ended, work)
        except BaseException:
            if HERE.another_speaks:  # let it finish its sentence
                connection.wait([child.sentinel for child in children], timeout=5)
            for child in children:
                _kill(child)
            raise
        finally:
            if dist.is_initialized():  # still, after a failure
                dist.destroy_process_group()
            for child in children:  # one that still has threads of the user's would never end
                child.join(PATIENCE)
                _kill(child)
                child.join()


def _meet_by_torchrun() -> tuple[int, Any, int, int]:
    """How many ranks are on this machine, the store where all have met, this rank's number, their count."""
    number, count, local, port = (
        _number_of_torchrun(name)
        for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT")
    )
    address = os.environ.get("MASTER_ADDR", "")
    if not (number < count and 0 < local <= count and 0 < port < 1 << 16):
        raise UserError(
            f"torchrun's RANK {number}, WORLD_SIZE {count}, LOCAL_WORLD_SIZE {local} and MASTER_PORT "
            f"{port} do not fit together: start the ranks with torchrun, which sets them"
        )
    try:
        socket.getaddrinfo(address, port)  # torch would ask for it until the time is over
        store, *_ = next(iter(dist.rendezvous("env://", timeout=MEETING_TIME)))
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"the ranks of torchrun do not meet at MASTER_ADDR {address!r}, port {port} "
            f"({str(error).splitlines()[0][:100]}): check the address and that all of them were started"
        ) from None
    return local, store, number, count


def _kill(rank: Any) -> None:
    """Kill a rank and what a reward has started there, which is of its group."""
    with suppress(AttributeError, OSError):  # Windows; none is there any more
        os.killpg(rank.pid, signal.SIGKILL)
    rank.kill()


def _number_of_torchrun(name: str) -> int:
    text = os.environ.get(name)
    if text is None or not text.isdecimal():
        raise UserError(
            f"torchrun's variable {name} is {'missing' if text is None else repr(text)}, not a number: "
            "start the ranks with torchrun, which sets it"
        )
    return int(text)


def _require_agreement(flags: Mapping[str, str]) -> None:
    """UserError where a rank was started with other flags than rank 0, or runs other code."""
    files = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    digests = {
        path.relative_to(ROOT).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        for path in files
    }
    first, *others = collectives.gather({**flags, **digests})
    for number, other in enumerate(others, start=1):
        for name in first | other:
            one, two = first.get(name, "missing"), other.get(name, "missing")
            if one != two:
                raise UserError(
                    f"{name} differs between the ranks, {one} on rank 0 and {two} on rank {number}: "
                    "start all with the same flags and the same code"
                )


def _ranks_and_threads(wish: Wish) -> tuple[int, int]:
    """What is asked for: ranks by default have one thread, a number of them shares the cores."""
    if wish.ranks is not None:
        return wish.ranks, max(cores() // wish.ranks, 1)
    count = default_ranks(wish.is_small, wish.device, wish.weights)
    return count, 1 if wish.is_small else cores()


@dataclass(frozen=True)
class Meeting:
    """Where the ranks on one machine find each other."""

    count: int
    threads: int  # of each
    device: str
    file: str
    parent: int  # the process of rank 0

    def join(self, number: int, gone: Callable[[], bool], work: Work) -> Any:
        """Run as this rank; `gone` says whether another one has ended before its time."""
        if platform.system() != "Windows":  # no need of the machine's network
            loopback = "lo0" if platform.system() == "Darwin" else "lo"
            os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
        os.environ["LOCAL_RANK"] = str(number)
        torch.set_num_threads(self.threads)
        with _ending_with_the_others(
            gone, folder=os.path.dirname(self.file) if not number else None
        ):
            store = dist.FileStore(self.file, self.count)
            _wait_for_all(store, number, self.count, gone)
            _join_group(number, self.count, store, self.device)
        return _take_part(number, work)


def _require_devices(count: int, device: str) -> None:
    """Refuse more ranks than GPUs or far more than cores, several on one named GPU or on Apple's."""
    if count > MOST_BY_DEFAULT * (os.cpu_count() or 1):
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


def _as_rank(number: int, here: Meeting, work: Work, guard: Guard) -> None:
    HERE.is_child = True
    with suppress(AttributeError):  # Windows
        os.setpgid(0, 0)  # so that it ends with all that it has started

    def gone() -> bool:
        return os.getppid() != here.parent

    with ending_children(), guard():
        here.join(number, gone, work)


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


@contextmanager
def _ending_with_the_others(
    gone: Callable[[], bool], *, folder: str | None = None
) -> Iterator[None]:
    """While ranks meet: end this process once another one is gone, or by the first signal.

    torch joins them in C++, which would wait for half an hour and lets no handler of Python's run. The
    first rank, which has the meeting's `folder`, removes it and says why it ends, if none has before.
    """
    met = threading.Event()

    def watch() -> None:
        while not met.wait(0.05):
            if gone():
                with suppress(OSError):
                    if folder is not None and first_to_fail():
                        os.write(2, f"error: {collectives.LostRank()}\n".encode())
                if folder is not None:
                    shutil.rmtree(folder, ignore_errors=True)
                os._exit(1)

    handlers = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {n: signal.signal(n, signal.SIG_DFL) for n in SIGNALS}
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        met.set()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _wait_for_all(store: Any, number: int, count: int, gone: Callable[[], bool]) -> None:
    """Return once all ranks have come; LostRank once one has ended, which torch would wait for."""
    names = [f"rank {other} has come" for other in range(count)]
    store.set(names[number], "")
    while not store.check(names):
        if gone():
            raise collectives.LostRank
        time.sleep(0.01)


def _join_group(
    number: int, count: int, store: Any, device: str, silence: timedelta | None = None
) -> None:
    """Join the other ranks; UserError if that fails.

    One that has been silent for `silence` is taken for lost. On one machine the end of a process is
    noticed by itself, and a reward may take as long as it likes.
    """
    HERE.store = store
    cuda = torch.cuda.is_available() and device != "cpu"
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    try:
        dist.init_process_group(
            backend, store=store, rank=number, world_size=count,
            timeout=silence or timedelta(days=365),
        )  # fmt: skip
    except RuntimeError as error:
        # If another rank has gone, `_ending_with_the_others` says so meanwhile and ends this one.
        time.sleep(GONE_AFTER)
        raise UserError(
            f"the ranks cannot be joined ({str(error).splitlines()[0][-120:]}): check "
            "GLOO_SOCKET_IFNAME and the limit of open files, or use --ranks 1"
        ) from None


def _take_part(number: int, work: Work) -> Any:
    """work() as this rank. One that fails stays connected until it has said why: see `first_to_fail`."""
    if number:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")
        warnings.simplefilter("ignore")  # the first rank gives them
    result = work()
    collectives.gather(None)  # nobody leaves before the last one is done
    HERE.store = None
    dist.destroy_process_group()
    return result


def first_to_fail() -> bool:
    """True for the rank that speaks of a failure: the first one. Always true of a single process."""
    if HERE.store is None:
        return True
    store, HERE.store = HERE.store, None  # asked once: whoever fails, fails once
    try:
        HERE.another_speaks = store.add("failed", 1) > 1
    except RuntimeError:  # the store has gone with its rank, which has spoken
        HERE.another_speaks = True
    return not HERE.another_speaks
