"""`python -m conformance mine.py:loss [--as KIND] [--strict]`: is the function right?

One sentence, then the smallest failing example. The exit status is 0 for right (variants of a right
function are named), 1 for a mistake, 2 for a function that cannot be checked.
"""

from __future__ import annotations

import argparse
import importlib
import math
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from .checking import Kind, Unusable, check, names_in
from .kinds import KINDS
from .ways import sentence


def names_of(where: str) -> dict[str, Any]:
    """What the module defines that a path or a dotted name says."""
    if where.endswith(".py") and not Path(where).is_file():
        raise Unusable(f"there is no file {where}: give its path from here, {Path.cwd()}")
    try:
        if not where.endswith(".py"):
            return vars(importlib.import_module(where))
        sys.path.insert(0, str(Path(where).resolve().parent))
        return runpy.run_path(where, run_name=Path(where).stem)
    except (Exception, SystemExit) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise Unusable(f"{where} cannot be imported: {type(error).__name__}: {reason}") from error


def loaded(place: str) -> Callable[..., Any]:
    """The function that `file.py:name` or `package.module:name` names."""
    where, _, name = place.rpartition(":")
    if not where:
        raise Unusable(f"{place} names no function: write mine.py:loss, or package.module:loss")
    there = names_of(where)
    if not callable(found := there.get(name)):
        names = [n for n, v in there.items() if callable(v) and not n.startswith("_")]
        raise Unusable(f"{where} has no function {name}: it has {', '.join(names) or 'none'}")
    return found


def kind_of(function: Callable[..., Any], name: str) -> Kind:
    """The kind that a function's name says, if its arguments are of that kind, or else they say it."""
    named = [KINDS[k] for k in sorted(KINDS, key=len, reverse=True) if k in name]
    for kind in (*named, *KINDS.values()):
        with suppress(Unusable):
            names_in(function, kind)
            return kind
    raise Unusable(
        f"the arguments of {name} are those of no kind: say --as KIND (`python -m conformance --list` "
        "shows them, and what adapters take)"
    )


def told(place: str, kind: Kind | None = None, *, strict: bool = False) -> tuple[int, str]:
    """The exit status and what is printed: one sentence, the example, what else was seen."""
    opening = {"right": "right", "variant": "right, one of several ways", "mistake": "mistake"}
    try:
        function = loaded(place)
        kind = kind or kind_of(function, place.rpartition(":")[2])
        verdict = check(function, kind, strict=strict)
    except Unusable as error:
        return 2, f"not checked: {place}: {error}."
    lines = [f"{opening[verdict.status]}: {place} as {kind.name}: {verdict.says}"]
    if verdict.example:
        lines.append(f"the smallest failing example:\n{verdict.example}")
    return 0 if verdict.right else 1, "\n".join([*lines, *verdict.notes])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m conformance", description=__doc__)
    parser.add_argument("functions", nargs="*", metavar="FILE.py:FUNCTION")
    parser.add_argument("--as", dest="kind", choices=KINDS, help="what it is, if no name says it")
    parser.add_argument("--strict", action="store_true", help="what is fragile is a mistake")
    parser.add_argument("--seconds", type=float, default=300.0, help="the longest all may take")
    parser.add_argument("--list", action="store_true", help="every kind and its arguments")
    chosen = parser.parse_args(arguments)
    if chosen.list or not chosen.functions:
        for kind in KINDS.values():
            print(f"{kind.name}({', '.join(kind.order)})\n    {sentence('kinds', kind.name)}")
        return 0 if chosen.list else 2
    if not 0 < chosen.seconds < 1e6:
        parser.error(f"--seconds {chosen.seconds:g}: give a number above 0 and below a million")
    return in_a_child(partial(check_all, chosen), chosen.seconds)


def check_all(chosen: argparse.Namespace) -> int:
    worst = 0
    for place in chosen.functions:
        status, text = told(place, KINDS.get(chosen.kind), strict=chosen.strict)
        print(text, flush=True)
        worst = max(worst, status)
    return worst


def in_a_child(work: Callable[[], int], seconds: float) -> int:
    """What `work` returns, 2 if it never does: somebody's code may end its process, or not end at all.

    Where processes cannot be forked (Windows) it runs in this one.
    """
    if not hasattr(os, "fork"):
        return work()
    context = multiprocessing.get_context("fork")
    answer = context.SimpleQueue()

    def answered() -> None:
        signal.alarm(math.ceil(seconds) + 5)  # should the parent be gone by then
        answer.put(work())

    child = context.Process(target=answered, daemon=True)
    child.start()
    child.join(seconds)
    why = f"no result within {seconds:g} s (--seconds)" if child.is_alive() else "it ended there"
    child.kill()
    child.join()
    if not answer.empty():
        return int(answer.get())
    print(f"not checked: {why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
