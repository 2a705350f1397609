"""A reward that the user writes: a Python function, named on the command line as WHERE:FUNCTION.

    def brief(prompt: str, response: str) -> float:          in my_rewards.py
        return -float(len(response.split()))

    python -m rl.grpo_engine --reward my_rewards:brief
    python -m rl.grpo_engine --reward path/to/my_rewards.py:brief

The first two arguments are the texts of the prompt and of the response, without its EOS. A
parameter named `record` gets the prompt's record as well (data/records.py; `record.answer`), one
named `ended` whether the response has its EOS. The function is code and runs with your rights, once
per response. It is read when a run starts; --resume refuses a file that has changed since, and of a
module calls the function as it is then.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from data.records import PromptRecord
from harness.errors import UserError
from harness.files import expanded
from harness.ranks.collectives import all_gather_list, shard_block
from rl.batches.rollout import Rollout

OPTIONAL = ("record", "ended")
MOST = torch.finfo(torch.float32).max  # in which rewards are kept


def open_function(reward: str) -> FunctionReward:
    """The function that a --reward of the form WHERE:FUNCTION names. UserError if it cannot be used."""
    where, _, name = reward.rpartition(":")
    with undone():
        module = _import_file(Path(where)) if where.endswith(".py") else _import_module(where)
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(f"--reward {reward}: {where} has no function {name!r}")
    return FunctionReward(undone()(function), reward, _wanted(function, reward))


@contextmanager
def undone() -> Iterator[None]:
    """Around code of the user's: what it sets for the whole process is afterwards as it was."""
    folder, streams = Path.cwd(), (sys.stdout, sys.stderr)
    dtype, graph = torch.get_default_dtype(), torch.is_grad_enabled()
    try:
        yield
    finally:
        os.chdir(folder)
        sys.stdout, sys.stderr = streams
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(graph)


def _import_module(where: str) -> ModuleType:
    """A module that Python finds, the working folder included."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    importlib.invalidate_caches()
    try:
        return importlib.import_module(where)
    except (Exception, SystemExit) as error:
        if not isinstance(error, ModuleNotFoundError) or not f"{where}.".startswith(
            f"{error.name}."  # else it is found, and imports something that is not
        ):
            raise _broken(where, error) from error
        raise UserError(
            f"--reward {where}:...: Python finds no module {where!r}: start in the folder that holds "
            f"{where.split('.')[0]}.py, or name the file, as in path/to/{where.split('.')[-1]}.py:..."
        ) from error


def _import_file(path: Path) -> ModuleType:
    """A module from its file, under a name that hides no other module."""
    path = expanded(path)
    if not path.is_file():
        raise UserError(f"--reward {path}:...: there is no file {path}")
    name = f"glassbox_reward_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # the name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while it is read
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        raise _broken(str(path), error) from error
    return module


def _broken(where: str, error: BaseException) -> UserError:
    return UserError(f"--reward {where}:...: {where} cannot be imported: {_in_words(error)}")


def _in_words(error: BaseException) -> str:
    """An exception in one line, with the line of code that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    message = " ".join(str(error).split())
    return (
        f"{type(error).__name__}: {message:.300} ({Path(last.filename).name}, line {last.lineno})"
    )


def _wanted(function: Callable[..., Any], reward: str) -> tuple[str, ...]:
    """Which of OPTIONAL the function takes. UserError unless it can be called with two texts."""
    expected = f"--reward {reward}: it is called as {reward.rpartition(':')[2]}(prompt, response)"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:  # written in C
        raise UserError(f"{expected}, and its parameters cannot be read") from error
    parameters = list(signature.parameters)
    wanted = tuple(name for name in OPTIONAL if name in parameters)
    if parameters[:1] == ["response"] or parameters[1:2] == ["prompt"]:
        raise UserError(f"{expected}, in this order: it takes {signature}")
    try:
        signature.bind("", "", **dict.fromkeys(wanted))
    except TypeError as error:
        raise UserError(
            f"{expected}, by keyword also record and ended where it has them: it takes {signature}"
        ) from error
    return wanted


def _number(value: Any) -> float | None:
    """The number that a function gave, None if it is none; a text that reads like one is a text."""
    if isinstance(value, str | bytes):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # RuntimeError: a whole tensor
        return None


class FunctionReward:
    """What a user's function gives for (prompt, response), one number per row, (N,).

    UserError names the row where it raises or gives no finite number.
    """

    def __init__(self, function: Callable[..., Any], name: str, wanted: Sequence[str] = ()) -> None:
        self.function, self.name, self.wanted = function, name, tuple(wanted)

    def __call__(self, rollout: Rollout) -> Tensor:
        rows = zip(rollout.records, rollout.responses, rollout.has_eos.tolist(), strict=True)
        values = []
        for number, row in list(enumerate(rows, start=1))[shard_block(len(rollout))]:
            place = f"prompt {number} of {len(rollout)}, {row[0].prompt[:60]!r}"
            values.append(self._value(*row, place))
        return torch.tensor(
            all_gather_list(values), dtype=torch.float32, device=rollout.response_tokens.device
        )

    def _value(self, record: PromptRecord, response: str, ended: bool, place: str) -> float:
        offered = {"record": record, "ended": ended}
        more = {name: offered[name] for name in self.wanted}
        try:
            value = self.function(record.prompt, response, **more)
        except (Exception, SystemExit) as error:
            raise UserError(
                f"--reward {self.name} failed at {place}: {_in_words(error)}"
            ) from error
        number = _number(value)
        if number is None or not abs(number) <= MOST:  # NaN neither
            raise UserError(
                f"--reward {self.name} gave {value!r:.60} at {place}: it must give a finite number"
            )
        return number
