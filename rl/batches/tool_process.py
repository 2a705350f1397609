"""A user's function in a process of its own, so that it can be stopped: a line in, a line out.

Its arguments are FILE.py and FUNCTION. Each request and each answer is one JSON object. What the
function prints is dropped.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from data.records import PromptRecord

CHARACTERS = 64  # of an answer
MEMORY = 2 * 2**30  # bytes that the function's process may use


def limit_memory() -> None:
    """Where the system knows such a limit."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def answered(function: Callable[..., Any], request: dict[str, Any]) -> dict[str, str]:
    """What the function says to one call; of a long answer the beginning."""
    try:
        record = PromptRecord(request["prompt"], request["answer"], request["meta"])
        wanted = "record" in inspect.signature(function).parameters
        said = function(request["call"], **({"record": record} if wanted else {}))
        if said is None or isinstance(said, bytes):
            raise TypeError(f"it returned {type(said).__name__}, which is no text")
        return {"said": str(said)[: CHARACTERS + 1]}
    except BaseException as error:  # a tool's way to fail is no way to end its process
        return {"failed": f"{type(error).__name__}: {error}"[:200]}


def main() -> None:
    """Answer requests until there are none."""
    (path, name), own = sys.argv[1:], os.getpid()
    answers, requests = os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(0))
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):  # requests and answers are no business of the function's
        os.dup2(silence, stream)

    def tell(told: dict[str, str]) -> None:
        if os.getpid() != own:  # a fork of the function's, which would answer a second time
            os._exit(0)
        print(json.dumps(told), file=answers, flush=True)

    limit_memory()
    try:
        spec = importlib.util.spec_from_file_location("tools_of_the_user", path)
        assert spec is not None and spec.loader is not None  # the name ends in .py
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        function = getattr(module, name)
        if not callable(function):
            raise TypeError(f"{name} is no function")
    except BaseException as error:
        return tell({"failed": f"{type(error).__name__}: {error}"[:200]})
    tell({"said": ""})
    for line in requests:
        tell(answered(function, json.loads(line)))
