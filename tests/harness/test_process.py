"""What a command sets up, and what an import leaves alone."""

from __future__ import annotations

import os
import subprocess
import sys

IMPORT_ALL = """
import importlib, json, os, pkgutil, signal, sys, threading
def state():
    import torch
    handlers = {n: str(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    flags = [torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(),
             torch.are_deterministic_algorithms_enabled(), torch.backends.cuda.matmul.allow_tf32]
    return dict(os.environ), handlers, str(flags), threading.active_count(), type(sys.stdout).__name__
before = state()
for package in ("harness", "data", "gpt", "reward_model", "rl", "report"):
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
