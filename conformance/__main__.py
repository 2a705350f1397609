"""`python -m conformance mine.py:loss [--as KIND] [--strict]`: is the function right?

One sentence, then the smallest failing example. The exit status is 0 for right (variants of a right
function are named), 1 for a mistake, 2 for a function that cannot be checked.
"""

from __future__ import annotations

import argparse
import importlib
import runpy
import sys
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .checking import Kind, Unusable, Verdict, check, names_in
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
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise Unusable(f"{where} cannot be imported: {type(error).__name__}: {reason}") from error


def loaded(place: str) -> Callable[..., Any]:
    """The function that `file.py:name` or `package.module:name` names."""
    where, _, name = place.rpartition(":")
    if not where:
        raise Unusable(f"{place} names no function: write mine.py:loss, or package.module:loss")
    there = names_of(where)
    try:
        found = attrgetter(name)(SimpleNamespace(**there))
    except AttributeError:
        found = None
    if not callable(found):
        names = [n for n, v in there.items() if callable(v) and not n.startswith("_")]
        raise Unusable(f"{where} has no function {name}: it has {', '.join(names) or 'none'}")
    return found


def kind_of(function: Callable[..., Any], name: str) -> Kind:
    """The kind that a function's name says, or else its arguments."""
    if named := [k for k in KINDS if k in name]:
        return KINDS[max(named, key=len)]
    for kind in KINDS.values():
        try:
            names_in(function, kind)
            return kind
        except Unusable:
            continue
    raise Unusable(
        f"the arguments of {name} are those of no kind: say --as KIND (`python -m conformance "
        "--list` shows them), or wrap it in a function that takes a kind's arguments"
    )


def text_of(place: str, kind: Kind, verdict: Verdict) -> str:
    """What is printed: one sentence, the example, what else was seen."""
    opening = {"right": "right", "variant": "right, one of several ways", "mistake": "mistake"}
    notes = list(verdict.notes)
    about = f" ({notes.pop(0)})" if notes and notes[0].startswith("over ") else ""
    lines = [f"{opening[verdict.status]}: {place} as {kind.name}: {verdict.says}{about}"]
    if verdict.example:
        lines.append(f"the smallest failing example:\n{verdict.example}")
    return "\n".join(lines + notes)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m conformance", description=__doc__)
    parser.add_argument("functions", nargs="*", metavar="FILE.py:FUNCTION")
    parser.add_argument(
        "--as", dest="kind", choices=KINDS, help="what it is, if names do not say it"
    )
    parser.add_argument("--strict", action="store_true", help="what is fragile is a mistake")
    parser.add_argument("--list", action="store_true", help="every kind and its arguments")
    chosen = parser.parse_args(arguments)
    if chosen.list or not chosen.functions:
        for kind in KINDS.values():
            print(f"{kind.name}({', '.join(kind.order)})\n    {sentence('kinds', kind.name)}")
        return 0 if chosen.list else 2
    worst = 0
    for place in chosen.functions:
        try:
            function = loaded(place)
            name = place.rpartition(":")[2]
            kind = KINDS[chosen.kind] if chosen.kind else kind_of(function, name)
            verdict = check(function, kind, strict=chosen.strict)
            print(text_of(place, kind, verdict))
            worst = max(worst, 0 if verdict.right else 1)
        except Unusable as error:
            print(f"not checked: {place}: {error}.")
            worst = 2
    return worst


if __name__ == "__main__":
    sys.exit(main())
