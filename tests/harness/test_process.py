"""What a command sets up, and what an import leaves alone."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from harness.process import ROOT, is_command

PR_SET_THP_DISABLE = 41  # linux/prctl.h: how many large pages a tensor gets is the kernel's choice
TENSORS, PAGES_OF_A_TENSOR = 6, 2**26 // 4096

FAULTS = f"""
from harness.process import prepare
prepare()
import ctypes, resource, torch
ctypes.CDLL(None).prctl({PR_SET_THP_DISABLE}, 1, 0, 0, 0)
for _ in range(8):
    torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({TENSORS}):
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(**variables: str) -> int:
    """Of six tensors of 64 MiB, one after the other, in pages of 4 KiB."""
    inherited = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    inherited.pop("THP_MEM_ALLOC_ENABLE", None)
    command = [sys.executable, "-c", FAULTS]
    done = subprocess.run(
        command, env=inherited | variables, check=True, capture_output=True, text=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_a_tensor_is_given_the_pages_of_the_last_one():
    """The heap may grow first, as a freed block can be short of the next one's alignment.

    Once in many runs the kernel lays out a process so that its heap cannot grow: another one is asked.
    """
    assert any(page_faults() < 0.25 * TENSORS * PAGES_OF_A_TENSOR for _ in range(3))


IMPORT_ALL = """
import importlib, json, os, pkgutil, signal, sys, threading
def state():
    import torch
    handlers = {n: str(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    flags = [torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(),
             torch.are_deterministic_algorithms_enabled(), torch.backends.cuda.matmul.allow_tf32]
    return dict(os.environ), handlers, str(flags), threading.active_count(), type(sys.stdout).__name__
before = state()
for package in ("harness", "data", "gpt", "reward_model", "rl"):
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        importlib.import_module(module.name)
        assert state() == before, module.name
print(len([name for name in sys.modules if name.split(".")[0] == "rl"]))
"""


def test_importing_every_module_changes_nothing_in_the_process():
    """No environment variable, signal handler, thread, default of PyTorch or stream."""
    environment = {name: v for name, v in os.environ.items() if not name.startswith(("OMP", "THP"))}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-m", "rl.grpo_engine", "--help"], True),
        (["-m", "pytest"], False),
        (["-c", "import rl"], False),
        ([str(ROOT / "scripts" / "demo.py")], True),
        (["mine.py"], False),
    ],
)
def test_a_command_of_ours_is_known_by_how_it_was_started(monkeypatch, arguments, expected):
    monkeypatch.setattr(sys, "orig_argv", ["python", *arguments])
    monkeypatch.setattr(sys, "argv", ["-m" if arguments[0] == "-m" else arguments[0]])
    assert is_command() is expected
