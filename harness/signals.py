"""What happens to a run from outside: signals that end it, and output that nobody takes.

A signal (Ctrl-C, SIGTERM, a closed terminal) lets the step end and be saved, a second one ends the
run. harness/watchdog.py sends the second one where a step lasts, and kills what answers neither.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from harness import watchdog
from harness.here import HERE
from harness.ranks.collectives import gather

SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
STEP = 5  # seconds that a step has to end after the first signal
LAST = 3  # seconds that a run has to end after the second one


class Ended(BaseException):
    """A signal has ended the run; `saved` says after which step its state was kept, None for none."""

    def __init__(self, number: int, saved: int | None = None) -> None:
        super().__init__(number, saved)
        self.name, self.status, self.saved = signal.Signals(number).name, 128 + number, saved


@contextmanager
def signals_noted() -> Iterator[None]:
    """While this is open, SIGNALS are answered as above, in the main thread.

    A rank that rank 0 has started leaves them to it: it ends with the run.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _reset_in_forks()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, _leave_to_rank_0 if HERE.is_child else _note)
    try:
        yield
    finally:
        HERE.signal, HERE.in_steps = 0, False
        # A forked rank would get its parent's `_note` back, and end in a traceback.
        for number, handler in () if HERE.is_child else before.items():
            signal.signal(number, handler)


@functools.cache
def _reset_in_forks() -> None:
    """Let no process that a reward forks answer as a run: SIGTERM ends it, the rest is the run's."""

    def reset() -> None:
        for number in SIGNALS:
            if signal.getsignal(number) in (_note, _leave_to_rank_0):
                signal.set_wakeup_fd(-1)
                signal.signal(number, [signal.SIG_IGN, signal.SIG_DFL][number == signal.SIGTERM])

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=reset)


def _leave_to_rank_0(number: int, frame: FrameType | None) -> None:
    """Not SIG_IGN, which a program that a reward starts would inherit."""


@contextmanager
def watched(then: str) -> Iterator[None]:
    """While this is open, a watchdog ends this process where it hangs, and what it leaves behind.

    `then` goes on the sentence that it says where it has to kill.
    """
    told = (os.getpid(), {int(number) for number in SIGNALS}, STEP, LAST, then)
    code = f"import runpy; runpy.run_path({watchdog.__file__!r})['watch'](*{told!r})"
    command = [sys.executable, "-IS", "-c", code]  # by its file: it loads nothing of ours
    dog, pipe, none = None, subprocess.PIPE, subprocess.DEVNULL
    if threading.current_thread() is threading.main_thread() and hasattr(os, "fork"):
        with suppress(OSError):  # no process is left: the run ends as it can, as on Windows
            dog = subprocess.Popen(command, stdin=pipe, stdout=none, start_new_session=True)
    if dog is None or dog.stdin is None:
        yield
        return
    pipe = dog.stdin.fileno()
    os.set_blocking(pipe, False)
    before = signal.set_wakeup_fd(pipe, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        with suppress(OSError):
            os.write(pipe, bytes(1))
        dog.stdin.close()
        dog.wait()


def _note(number: int, frame: FrameType | None) -> None:
    """Remember the first signal while steps are taken; end at once otherwise, or at the second."""
    if HERE.signal or not HERE.in_steps:
        raise Ended(number)
    HERE.signal = number
    words = (
        f"{signal.Signals(number).name}: stopping after this step, or in {STEP} seconds; "
        "once more ends it at once\n"
    )
    with suppress(OSError):
        os.write(2, words.encode())  # print may be what the signal has interrupted


@contextmanager
def signals_wait() -> Iterator[None]:
    """Inside, the first signal waits for `stop_asked`; at the end it is answered at the latest."""
    HERE.in_steps = True
    try:
        yield
    except Exception as error:
        if HERE.signal:  # a program that a reward has started was sent it, too
            raise Ended(HERE.signal) from error
        raise
    finally:
        HERE.in_steps = False
    if HERE.signal:
        raise Ended(HERE.signal)


def stop_asked() -> int:
    """The signal that came to any of the ranks, so that they agree to stop; 0 for none."""
    return max(gather(HERE.signal))


# Output -------------------------------------------------------------------------------------------


class ForgivingOutput:
    """A text stream of which a failed write is forgotten, and with it all that follows."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        with self._given_up():
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._given_up():
            self.stream.flush()

    @contextmanager
    def _given_up(self) -> Iterator[None]:
        """Where this fails, let the rest go nowhere, what is still buffered too."""
        try:
            yield
        except OSError as error:
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), self.stream.fileno())
            with suppress(OSError):
                os.write(2, f"output cannot be written ({error.strerror}): going on\n".encode())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def forgiving_output() -> Iterator[None]:
    """While this is open, print never fails, neither by where it goes to nor by an unknown character."""
    stream: Any = sys.stdout
    if isinstance(stream, ForgivingOutput):
        yield
        return
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")
    sys.stdout = forgiving = ForgivingOutput(stream)
    try:
        yield
    finally:
        forgiving.flush()
        sys.stdout = stream
