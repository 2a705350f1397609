"""Freed memory is kept: measured in a process of its own, by the page faults of tensors come and gone."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

PR_SET_THP_DISABLE = 41  # linux/prctl.h: how many large pages a tensor gets is the kernel's choice
TENSORS, PAGES_OF_A_TENSOR = 12, 2**26 // 4096

FAULTS = f"""
import ctypes, data, resource, torch
ctypes.CDLL(None).prctl({PR_SET_THP_DISABLE}, 1, 0, 0, 0)
for _ in range(20):
    torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({TENSORS}):
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(**variables: str) -> int:
    """Of twelve tensors of 64 MiB, one after the other, in pages of 4 KiB."""
    inherited = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    inherited.pop("THP_MEM_ALLOC_ENABLE", None)
    command = [sys.executable, "-c", FAULTS]
    done = subprocess.run(
        command, env=inherited | variables, check=True, capture_output=True, text=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_a_tensor_is_given_the_pages_of_the_last_one():
    """The heap may grow first, as a freed block can be short of the next one's alignment."""
    assert page_faults() < 0.25 * TENSORS * PAGES_OF_A_TENSOR


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
@pytest.mark.parametrize("variable", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_what_the_user_has_chosen_is_left_alone(variable):
    value = "2" if variable == "MALLOC_ARENA_MAX" else "glibc.malloc.arena_max=2"
    assert page_faults(**{variable: value}) > 0.75 * TENSORS * PAGES_OF_A_TENSOR
