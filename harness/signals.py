"""What happens to a run from outside: signals that end it, and output that nobody reads.

A signal (Ctrl-C, SIGTERM, a closed terminal) lets the step end and be saved, a second one ends the run.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from harness.ranks.collectives import LostRank, gather

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")  # the last two: a cluster's warning
SIGNALS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
PARENT = 0  # the process that has started this one as a rank
CAME, IN_STEPS, ENDS = range(3)  # the last signal, whether it waits for a step, whether ranks leave
STATE: Any = [0, 0, 0]  # of these; ranks have theirs in common with their parent


class Interrupted(BaseException):
    """A signal has ended the run; `saved` says after which step its state was kept, None for none."""

    def __init__(self, number: int, saved: int | None = None) -> None:
        super().__init__(number, saved)
        self.name, self.status, self.saved = signal.Signals(number).name, 128 + number, saved


@contextmanager
def signals_noted() -> Iterator[None]:
    """While this is open, SIGNALS are answered as above in the main thread; of a rank, by its parent."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _reset_in_forks()
    before = {number: signal.signal(number, _note) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():  # a rank has only its last words to say
            signal.signal(number, signal.SIG_IGN if PARENT else handler)
        if not PARENT:
            STATE[:] = [0, 0, 0]


@functools.cache
def _reset_in_forks() -> None:
    """Let no process that a reward forks answer as a run: SIGTERM ends it, the rest is the run's."""

    def reset() -> None:
        for number in SIGNALS:
            if signal.getsignal(number) is _note:
                signal.signal(number, [signal.SIG_IGN, signal.SIG_DFL][number == signal.SIGTERM])

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=reset)


def _note(number: int, frame: FrameType | None) -> None:
    """Remember the first signal of `signals_wait`; end at once outside of it, or by the second.

    A terminal sends a signal to ranks, too: they leave once their parent has decided so, or is gone.
    """
    global STATE
    if PARENT:
        if STATE[ENDS] or is_orphan():
            came, STATE = STATE[CAME], [0, 0, 0]  # it leaves once
            raise Interrupted(came) if came else LostRank
        return
    waits, STATE[CAME] = STATE[IN_STEPS] and not STATE[CAME], number
    if not waits:
        raise Interrupted(number)
    words = f"{signal.Signals(number).name}: stopping after this step; once more ends it at once\n"
    with suppress(OSError):
        os.write(2, words.encode())  # print may be what the signal has interrupted


def is_orphan() -> bool:
    """Whether the process that has started this rank is gone, of which only Linux sends a signal."""
    return PARENT not in (0, os.getppid())


@contextmanager
def signals_wait() -> Iterator[None]:
    """Inside, the first signal waits for `signal_of_any_rank`; at the end it is answered at the latest."""
    STATE[IN_STEPS] = True
    try:
        yield
    except Exception as error:
        if STATE[CAME]:  # a program that a reward has started was sent it, too
            raise Interrupted(STATE[CAME]) from error
        raise
    finally:
        STATE[IN_STEPS] = False
    if number := signal_of_any_rank():
        raise Interrupted(number)


def signal_of_any_rank() -> int:
    """The signal that came to any of the ranks, so that they agree to stop; 0 for none."""
    return max(gather(int(signal.SIGTERM) if is_orphan() else STATE[CAME]))


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
