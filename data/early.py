"""Ctrl-C while `python -m ...` still imports PyTorch: one line instead of a traceback.

harness/signals.py takes over when the script's main begins.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"ended by SIGINT before it began\n")
    os._exit(128 + number)


if sys.argv[:1] == ["-m"]:  # what Python puts there until the module is found
    signal.signal(signal.SIGINT, _leave)
