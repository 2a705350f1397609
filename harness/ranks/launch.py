"""Starting the ranks of a run: processes on this machine, or those that torchrun started.

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
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from harness.errors import UserError
from harness.here import HERE
from harness.ranks import collectives

MOST_BY_DEFAULT = 8  # a batch of 16 prompts gives more ranks too little to do
MEETING_TIME = timedelta(minutes=5)  # torchrun starts its ranks at about the same time
JOINING_TIME = timedelta(seconds=5)  # of ranks that have met: C++ would wait for one that is killed
LONGEST_WAIT = timedelta(minutes=30)  # for a rank that does something alone
PATIENCE = 10  # seconds that a rank has to leave when the run is over

Guard = Callable[[], AbstractContextManager[Any]]
Work = Callable[[], Any]


def cores() -> int:
    """The cores that this process may use; a user's OMP_NUM_THREADS counts as a wish for fewer."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    limits = [len(affinity(0)) if affinity else os.cpu_count() or 1]
    with suppress(OSError, ValueError):  # of a container (`docker run --cpus`), if it has one
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        limits.append(int(quota) // int(period))
    with suppress(ValueError):
        limits.append(int(os.environ.get("OMP_NUM_THREADS", "")))
    return max(min(limits), 1)


def _ranks_and_threads(ranks: int | None, device: str, is_small: bool) -> tuple[int, int]:
    """How many ranks, and the threads of each. By default a rank a core for a small model on a CPU."""
    if ranks is not None:
        return ranks, max(cores() // ranks, 1)
    accelerated = torch.cuda.is_available() or torch.backends.mps.is_available()
    on_cpu = device == "cpu" or (device == "auto" and not accelerated)
    return (min(cores(), MOST_BY_DEFAULT), 1) if on_cpu and is_small else (1, cores())


def run_on_ranks(
    work: Work,
    ranks: int | None,
    device: str,
    *,
    is_small: bool = True,
    guard: Guard = nullcontext,
) -> Any:
    """work() on every rank, each inside of guard(); returns what it returns on this one, rank 0.

    `ranks` None: as many as a model that `is_small` or not is fastest on.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun has started us, once per rank
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        _require_devices(local, device)
        torch.set_num_threads(max(cores() // local, 1))
        store, number, count = _meet_by_torchrun()
        _join_group(number, count, store, device, lambda: False)
        return _take_part(number, work)
    count, threads = _ranks_and_threads(ranks, device, is_small)
    if count < 2:
        return work()
    _require_devices(count, device)
    # A fork costs nothing, but a process that has met CUDA, macOS's frameworks or a second thread
    # must not be forked: a forked rank has one thread, as those of a small model on a CPU.
    forks = platform.system() == "Linux" and not torch.cuda.is_available() and threads == 1
    context: Any = multiprocessing.get_context("fork" if forks else "spawn")
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        file = os.path.join(folder, "meeting")
        here = Meeting(count, threads, device, file, os.getpid())
        children = [
            context.Process(target=here.run, args=(number, work, guard), daemon=True)
            for number in range(1, count)
        ]
        for child in children:
            try:
                child.start()
            except OSError as error:  # no more processes, or no memory for one
                for started in children[: children.index(child)]:
                    started.kill()
                raise UserError(
                    f"a process for --ranks {count} could not be started ({error.strerror}): use "
                    "--ranks 1, or raise the limit of processes (ulimit -u)"
                ) from error

        def one_has_ended() -> bool:  # whatever its status: these leave together
            return any(child.exitcode is not None for child in children)

        try:
            return here.run(0, work, guard, one_has_ended)
        except BaseException:
            if HERE.another_speaks:  # let it finish its sentence
                connection.wait([child.sentinel for child in children], timeout=5)
            for child in children:
                child.terminate()
            raise
        finally:
            if dist.is_initialized():  # still, after a failure
                dist.destroy_process_group()
            for child in children:  # one that still has threads of the user's would never end
                child.join(PATIENCE)
                child.kill()
                child.join()


def _meet_by_torchrun() -> tuple[Any, int, int]:
    """The store where all ranks have met, this one's number, their count."""
    try:
        return next(iter(dist.rendezvous("env://", timeout=MEETING_TIME)))
    except (OSError, RuntimeError) as error:
        address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
        raise UserError(
            f"the ranks of torchrun do not meet at MASTER_ADDR {address!r}, port {port} "
            f"({str(error).splitlines()[0][:100]}): check the address and that all of them were started"
        ) from None


@dataclass(frozen=True)
class Meeting:
    """Where the ranks on one machine find each other."""

    count: int
    threads: int  # of each
    device: str
    file: str
    parent: int  # the process of rank 0

    def run(
        self, number: int, work: Work, guard: Guard, gone: Callable[[], bool] | None = None
    ) -> Any:
        """work() as this rank; `gone` says whether one that was needed has ended, by default rank 0."""
        with guard():  # of rank 0 while the others can still be asked who failed first
            if platform.system() != "Windows":  # no need of the machine's network
                loopback = "lo0" if platform.system() == "Darwin" else "lo"
                os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
            os.environ["LOCAL_RANK"] = str(number)
            torch.set_num_threads(self.threads)
            store = dist.FileStore(self.file, self.count)
            gone = gone or (lambda: os.getppid() != self.parent)
            _join_group(number, self.count, store, self.device, gone)
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


def _join_group(number: int, count: int, store: Any, device: str, gone: Callable[[], bool]) -> None:
    """Join the others once all have come; LostRank once one is `gone`, UserError if joining fails."""
    HERE.store = store
    names = [f"rank {other} has come" for other in range(count)]
    store.set(names[number], "")
    deadline = time.monotonic() + MEETING_TIME.total_seconds()
    while not store.check(names):
        if gone() or time.monotonic() > deadline:
            raise collectives.LostRank
        time.sleep(0.01)
    cuda = torch.cuda.is_available() and device != "cpu"
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    try:
        dist.init_process_group(
            backend, store=store, rank=number, world_size=count, timeout=JOINING_TIME
        )
    except RuntimeError as error:
        raise UserError(
            f"the ranks cannot be joined ({str(error).splitlines()[0][-120:]}): if none was killed, "
            "check GLOO_SOCKET_IFNAME and the limit of open files, or use --ranks 1"
        ) from None
    dist.distributed_c10d._set_pg_timeout(LONGEST_WAIT)


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
