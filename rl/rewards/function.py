"""A reward that the user writes: a Python function, named on the command line as WHERE:FUNCTION.

    def brief(prompt: str, response: str) -> float:          in my_rewards.py
        return -float(len(response.split()))

    python -m rl.grpo_engine --reward my_rewards:brief
    python -m rl.grpo_engine --reward path/to/my_rewards.py:brief

The first two arguments are the texts of the prompt and of the response, without its EOS. A
parameter named `record` gets the prompt's record as well (data/records.py; `record.answer`, and
`record.meta` for a row's other columns), one named `ended` whether the response has its EOS, one named
`messages` the question: the conversation that the prompt was written of, as {"role", "content"}; plain
text is one user's turn.

A function with a parameter `prompts` or `completions` is of TRL's form: it is called by keyword, once a
batch, with lists of these, of the rows' values in the columns that it names, of `messages` and of
`completion_ids`, and gives a list. Prompts and completions are texts, or messages where the file has
its prompts as messages.

None says that the function does not judge a row; then another reward must (rl/rewards/several.py).

The function is code and runs with your rights; modules beside its file can be imported. It is read when
a run starts; --resume refuses when its file, or one in its folder that it imports, has changed since.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import math
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

from data.records import PromptRecord
from data.templates import Turn, messages_of
from harness.errors import UserError
from harness.files import expanded, record_input
from harness.paths import REPOSITORY
from harness.ranks.collectives import all_gather_list, on_main, shard_block
from rl.batches.rollout import Rollout
from rl.rewards.reward import LARGEST, row_place

OPTIONAL = ("record", "ended", "messages")
BATCH = ("prompts", "completions")  # TRL's form
IF_NAMED = ("messages", "completion_ids")
NOT_HERE = {"trainer_state", "log_extra", "log_metric", "environments"}  # which TRL's trainer gives
PACKAGES = ("data", "gpt", "harness", "reward_model", "rl")  # this project
OTHER_ORDER = re.compile(  # first and second parameter where a response is first, or a truth second
    r"(?:response|completion|solution|answer|output|prediction)(?:_\w+)?,.*|\w*,(?:prompt|"
    r"(?:(?:ground|gold|true|correct|reference)_?)*(?:truth|solution|answer|target|label|reference|gold)s?(?:_\w+)?)"
)


def open_function(reward: str) -> FunctionReward:
    """The function that a --reward of the form WHERE:FUNCTION names. UserError if it cannot be used."""
    where, _, name = reward.rpartition(":")
    with undone():
        module = _imported(where)
    for path in files_behind(module):
        record_input(path)
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
    """The file of a reward, and those in its folder that it imports, or that one of these does.

    Not those of this project, of Python and of installed packages, which may change, and not what
    something else in this process has loaded, such as another run.
    """
    beside = Path(getattr(module, "__file__", None) or "none").parent
    apart = [Path(sysconfig.get_path("stdlib")), *(REPOSITORY / name for name in PACKAGES)]
    found, left = dict[Path, None](), [module]
    while left:
        each = left.pop()
        path = Path(getattr(each, "__file__", None) or "none")
        own = path.is_relative_to(beside) and "site-packages" not in path.parts
        if each is module or (
            path not in found and own and not any(map(path.is_relative_to, apart))
        ):
            found[path] = None
            left += [m for m in _imports_of(each, path) if m is not module]
    return list(found)


def _imports_of(module: ModuleType, path: Path) -> list[ModuleType]:
    """The modules that are loaded of those that a file imports anywhere in its text."""
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_bytes())) if path.suffix == ".py" else ():
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            up = (
                (module.__package__ or "").split(".")[: 1 - node.level or None]
                if node.level
                else []
            )
            base = ".".join([*up, *filter(None, [node.module])])
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    parts = [name.split(".") for name in names]
    names |= {".".join(part[:end]) for part in parts for end in range(1, len(part))}
    return [sys.modules[name] for name in sorted(names) if name in sys.modules]


def _imported(where: str) -> ModuleType:
    """The module that `where` names, or a file; UserError where it is not found or fails."""
    try:
        return (
            _import_file(expanded(Path(where))) if where.endswith(".py") else _import_module(where)
        )
    except (Exception, SystemExit) as error:
        raise UserError(
            f"--reward {where}:...: {where} cannot be imported: {_in_words(error)}: mend it, start in the "
            "folder that holds it, or name the file, as in path/to/my_rewards.py:..."
        ) from error


def _import_module(where: str) -> ModuleType:
    """A module that Python finds, the working folder included."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    importlib.invalidate_caches()
    return importlib.import_module(where)


def _import_file(path: Path) -> ModuleType:
    """A module from its file, under a name that hides no other; modules beside it are found first."""
    name, beside = f"glassbox_reward_{path.stem}", str(path.resolve().parent)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # the name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while it is read
    sys.path.insert(0, beside)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(beside)
    if beside not in sys.path:  # last: for imports in the function, hiding no other module
        sys.path.append(beside)
    return module


