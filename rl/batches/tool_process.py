"""A user's function in a process of its own, so that it can be stopped: a line in, a line out.

Its arguments are FILE.py and FUNCTION. Each request and each answer is one JSON object. What the
function prints is dropped.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from data.records import PromptRecord

CHARACTERS = 64  # of an answer
MEMORY = 2 * 2**30  # bytes that the function's process may use


def limit_memory() -> None:
    """Where the system knows such a limit."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    except (ImportError, ValueError, OSError):
        return


def answered(function: Callable[..., Any], request: dict[str, Any]) -> dict[str, str]:
    """What the function says to one call; of a long answer the beginning."""
    try:
        record = PromptRecord(request["prompt"], request["answer"], request["meta"])
        wanted = "record" in inspect.signature(function).parameters
        said = str(function(request["call"], **({"record": record} if wanted else {})))
        return {"said": said[: CHARACTERS + 1]}
    except BaseException as error:  # a tool's way to fail is no way to end its process
        return {"failed": f"{type(error).__name__}: {error}"[:200]}


def main() -> None:
    """Answer requests until there are none."""
    path, name = sys.argv[1:]
    answers, requests = os.fdopen(os.dup(1), "w"), sys.stdin
    silence = os.open(os.devnull, os.O_RDWR)
    os.dup2(silence, 1)
    limit_memory()
    try:
        module: dict[str, Any] = {"__name__": "tools_of_the_user", "__file__": path}
        with open(path, encoding="utf-8") as file:
            exec(compile(file.read(), path, "exec"), module)  # the user's own file
        function = module[name]
        told = {"said": ""} if callable(function) else {"failed": f"{name} is no function"}
    except BaseException as error:
        told = {"failed": f"{type(error).__name__}: {error}"[:200]}
    print(json.dumps(told), file=answers, flush=True)
    for line in requests:
        print(json.dumps(answered(function, json.loads(line))), file=answers, flush=True)
