"""What happens to a run from outside: signals that end it, and output that nobody reads.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from harness.ranks.collectives import gather

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")  # the last two: a cluster's warning
SIGNALS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
WATCHDOG = str(Path(__file__).with_name("watchdog.py"))
STEP = 5  # seconds that a step has to end after the first signal
LEFT_TO_RANK_0 = False  # whether this is a rank that rank 0 has started
IN_STEPS = False  # whether `signal_of_any_rank` is called after every step
_came = 0  # the number of the first signal, 0 for none
LAST = 3  # seconds that a run has to end after the second one


class Interrupted(BaseException):
    """A signal has ended the run; `saved` says after which step its state was kept, None for none."""

    def __init__(self, number: int, saved: int | None = None) -> None:
        super().__init__(number, saved)
        self.name, self.status, self.saved = signal.Signals(number).name, 128 + number, saved


@contextmanager
def signals_noted() -> Iterator[None]:
    """While this is open, SIGNALS are answered as above in the main thread; other ranks ignore them."""
    global IN_STEPS, _came
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _reset_in_forks()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, _leave_to_rank_0 if LEFT_TO_RANK_0 else _note)
    try:
        yield
    finally:
        _came, IN_STEPS = 0, False
        for number, handler in before.items() if not LEFT_TO_RANK_0 else ():  # a fork's are `_note`
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
    """While this is open, harness/watchdog.py looks after this process; `then` is for its sentence."""
    arguments = (os.getpid(), {int(number) for number in SIGNALS}, STEP, LAST, then)
    code = f"import runpy; runpy.run_path({WATCHDOG!r})['watch'](*{arguments!r})"
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
    """Remember the first signal of `signals_wait`; end at once outside of it, or by the second."""
    global _came
    if _came or not IN_STEPS:
        raise Interrupted(number)
    _came = number
    name = signal.Signals(number).name
    words = f"{name}: stopping after this step, or in {STEP} seconds; once more ends it at once\n"
    with suppress(OSError):
        os.write(2, words.encode())  # print may be what the signal has interrupted


@contextmanager
def signals_wait() -> Iterator[None]:
    """Inside, the first signal waits for `signal_of_any_rank`; at the end it is answered at the latest."""
    global IN_STEPS
    IN_STEPS = True
    try:
        yield
    except Exception as error:
        if _came:  # a program that a reward has started was sent it, too
            raise Interrupted(_came) from error
        raise
    finally:
        IN_STEPS = False
    if _came:
        raise Interrupted(_came)


def signal_of_any_rank() -> int:
    """The signal that came to any of the ranks, so that they agree to stop; 0 for none."""
    return max(gather(_came))


# Output -------------------------------------------------------------------------------------------


class ForgivingOutput:
    """A text stream of which a failed write is forgotten, and with it all that follows."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.lost = stream, False

    def write(self, text: str) -> int:
        self._try(self.stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self.stream.flush)

    def _try(self, output: Callable[..., object], *text: str) -> None:
        """Where this fails, let the rest go nowhere, what is still buffered too."""
        try:
            output(*text)
        except OSError as error:
            self.lost = True
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), self.stream.fileno())
            with suppress(OSError):
                os.write(2, f"output cannot be written ({error.strerror}): going on\n".encode())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def forgiving_output() -> Iterator[None]:
    """While this is open, print never fails, whether the output is closed or a character unknown."""
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
