"""A way to compute something, right or wrong, with the sentence for whoever computes it so.

The ways of this folder stand in ways.txt, as changes of formulas.py.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from . import formulas


@dataclass(frozen=True)
class Way:
    """What it is called, what is said to whoever computes so, and the function itself."""

    name: str
    says: str
    function: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


@cache
def sections() -> dict[str, dict[str, list[str]]]:
    """{section: {name: [sentence, *changes]}} of ways.txt."""
    lines: list[str] = []
    section: dict[str, list[str]] = {}
    found: dict[str, dict[str, list[str]]] = {}
    for line in (Path(__file__).parent / "ways.txt").read_text("utf-8").splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif line.startswith("    "):
            lines.append(line.strip())
        elif found and line:
            name, says = line.split(": ", 1)
            section[name] = lines = [says]
    return found


def sentence(section: str, name: str) -> str:
    """One sentence; KeyError where there is none."""
    return sections()[section][name][0]


@cache
def ways(kind: str, mistakes: bool = False) -> tuple[Way, ...]:
    """The right ways of a kind of function or of average, or its mistakes."""
    rows: dict[str, list[str]] = {}
    for header, section in sections().items():
        if kind in header.split() and header.endswith("mistakes") == mistakes:
            rows |= section
    return tuple(Way(name, row[0], made(kind, name, row[1:])) for name, row in rows.items())


def made(kind: str, name: str, changes: Sequence[str]) -> Callable[..., Any]:
    """The function of that name, or the kind's first right one with something changed."""
    if not changes:
        return getattr(formulas, name)
    first = next(names for header, names in sections().items() if kind in header.split())
    return changed(getattr(formulas, next(iter(first))), changes)


def changed(function: Callable[..., Any], changes: Sequence[str]) -> Callable[..., Any]:
    """The function with b in the place of every a, for "a -> b"; another change is the whole result.

    ValueError where a does not stand in its body.
    """
    head, body = source_of(function)
    for change in changes:
        before, arrow, after = change.partition(" -> ")
        if arrow and before not in body:
            raise ValueError(
                f"{function.__name__} does not hold {before!r}, which is to be changed"
            )
        body = body.replace(before, after) if arrow else f"    return {change}\n"
    built: dict[str, Any] = {}
    exec(head + body, function.__globals__, built)
    return built[function.__name__]


@cache
def source_of(function: Callable[..., Any]) -> tuple[str, str]:
    """A function's source: from "def" to the end of its docstring, and the statements after it."""
    lines = inspect.getsource(function).splitlines(keepends=True)
    (definition,) = ast.parse("".join(lines)).body
    assert isinstance(definition, ast.FunctionDef)
    body = definition.body[1:] if ast.get_docstring(definition) else definition.body
    first = body[0].lineno - 1
    return "".join(lines[definition.lineno - 1 : first]), "".join(lines[first:])