def _in_words(error: BaseException) -> str:
    """An exception in one line, with the line of code that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    message = " ".join(str(error).split())
    return (
        f"{type(error).__name__}: {message:.300} ({Path(last.filename).name}, line {last.lineno})"
    )


def _wanted(function: Callable[..., Any], reward: str) -> tuple[str, ...]:
    """Which of OPTIONAL the function takes, or BATCH. UserError for a function of another form."""
    try:
        signature = inspect.signature(function)  # of a function that is written in C a ValueError
        names = signature.parameters.keys()
        batch = not names.isdisjoint(BATCH)
        wanted = BATCH if batch else tuple(name for name in OPTIONAL if name in names)
        if not batch:
            signature.bind("", "", **dict.fromkeys(wanted))
        for name in sorted(NOT_HERE & names if batch else ()):
            if signature.parameters[name].default is inspect.Parameter.empty:
                raise TypeError(f"it asks for {name}, which only TRL's trainer has")
        other_order = not batch and OTHER_ORDER.fullmatch(",".join([*names][:2]))
        if other_order or inspect.iscoroutinefunction(function):
            raise TypeError(f"it is {'async ' * (not other_order)}def f{signature}")
    except (TypeError, ValueError) as error:
        raise UserError(
            f"--reward {reward}: {error}, but is called as f(prompt, response), in this order, by keyword "
            "also record, ended and messages, or as f(prompts, completions, **columns), and never awaited"
        ) from error
    return wanted


class FunctionReward:
    """One number per row from a user's function, (N,); UserError where it fails or gives no finite one."""

    def __init__(self, function: Callable[..., Any], name: str, wanted: Sequence[str] = ()) -> None:
        self.function, self.name, self.wanted = function, name, tuple(wanted)
        self.columns: set[str] = set()  # that a row has had

    def __call__(self, rollout: Rollout) -> Tensor:
        values = self.judged(rollout)
        if values.isnan().any():
            place = row_place(rollout, int(values.isnan().nonzero()[0]))
            why = f"gave None at {place}, and no other reward judges it: give a number, or name another"
            raise UserError(f"--reward {self.name} {why}")
        return values

    def judged(self, rollout: Rollout) -> Tensor:
        """The same, with NaN for a row that the function gave None for."""
        if self.wanted == BATCH:  # on one rank: it may compare the rows
            values = on_main(lambda: self._batch(rollout))
        else:
            rows = range(len(rollout))[shard_block(len(rollout))]
            values = all_gather_list([self._row(rollout, row) for row in rows])
        return torch.tensor(values, dtype=torch.float32, device=rollout.response_tokens.device)

    def _row(self, rollout: Rollout, row: int) -> float:
        record, place = rollout.records[row], row_place(rollout, row)
        offered = dict(
            record=record, ended=bool(rollout.has_eos[row]), messages=conversation(record)
        )
        more = {name: offered[name] for name in self.wanted}
        value = self._called(place, record.prompt, rollout.responses[row], **more)
        return self._finite(value, place)

    def _batch(self, rollout: Rollout) -> list[float]:
        chats = all(record.in_messages for record in rollout.records)
        tokens = zip(rollout.response_tokens.tolist(), rollout.lengths.tolist(), strict=True)
        rows = []
        for record, text, (ids, n) in zip(rollout.records, rollout.responses, tokens, strict=True):
            own = dict(answer=record.answer, messages=conversation(record), completion_ids=ids[:n])
            own |= dict(prompts=record.prompt, completions=text)
            if chats:
                own |= dict(
                    prompts=conversation(record), completions=messages_of([Turn("assistant", text)])
                )
            rows.append({**record.meta, **own})
        self.columns |= {name for row in rows for name, value in row.items() if value is not None}
        named = inspect.signature(self.function).parameters
        every = any(each.kind is each.VAR_KEYWORD for each in named.values())
        names = [n for n in sorted(self.columns) if n in named or (every and n not in IF_NAMED)]
        columns = ", ".join(sorted(self.columns))
        kind = "messages here" if chats else "texts here"
        place = f"a batch of {len(rows)} rows (completions are {kind}) with the columns {columns}"
        values = self._called(place, **{name: [row.get(name) for row in rows] for name in names})
        if len(values) != len(rows):
            raise UserError(f"--reward {self.name} gave {len(values)} numbers for {place}")
        return [self._finite(value, row_place(rollout, row)) for row, value in enumerate(values)]

    def _called(self, place: str, *arguments: Any, **named: Any) -> Any:
        """What the function gives, for a batch as a list."""
        try:
            value = self.function(*arguments, **named)
            return list(value) if self.wanted == BATCH else value
        except (Exception, SystemExit) as error:
            why = f"failed at {place}: {_in_words(error)}"
            raise UserError(f"--reward {self.name} {why}") from error

    def _finite(self, value: Any, place: str) -> float:
        """The number that the function gave, NaN for None; UserError for all else, a text like "2" too."""
        if value is None:
            return math.nan
        try:
            number = math.nan if isinstance(value, str | bytes) else float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):  # RuntimeError: a whole tensor
            number = math.nan
        if not abs(number) <= LARGEST:  # NaN neither
            raise UserError(
                f"--reward {self.name} gave {value!r:.60}, no number up to {LARGEST:g}, at {place}"
            )
        return number


def conversation(record: PromptRecord) -> list[dict[str, str]]:
    """The conversation up to the answer, as messages; plain text is one user's turn."""
    return messages_of(record.turns or [Turn("user", record.prompt)])
