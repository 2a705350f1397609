"""A reward that the user writes: a Python function, named on the command line as WHERE:FUNCTION.

    def brief(prompt: str, response: str) -> float:          in my_rewards.py
        return -float(len(response.split()))

    python -m rl.grpo_engine --reward my_rewards:brief
    python -m rl.grpo_engine --reward path/to/my_rewards.py:brief

The first two arguments are the texts of the prompt and of the response, without its EOS. A
parameter named `record` gets the prompt's record as well (data/records.py; `record.answer`, and
`record.meta` for a row's other columns), one named `ended` whether the response has its EOS.

A function with a parameter `prompts` or `completions` is of TRL's form: it is called by keyword, once a
batch, with lists of texts and of the rows' values in the columns that it names, and gives a list.

The function is code and runs with your rights; modules beside its file can be imported. It is read when
a run starts; --resume refuses when its file, or one in its folder that it imports, has changed since.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from harness.errors import UserError
from harness.files import expanded, noted
from harness.paths import REPOSITORY
from harness.ranks.collectives import all_gather_list, on_main, shard_block
from rl.batches.rollout import Rollout

OPTIONAL = ("record", "ended")
BATCH = ("prompts", "completions")  # TRL's form
PACKAGES = ("data", "gpt", "harness", "reward_model", "rl")  # this project
MOST = torch.finfo(torch.float32).max  # in which rewards are kept
OTHER_ORDER = re.compile(  # first and second parameter where a response is first, or a truth second
    r"(?:response|completion|solution|answer|output|prediction)(?:_\w+)?,.*|\w*,(?:prompt|"
    r"(?:(?:ground|gold|true|correct|reference)_?)*(?:truth|solution|answer|target|label|reference|gold)s?(?:_\w+)?)"
)


def open_function(reward: str) -> FunctionReward:
    """The function that a --reward of the form WHERE:FUNCTION names. UserError if it cannot be used."""
    where, _, name = reward.rpartition(":")
    with undone():
        module = _import_file(Path(where)) if where.endswith(".py") else _import_module(where)
    for path in files_behind(module):
        noted(path)
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


def files_behind(module: ModuleType) -> list[Path]:
    """The file of a reward, and those in its folder that are loaded, as by its imports.

    Not those of this project, of Python and of installed packages, which may change.
    """
    own, *loaded = (
        Path(getattr(each, "__file__", None) or "none") for each in (module, *sys.modules.values())
    )
    apart = [Path(sysconfig.get_path("stdlib")), *(REPOSITORY / name for name in PACKAGES)]
    return [own] + [
        path
        for path in loaded
        if path.is_relative_to(own.parent)
        and "site-packages" not in path.parts
        and not any(map(path.is_relative_to, apart))
    ]


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
    """A module from its file, under a name that hides no other; modules beside it are found first."""
    path = expanded(path)
    if not path.is_file():
        raise UserError(f"--reward {path}:...: there is no file {path}")
    name = f"glassbox_reward_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # the name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while it is read
    sys.path.insert(0, beside := str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        raise _broken(str(path), error) from error
    finally:
        sys.path.remove(beside)
    if beside not in sys.path:  # last: for imports in the function, hiding no other module
        sys.path.append(beside)
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
    """Which of OPTIONAL the function takes, or BATCH. UserError for a function of another form."""
    name = reward.rpartition(":")[2]
    expected = (
        f"--reward {reward}: it is called as {name}(prompt, response), by keyword also record and ended, "
        f"or as {name}(prompts, completions, **columns)"
    )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:  # written in C
        raise UserError(f"{expected}, and its parameters cannot be read") from error
    if inspect.iscoroutinefunction(function):
        raise UserError(f"{expected}, and never awaited: write def, not async def")
    if not signature.parameters.keys().isdisjoint(BATCH):
        return BATCH
    wanted = tuple(name for name in OPTIONAL if name in signature.parameters)
    try:
        signature.bind("", "", **dict.fromkeys(wanted))
        if OTHER_ORDER.fullmatch(",".join([*signature.parameters][:2])):
            raise TypeError
    except TypeError as error:
        raise UserError(f"{expected}, in this order: it takes {signature}") from error
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
    """One number per row from a user's function, (N,); UserError where it fails or gives no finite one."""

    def __init__(self, function: Callable[..., Any], name: str, wanted: Sequence[str] = ()) -> None:
        self.function, self.name, self.wanted = function, name, tuple(wanted)
        self.columns: set[str] = set()  # that a row has had

    def __call__(self, rollout: Rollout) -> Tensor:
        if self.wanted == BATCH:  # on one rank: it may compare the rows
            values = on_main(lambda: self._batch(rollout))
        else:
            rows = range(len(rollout))[shard_block(len(rollout))]
            values = all_gather_list([self._row(rollout, row) for row in rows])
        return torch.tensor(values, dtype=torch.float32, device=rollout.response_tokens.device)

    def _row(self, rollout: Rollout, row: int) -> float:
        record, place = rollout.records[row], _place(rollout, row)
        offered = {"record": record, "ended": bool(rollout.has_eos[row])}
        more = {name: offered[name] for name in self.wanted}
        response = rollout.responses[row]
        return self._finite(self._called(place, record.prompt, response, **more), place)

    def _batch(self, rollout: Rollout) -> list[float]:
        rows = [
            {
                **record.meta,
                "answer": record.answer,
                "prompts": record.prompt,
                "completions": response,
            }
            for record, response in zip(rollout.records, rollout.responses, strict=True)
        ]
        self.columns |= {name for row in rows for name, value in row.items() if value is not None}
        named = inspect.signature(self.function).parameters
        every = any(each.kind is each.VAR_KEYWORD for each in named.values())
        names = [name for name in sorted(self.columns) if every or name in named]
        place = f"a batch of {len(rows)} texts with the columns {', '.join(sorted(self.columns))}"
        values = self._called(place, **{name: [row.get(name) for row in rows] for name in names})
        if len(values) != len(rows):
            raise UserError(
                f"--reward {self.name} gave {len(values)} numbers for {place}: it must give one for each"
            )
        return [self._finite(value, _place(rollout, row)) for row, value in enumerate(values)]

    def _called(self, place: str, *arguments: Any, **named: Any) -> Any:
        """What the function gives, for a batch as a list."""
        try:
            value = self.function(*arguments, **named)
            return list(value) if self.wanted == BATCH else value
        except (Exception, SystemExit) as error:
            raise UserError(
                f"--reward {self.name} failed at {place}: {_in_words(error)}"
            ) from error

    def _finite(self, value: Any, place: str) -> float:
        number = _number(value)
        if number is None or not abs(number) <= MOST:  # NaN neither
            raise UserError(
                f"--reward {self.name} gave {value!r:.60} at {place}: it must give a finite number"
            )
        return number


def _place(rollout: Rollout, row: int) -> str:
    return f"prompt {row + 1} of {len(rollout)}, {rollout.records[row].prompt[:60]!r}"
