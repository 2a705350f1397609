"""What a process is set up to do before PyTorch is loaded: only for a command, never for an import.

`python -m rl.grpo_engine` imports the package `rl` before the module, and every package this file. A
script that imports PyTorch itself imports `harness` before.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path

from harness.paths import REPOSITORY

PACKAGES = ("harness", "data", "gpt", "reward_model", "rl", "report", "studies")
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc's malloc.h


def is_command() -> bool:
    """Whether this process was started as `python -m` one of our modules, or as a script of ours."""
    arguments = sys.orig_argv
    if "-m" in arguments[:-1]:
        module = arguments[arguments.index("-m") + 1]
        return module.split(".")[0] in PACKAGES
    script = Path(sys.argv[0]).resolve() if sys.argv and sys.argv[0] else REPOSITORY
    return script.parent in (REPOSITORY / "scripts", REPOSITORY / "bench")


def prepare() -> None:
    """Set up this process for a command: waiting threads and freed memory."""
    # Spinning threads are no faster on a quiet machine, and on a busy one they slow training down
    # tenfold. OpenMP reads the setting when it is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # Rollouts and updates want pieces of other sizes in turns, which would leave gaps in a card's
    # memory. CUDA's allocator reads the setting when it is first used; a user's own stays.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    keep_freed_memory()


def keep_freed_memory() -> None:
    """Let glibc serve tensors of any size from one heap that never shrinks, in large pages.

    By default it gives the tens of megabytes of each chunk's logits back to the kernel, which has to
    clear every page again: 40% of an update's CPU time with GPT-2's vocabulary. Not where an environment
    variable already tunes its allocator.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # PyTorch's; only Linux reads it
    tuned = any(name.startswith("MALLOC_") for name in os.environ)
    if tuned or "GLIBC_TUNABLES" in os.environ or platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def give_back_freed_memory() -> None:
    """Give the kernel the freed pages of that heap, where a phase ends that held much.

    Any long run does so now and then (harness/metric_log.py), because batches differ in length and gaps
    grow: a reward model of 135 million weights went from 3.3 to 6.0 GB in twenty minutes.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
