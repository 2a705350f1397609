"""From a command line to a script's main: its flags, its ranks, and how it may end."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from harness.console import say_always
from harness.errors import NothingToDo, Unwritten, UserError
from harness.flags import RENAMED, TrainingFlags
from harness.optimizer import Diverged
from harness.paths import REPOSITORY
from harness.ranks.collectives import Drifted, LostRank, first_to_fail, world
from harness.ranks.launch import RankRequest, ending_children, run_on_ranks
from harness.run_folder import SCRIPT, read_record, saved_run, script_of
from harness.signals import Interrupted, forgiving_output, signals_noted

Config = TypeVar("Config")


def flag_value(arguments: Sequence[str], flag: str) -> str | None:
    """What a command line gives to `flag` last, as `--flag value` or `--flag=value`; None if nothing."""
    found = None
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name.replace("_", "-") == flag and (equals or index + 1 < len(arguments)):
            found = value if equals else arguments[index + 1]
    return found


def run_command(
    main: Callable[[Config], object],
    config_class: Callable[..., Config],
    default: Callable[[], Config] | None = None,
) -> None:
    """What a script calls under `__name__ == "__main__"`: parse flags over `default`, then call main."""
    import tyro  # takes a moment that an import of the module need not

    expand_arguments()
    with errors_as_sentences():  # of a config's ValueError tyro makes a sentence
        names = {field.name: field for field in dataclasses.fields(config_class)}  # type: ignore[arg-type]
        refuse_old_names(names)
        if "model" in names and names["model"].default is dataclasses.MISSING:
            sys.argv[1:] = without_flag("--model", sys.argv[1:])
        given: dict[str, Any] = {} if default is None else {"default": default()}
        given["config"] = (tyro.conf.PositionalRequiredArgs,)  # as in report RUN
        config: Config = tyro.cli(config_class, prog=command_name(), **given)
        if hasattr(config, "ranks"):  # it trains: PyTorch and the ranks keep files there
            require_temporary_folder()
    warn_of_rate(config, given.get("default"))
    run_script(main, config)


def refuse_old_names(names: Container[str]) -> None:
    """UserError for a flag that has another name now, and that the command has not."""
    for argument in sys.argv[1:]:
        flag = argument.partition("=")[0]
        name = flag.removeprefix("--").replace("-", "_")
        if flag.startswith("--") and name in RENAMED and name not in names:
            raise UserError(f"{flag} is called {option(RENAMED[name])} now: type that")


def without_flag(flag: str, arguments: Sequence[str]) -> list[str]:
    """The arguments, `flag X` and `flag=X` as X: what a command needs may be typed with its name."""
    found = [argument.removeprefix(f"{flag}=") for argument in arguments]
    return [argument for argument in found if argument != flag]


def require_temporary_folder() -> None:
    """UserError where no temporary file can be made, as in a container that is read-only."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        raise UserError(
            "no folder for temporary files can be written: set TMPDIR to one, such as that of --out"
        ) from None


def warn_of_rate(config: object, default: object) -> None:
    """Say that a learning rate is ten times the default or more."""
    for name in config.rates if isinstance(config, TrainingFlags) and default else ():
        given, usual = getattr(config, name), getattr(default, name)
        if usual and given >= 9.99 * usual:
            flag, times = option(name), f"{given / usual:.0f} times the usual {usual:g} here"
            say_always(f"warning: {flag} {given:g} is {times}: leave it out to have that")


def expand_arguments() -> None:
    """~ and ~USER at the start of every value on the command line, also after =, as home folders."""
    split = [re.fullmatch(r"(--[\w-]+=)?(.*)", value, re.DOTALL) for value in sys.argv[1:]]
    sys.argv[1:] = [(m[1] or "") + os.path.expanduser(m[2]) for m in split if m]


def option(name: str) -> str:
    """A field of a config as one types it."""
    return f"--{name.replace('_', '-')}"


