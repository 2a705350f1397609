"""From a command line to a script's main: its flags, its ranks, and how it may end."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from harness.errors import Finished, UserError
from harness.optimizer import Diverged
from harness.paths import REPOSITORY, STATE_FILE
from harness.ranks.collectives import Drifted, LostRank
from harness.ranks.launch import Wish, first_to_fail, run_on_ranks
from harness.signals import Ended, forgiving_output, signals_noted

Config = TypeVar("Config")


def flag_value(arguments: Sequence[str], flag: str) -> str | None:
    """What a command line gives to `flag`, as `--flag value` or `--flag=value`; None if nothing."""
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == flag and (equals or index + 1 < len(arguments)):
            return value if equals else arguments[index + 1]
    return None


def run_command(
    main: Callable[[Config], Any],
    config_class: Callable[..., Config],
    default: Callable[[], Config] | None = None,
) -> None:
    """What stands under `__name__ == "__main__"`: parse the flags over what `default` gives, then main."""
    import tyro  # takes a moment that an import of the module need not

    expand_arguments()
    with explained():  # what a config refuses is a ValueError, of which tyro makes a sentence
        given: dict[str, Any] = {} if default is None else {"default": default()}
        given["config"] = (tyro.conf.PositionalRequiredArgs,)  # as in rl.report RUN
        config: Config = tyro.cli(config_class, prog=command_name(), **given)
    run_script(main, config)


def expand_arguments() -> None:
    """~ and ~USER at the start of every value on the command line, also behind =, as home folders."""
    split = [re.fullmatch(r"(--[\w-]+=)?(.*)", value, re.DOTALL) for value in sys.argv[1:]]
    sys.argv[1:] = [(m[1] or "") + os.path.expanduser(m[2]) for m in split if m]


def command_name() -> str:
    """How this process was started, as one types it: python -m rl.grpo_engine."""
    main = sys.modules["__main__"]
    if main.__spec__ is not None:
        return f"python -m {main.__spec__.name.removesuffix('.__main__')}"
    path = Path(sys.argv[0]).resolve()
    return f"python {path.relative_to(REPOSITORY) if path.is_relative_to(REPOSITORY) else path}"


def run_script(main: Callable[[Config], Any], config: Config) -> None:
    """Call main(config), on as many ranks as the flags ask for (harness/ranks/launch.py)."""
    work, flags = partial(main, config), vars(config)
    with explained():
        if "ranks" in flags:
            small = getattr(config, "is_small", True)
            run_on_ranks(work, Wish(flags["ranks"], flags["device"], small), explained)
        else:
            work()


@contextmanager
def explained() -> Iterator[None]:
    """A user's mistake, a signal and the like end the script with one sentence; a bug shows its traceback.

    Of several ranks the first one that fails speaks; the others end in silence.
    """
    with forgiving_output():
        try:
            with signals_noted():
                yield
        except Finished as done:
            print(done)  # of several ranks all, but only the first one's output goes anywhere
            sys.exit(0)
        except Ended as end:
            if first_to_fail():
                print(_farewell(end), file=sys.stderr)
            sys.exit(end.status)
        except Exception as error:
            if not first_to_fail():
                sys.exit(1)
            if isinstance(error, (UserError, LostRank, Drifted, Diverged)):
                sys.exit(f"error: {error}")
            if is_out_of_memory(error):
                sys.exit(f"error: {OUT_OF_MEMORY}")
            if isinstance(error, OSError) and error.filename is not None:  # a full disk, a folder
                sys.exit(f"error: {error.filename}: {error.strerror}")
            raise


def _farewell(end: Ended) -> str:
    if end.saved is not None:
        return (
            f"ended by {end.name} after step {end.saved}, which is saved: --resume goes on from it"
        )
    return f"ended by {end.name}; --resume goes on from the run's last {STATE_FILE}, if it has one"


OUT_OF_MEMORY = (
    "there is not enough memory for the next step: use a smaller --micro-batch-size or --batch-size"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device, or the machine, had no memory left: each of them says so in its own way."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)
