"""Freed memory is kept: measured in a process of its own, by the page faults of tensors come and gone."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import data, resource, torch
for _ in range(3):
    torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(**variables: str) -> int:
    """Of four tensors of 64 MiB, one after the other."""
    inherited = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    inherited.pop("THP_MEM_ALLOC_ENABLE", None)
    command = [sys.executable, "-c", FAULTS]
    done = subprocess.run(
        command, env=inherited | variables, check=True, capture_output=True, text=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_a_tensor_is_given_the_pages_of_the_last_one():
    """4 x 16,384 pages of 4 KiB if every tensor's are new; the heap may still grow once."""
    assert page_faults() < 2_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
@pytest.mark.parametrize("variable", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_what_the_user_has_chosen_is_left_alone(variable):
    """Large pages are refused by their own variable."""
    value = "2" if variable == "MALLOC_ARENA_MAX" else "glibc.malloc.arena_max=2"
    assert page_faults(**{variable: value}, THP_MEM_ALLOC_ENABLE="0") > 50_000
