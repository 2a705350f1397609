"""What happens to a run from outside: signals that end it, and output that nobody reads.

A signal (Ctrl-C, SIGTERM, a closed terminal) lets the step end and be saved, a second one ends the run.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TextIO

from harness.ranks.collectives import LostRank, gather, world

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")  # the last two: a cluster's warning
SIGNALS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
PARENT = 0  # the process that has started this one as a rank
LONGEST_WAIT = 60  # seconds that a signal leaves to a step
# The last signal, whether it waits for a step, whether ranks leave, the second of the clock at which the
# step should end (0: not known), the step that is saved, counted from 1 and 0 for none.
CAME, IN_STEPS, ENDS, STEP_ENDS, SAVED = NUMBERS = range(5)
STATE: Any = [0] * len(NUMBERS)  # of these; ranks have theirs in common with their parent


class Interrupted(BaseException):
    """A signal has ended the run: after the step `saved`, or in one, when `earlier` was saved, or None."""

    def __init__(self, number: int, saved: int | None = None) -> None:
        super().__init__(number, saved)
        self.name, self.status, self.saved = signal.Signals(number).name, 128 + number, saved
        self.earlier = STATE[SAVED] - 1 if STATE[SAVED] else None


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
            STATE[:] = [0] * len(NUMBERS)


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

    It does not wait for a step that has more than a minute to go: what was saved is minutes old at most.
    A terminal sends a signal to ranks, too: they leave once their parent has decided so, or is gone.
    """
    global STATE
    if PARENT:
        if STATE[ENDS] or is_orphan():
            end = Interrupted(STATE[CAME]) if STATE[CAME] else LostRank()
            STATE = [0] * len(NUMBERS)  # it leaves once
            raise end
        return
    left = STATE[STEP_ENDS] and max(STATE[STEP_ENDS] - int(time.monotonic()), 1)
    first, STATE[CAME] = STATE[IN_STEPS] and not STATE[CAME], number
    waits = first and (
        left <= LONGEST_WAIT or world() > 1
    )  # ranks of torchrun would leave each other
    words = "stopping after this step" + f", in about {left} s" * (left > 0)
    if waits or first:
        words = (
            f"{words}; once more ends it at once" if waits else f"stopping now, {left} s are left"
        )
        with suppress(OSError):  # print may be what the signal has interrupted
            os.write(2, f"{signal.Signals(number).name}: {words}\n".encode())
    if not waits:
        raise Interrupted(number)


def expect_step(seconds: float) -> None:
    """A step begins that should take so long."""
    STATE[STEP_ENDS] = int(time.monotonic() + seconds) + 1


def note_saved(step: int) -> None:
    """What a run has saved is after this step."""
    STATE[SAVED] = step + 1


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

    def __init__(self, stream: TextIO) -> None:
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
