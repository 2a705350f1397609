"""What answers a policy while it writes: a calculator, a game, a function of the user's.

A call is a span of ordinary tokens, as "[47*86]"; the environment writes the answer right behind it, and
the policy goes on. Errors and time-outs are answers too. The text is decoded to read the call and for
nothing else: what is sampled, kept and scored are the token ids, to which the answer's ids are appended.

    --tools calculator          arithmetic (data/calculator.py)
    --tools guessing            a game whose every turn is answered (data/guessing.py)
    --tools FILE.py:FUNCTION    FUNCTION(call) -> text, or FUNCTION(call, record) -> text

A function runs in a process of its own, with a limit on its time, its memory and the length of its answer.
It must answer the same call the same way, or a run cannot be repeated.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from data import calculator, guessing
from data.records import PromptRecord
from gpt.generate import Reply
from gpt.tokenizer import Tokenizer
from harness.errors import UserError
from harness.files import expanded
from harness.ranks.collectives import all_reduce_sum
from rl.batches.tool_process import CHARACTERS

START = "from rl.batches.tool_process import main; main()"
SECONDS = 2.0  # for one answer
STARTING = 30.0  # for the process of a function to begin
SAID = 3  # failures of a kind that are told; all are counted

Answer = Callable[[str, PromptRecord], str]


class ToolFailed(Exception):
    """There is no answer; `kind`, "error" or "timeout", is what the policy reads in its place."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


@dataclass(frozen=True)
class Tool:
    """Who answers, and what a call looks like; without `opens` it is all of the policy's turn."""

    name: str
    answer: Answer
    opens: str = "["
    closes: str = "]"


class FunctionProcess:
    """A function of the user's, in a process that is ended when it takes too long."""

    def __init__(self, path: Path, function: str) -> None:
        self.command = [sys.executable, "-c", START, str(path), function]
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Begin; ToolFailed if the file has no such function."""
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": paths},
            bufsize=0, start_new_session=True,  # `select` sees all there is; `end` ends its children
        )  # fmt: skip
        self.owner = os.getpid()
        self.read(STARTING)

    def __call__(self, call: str, record: PromptRecord) -> str:
        if self.process is None or self.owner != os.getpid():  # a fork's answers would be mixed up
            self.start()
        request = {"call": call, "prompt": record.prompt, "answer": record.answer}
        line = json.dumps(request | {"meta": dict(record.meta)}, default=str)
        try:
            assert self.process is not None and self.process.stdin is not None
            self.process.stdin.write(line.encode() + b"\n")
        except OSError:
            self.end()
            raise ToolFailed("error", "its process is gone") from None
        return self.read(SECONDS)

    def read(self, seconds: float) -> str:
        """The next answer; ToolFailed, and no process, if there is none in time."""
        assert self.process is not None and self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            self.end()
            if ready:
                raise ToolFailed("error", "its process has ended")
            raise ToolFailed("timeout", f"no answer in {seconds:g} seconds")
        told = json.loads(line)
        if "failed" in told:
            raise ToolFailed("error", told["failed"])
        return str(told["said"])

    def end(self) -> None:
        """Kill the process, if there is one, and what it has started; nothing of it is waited for."""
        if self.process is not None:
            with self.process, suppress(OSError):  # closes its pipes
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process = None

    def __del__(self) -> None:
        if getattr(self, "process", None) is not None:
            self.end()


@dataclass
class Tools:
    """A tool with its limits, its failures so far, and who is told of each call."""

    tool: Tool
    max_calls: int
    on_call: Callable[[str, str], None] | None = None
    failures: Counter[str] = field(default_factory=Counter)  # since the last `metrics`
    said: Counter[str] = field(default_factory=Counter)

    def __deepcopy__(self, memo: object) -> Tools:
        """A copy of a model asks the same tool."""
        return self

    def answer(self, call: str, record: PromptRecord) -> str:
        """What the policy reads: never empty, never long, whatever the tool does."""
        try:
            text = self.tool.answer(call, record)
            if not text:
                raise ToolFailed("error", "an empty answer")
            if len(text) > CHARACTERS:
                self.fail("long", f"an answer of more than {CHARACTERS} characters, cut", call)
        except Exception as error:
            text = error.kind if isinstance(error, ToolFailed) else "error"
            self.fail(text, str(error), call)
        text = text[:CHARACTERS]
        if self.on_call is not None:
            self.on_call(call, text)
        return text

    def fail(self, kind: str, why: str, call: str) -> None:
        """Count it, and say so the first times."""
        self.failures[kind] += 1
        self.said[kind] += 1
        if self.said[kind] <= SAID:
            print(f"note: --tools {self.tool.name}: {' '.join(why.split())!r}, at {call[:60]!r}")

    def replies(
        self, tokenizer: Tokenizer, records: Sequence[PromptRecord], group_size: int
    ) -> list[Reply]:
        """One for each of the responses to come."""
        return [Turn(self, tokenizer, record) for record in records for _ in range(group_size)]

    def metrics(self, turns: Tensor) -> dict[str, float]:
        """What to log of some responses, by the sampler's own counts (docs/metrics.md)."""
        drawn, calls, cut = turns.double().mean(0).tolist()
        failures = all_reduce_sum(self.failures)
        self.failures.clear()
        return {
            "calls": calls,
            "sampled_tokens": drawn,
            "stopped_calls": cut,
            "tool_failures": int(sum(failures.values())),
        }


class Turn:
    """Reads one response as it grows, and says what is written behind a call (`Reply`)."""

    def __init__(self, tools: Tools, tokenizer: Tokenizer, record: PromptRecord) -> None:
        self.tools, self.tokenizer, self.record = tools, tokenizer, record
        self.start = self.calls = 0  # of the policy's segment; answered so far

    def __call__(self, tokens: Sequence[int]) -> list[int] | None:
        tool = self.tools.tool
        if tool.closes not in self.tokenizer.decode(tokens[-1:]):
            return None
        text, _, _ = self.tokenizer.decode(tokens[self.start :]).rpartition(tool.closes)
        if tool.opens:
            _, opened, text = text.rpartition(tool.opens)
            if not opened:
                return None
        if self.calls == self.tools.max_calls:
            return []
        said = self.tokenizer.encode(self.tools.answer(text, self.record))
        self.calls += 1
        self.start = len(tokens) + len(said)
        return said


TOOLS = {
    "calculator": Tool("calculator", lambda call, record: calculator.calculate(call)),
    "guessing": Tool("guessing", guessing.reply, opens="", closes="?"),
}


def check_tools(name: str) -> None:
    """ValueError for a --tools that is neither a tool's name nor FILE.py:FUNCTION."""
    where, colon, function = name.rpartition(":")
    if name != "none" and name not in TOOLS and not (
        colon and where.endswith(".py") and function.isidentifier()
    ):  # fmt: skip
        raise ValueError(
            f"tools {name!r} must be none, {', '.join(TOOLS)} or FILE.py:FUNCTION, as in mine.py:look_up"
        )


def open_tools(name: str, max_calls: int) -> Tools | None:
    """The tool that --tools names; None for none. UserError for a function that cannot be used."""
    if name == "none":
        return None
    if name in TOOLS:
        return Tools(TOOLS[name], max_calls)
    where, _, function = name.rpartition(":")
    path = expanded(Path(where)).resolve()
    if not path.is_file():
        raise UserError(f"--tools {name}: there is no file {path}: check the path")
    try:
        return Tools(Tool(name, FunctionProcess(path, function)), max_calls)
    except ToolFailed as error:
        raise UserError(f"--tools {name}: {error}: mend the function, or name another") from None
