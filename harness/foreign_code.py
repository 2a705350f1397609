"""Around all code that a user writes: however it ends and whatever it sets, the run is not misled."""

from __future__ import annotations

import importlib
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

from harness.signals import SIGNALS, Ended

T = TypeVar("T")


class Failed(Exception):
    """The code did not come to its end; the message is one line with its place in the code."""


def call_foreign(function: Callable[[], T]) -> T:
    """function(); Failed, with the cause, for anything that it raises and for a call of os._exit.

    SystemExit, KeyboardInterrupt and GeneratorExit must not end a run with status 0 and without a
    model. A signal may, and so may Ctrl-C where no command takes signals.
    """
    process, leave = os.getpid(), os._exit

    def refuse(status: int) -> None:
        if os.getpid() != process:  # a process that the code has forked may end as it likes
            leave(status)
        raise SystemExit(f"os._exit({status})")

    os._exit = refuse  # type: ignore[assignment]
    try:
        return function()
    except Ended:
        raise
    except BaseException as error:
        by_hand = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if isinstance(error, KeyboardInterrupt) and by_hand:
            raise
        raise Failed(_in_words(error)) from error
    finally:
        os._exit = leave


def _in_words(error: BaseException) -> str:
    """An exception of the user's code in one line, with the line of the code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = ("foreign_code.py", "function.py")
    own = [
        frame
        for frame in frames
        if not frame.filename.startswith("<frozen")
        and frame.filename != importlib.__file__
        and Path(frame.filename).name not in ours
    ]
    place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    try:
        message = " ".join(str(error).split())
    except BaseException:  # its own __str__ is the user's code too
        message = ""
    return f"{type(error).__name__}: {message}{place}" if message else type(error).__name__ + place


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it has been removed
        return os.curdir


def _handlers() -> list[Any]:
    return [signal.getsignal(number) for number in SIGNALS]


def _handle(handlers: list[Any]) -> None:
    for number, handler in zip(SIGNALS, handlers, strict=True):
        signal.signal(number, handler)


def _compute_on(device: torch.device) -> None:
    torch.set_default_device(None if device.type == "cpu" else device)


# What such code may have set for the whole process: how it is read, and how it is set back.
SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "torch.set_grad_enabled": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch.set_default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch.set_default_device": (torch.get_default_device, _compute_on),
    "torch.set_num_threads": (torch.get_num_threads, torch.set_num_threads),
    "torch.use_deterministic_algorithms": (
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms,
    ),
    "torch.set_float32_matmul_precision": (
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision,
    ),
    "os.chdir": (_folder, os.chdir),
    "signal.signal": (_handlers, _handle),
}  # fmt: skip


@contextmanager
def settings_kept(whose: str) -> Iterator[None]:
    """Set back what the code inside sets for the whole process, and say so."""
    before = {name: read() for name, (read, _) in SETTINGS.items()}
    try:
        yield
    finally:
        for name, (read, write) in SETTINGS.items():
            if read() != before[name]:
                write(before[name])
                print(f"note: {whose} calls {name}, which is for the whole run: set back")
