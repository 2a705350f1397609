"""Keeps freed memory for the next tensor, unless the user has chosen otherwise.

Imported before PyTorch is. The logits of a large vocabulary are tens of megabytes that are wanted
anew for every chunk. By default the C library gives them back to the kernel each time, which then
has to find and clear every page again: about half of the time that such an update takes.
"""

from __future__ import annotations

import ctypes
import os
import platform

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc's malloc.h


def keep_freed_memory() -> None:
    """Let glibc serve tensors of any size from one heap that never shrinks, in large pages.

    Only with glibc, and not where an environment variable already tunes its allocator.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # PyTorch's; only Linux reads it
    tuned = any(name.startswith("MALLOC_") for name in os.environ)
    if tuned or "GLIBC_TUNABLES" in os.environ or platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


keep_freed_memory()