def command_name() -> str:
    """How this process was started, as one types it: python -m rl.grpo_engine."""
    main = sys.modules["__main__"]
    if main.__spec__ is not None:
        return f"python -m {main.__spec__.name.removesuffix('.__main__')}"
    path = Path(sys.argv[0]).resolve()
    return f"python {path.relative_to(REPOSITORY) if path.is_relative_to(REPOSITORY) else path}"


def run_script(main: Callable[[Config], object], config: Config) -> None:
    """Call main(config), on as many ranks as the flags ask for (harness/ranks/launch.py)."""
    work, flags = partial(main, config), vars(config)
    guard = partial(errors_as_sentences, config)
    with ending_children(), guard():
        if isinstance(config, TrainingFlags):
            given = {option(name): str(value) for name, value in flags.items()}
            request = RankRequest(
                config.ranks, config.device, config.is_small, max(config.sizes(), default=0),
                {"command": type(config).__module__, **given},
            )  # fmt: skip
            run_on_ranks(work, request, guard)
        else:
            work()


@contextmanager
def errors_as_sentences(config: object = None) -> Iterator[None]:
    """A user's mistake, a signal and the like end the script with one sentence; a bug shows its traceback.

    Of several ranks the first one that fails speaks. The `config` has the command's flags.
    """
    with forgiving_output():
        try:
            with signals_noted():
                yield
        except NothingToDo as done:
            print(done)  # of several ranks all, but only the first one's output goes anywhere
            sys.exit(0)
        except Interrupted as end:
            if first_to_fail():
                print(_farewell(end, config), file=sys.stderr)
            sys.exit(end.status)
        except Exception as error:
            if not first_to_fail():
                sys.exit(1)
            if isinstance(error, (Unwritten, LostRank)):
                nothing = "; nothing is saved to go on from: start again"
                sys.exit(f"error: {error}{_going_on(config) or nothing}")
            if isinstance(error, (UserError, Drifted, Diverged)):
                sys.exit(f"error: {error}")
            if is_out_of_memory(error):
                sys.exit(f"error: {_remedy_of_memory(error, config)}")
            if isinstance(error, OSError) and error.filename is not None:  # a full disk, a folder
                asks = ": ask its owner, or name another place" * isinstance(error, PermissionError)
                sys.exit(f"error: {error.filename}: {error.strerror}{asks}")
            raise


def _again(config: Any, *, resume: bool) -> str:
    """The command that continues, with --resume where it is wanted and the command has it."""
    more = ["--resume"] * (resume and not getattr(config, "resume", True))
    return f"; this goes on from what is saved: {command_name()} {shlex.join(sys.argv[1:] + more)}"


def _farewell(end: Interrupted, config: Any) -> str:
    """How the run ended, and what to type to go on."""
    if end.saved is not None:
        what = f" after step {end.saved}, which is saved"
    elif end.earlier is not None:
        what = f"; saved is step {end.earlier}"
    else:
        what = "; nothing is saved" * hasattr(config, "resume")
    return f"ended by {end.name}{what}{_going_on(config)}"


def _going_on(config: Any) -> str:
    """The command that continues from what is saved, if there is one."""
    saved = saved_run()
    if saved and hasattr(config, "resume"):  # of one of its stages it takes up what is left itself
        return _again(config, resume=read_record(saved)[SCRIPT] == script_of(config))
    return _again(config, resume=False) if saved or hasattr(config, "goes_on") else ""


def _remedy_of_memory(error: BaseException, config: Any) -> str:
    """What to lower, among the flags that the command has: a step samples all of its rows at once."""
    files = {Path(call.filename).name for call in traceback.extract_tb(error.__traceback__)}
    sampling = "generate.py" in files and "evaluation.py" not in files
    lower: list[str] = []
    if isinstance(config, TrainingFlags):
        lower += (sampling and config.largest_sampled) or config.largest
        lower += ["ranks"] * (world() > 1)
    flags = " or ".join(map(option, lower)) or "model"
    what = "to sample" if sampling else "for the next step"
    return f"there is not enough memory {what}: use a smaller {flags}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error means that a device, or the machine, had no memory left."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)
