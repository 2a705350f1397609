"""A change of one named piece of code, found by its syntax tree and not by its text.

planted_bugs.txt holds such changes in blocks, with blank lines between:

    k1-sign: k1 is log pi_ref - log pi: the penalty pays for drifting away
    in k1
    - return log_probs - ref_log_probs
    + return ref_log_probs - log_probs
    tests test_kl.py

`in` names a function, a class or an assigned name in any of our packages, so that a file may move.
Where a name stands in several files, the file comes first: `grpo_engine.train`. The `-` lines are an
expression, a decorator, statements, neighbouring arguments of a call (`rows=len(rows)`) or one item
of a dict (`"k3": k3`). They must occur exactly once in the named code, however it is laid out and
commented. Without `+` lines the statements or the decorator are deleted. A block may hold several
changes; each finds the code as the one before has left it.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from trials import ROOT

from harness.errors import UserError

PACKAGES = ("harness", "data", "gpt", "reward_model", "rl")
ELSEWHERE = ("nano", "scripts", "notebooks/course")  # for a name that no package has
Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


@dataclass(frozen=True)
class Change:
    """Inside the code called `name`, `old` becomes `new`."""

    name: str
    old: str
    new: str


@dataclass(frozen=True)
class Block:
    """One block of a file of changes."""

    title: str
    section: str  # the "# comment" line above it
    changes: tuple[Change, ...]
    tests: tuple[str, ...]


# --- reading --------------------------------------------------------------------------------------


def read_blocks(path: Path) -> list[Block]:
    """The blocks of a file. A line that fits nowhere is a UserError that names it."""
    blocks, section = [], ""
    for paragraph in re.split(r"\n\s*\n", path.read_text(encoding="utf-8").strip()):
        lines = paragraph.splitlines()
        while lines and lines[0].startswith("#"):
            section = lines.pop(0).lstrip("# ")
        if lines:
            blocks.append(read_block(lines, section, path.name))
    return blocks


def read_block(lines: Sequence[str], section: str, file: str) -> Block:
    changes: list[Change] = []
    tests: list[str] = []
    sides: dict[str, list[str]] = {"-": [], "+": []}
    name = before = ""
    for line in [*lines[1:], "end"]:
        kind, _, rest = line.partition(" ")
        if sides["-"] and (kind not in sides or (before, kind) == ("+", "-")):
            changes.append(Change(name, "\n".join(sides["-"]), "\n".join(sides["+"])))
            sides = {"-": [], "+": []}
        if kind == "in":
            name = rest
        elif kind == "tests":
            tests += rest.split()
        elif kind in sides and name and (sides["-"] or kind == "-"):
            sides[kind].append(rest)
        elif line != "end":
            raise UserError(f"{file}, {lines[0]!r}: this line fits no change: {line!r}")
        before = kind
    return Block(lines[0], section, tuple(changes), tuple(tests))


# --- finding --------------------------------------------------------------------------------------


@cache
def parsed(text: str) -> ast.Module:
    """The tree of a file, which is asked for once a change."""
    return ast.parse(text)


def definitions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Functions, classes and assigned names with their qualified names; not what functions hold."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield f"{prefix}{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from definitions(node, f"{prefix}{node.name}.")
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((f"{prefix}{t.id}", node) for t in targets if isinstance(t, ast.Name))
        elif isinstance(node, (ast.If, ast.Try)):
            yield from definitions(node, prefix)


@dataclass(frozen=True)
class Code:
    """The text of our Python files by their path from the repository's root."""

    texts: Mapping[str, str]

    @classmethod
    def read(cls, root: Path = ROOT) -> Code:
        files = [p for f in (*PACKAGES, *ELSEWHERE) for p in sorted((root / f).rglob("*.py"))]
        return cls({p.relative_to(root).as_posix(): p.read_text(encoding="utf-8") for p in files})

    @cached_property
    def _places(self) -> Mapping[str, list[tuple[str, str]]]:
        """(file, qualified name) by every name that may mean it: with more and more of its path."""
        places: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for path, text in self.texts.items():
            module = path.removesuffix(".py").removesuffix("/__init__").split("/")
            for name in dict.fromkeys(name for name, _ in definitions(parsed(text))):
                for start in range(len(module) + 1):
                    places[".".join([*module[start:], name])].append((path, name))
        return places

    def find(self, name: str) -> tuple[str, str]:
        """(file, qualified name in it). A name of a package wins over one elsewhere."""
        found = self._places.get(name, [])
        found = [place for place in found if place[0].split("/")[0] in PACKAGES] or found
        if not found:
            raise UserError(f"no code is called {name} in {', '.join((*PACKAGES, *ELSEWHERE))}")
        if len(found) > 1:
            files = " and ".join(path for path, _ in found)
            raise UserError(f"{name} is in {files}: write the file's name before it")
        return found[0]

    def changed(self, changes: Sequence[Change]) -> dict[str, str]:
        """The new text of each file that the changes touch. UserError where one has no one place."""
        texts: dict[str, str] = {}
        for change in changes:
            path, name = self.find(change.name)
            text = texts.get(path, self.texts[path])
            named = [node for title, node in definitions(parsed(text)) if title == name]
            spans = {span: kind for node in named for span, kind in places(node, change).items()}
            if len(spans) != 1:
                raise UserError(
                    f"{change.name} in {path} holds {change.old!r} {len(spans)} times "
                    "instead of once"
                )
            ((span, kind),) = spans.items()
            texts[path] = replaced(text, span, kind, change.new)
        return texts


# --- changing -------------------------------------------------------------------------------------

Span = tuple[int, int, int, int]  # line, column, end line, end column; columns in bytes
KINDS = ("expression", "statements", "arguments", "item")


def nodes_of(code: str, kind: str) -> Sequence[ast.AST]:
    """The nodes that a text stands for; none where it is no code of this kind."""
    start, end = {"expression": "()", "arguments": ("f(", ")"), "item": "{}"}.get(kind, ("", ""))
    try:
        body = ast.parse(f"{start}{code}\n{end}").body
    except SyntaxError:
        return []
    if kind == "statements":
        return body
    if len(body) != 1 or not isinstance(body[0], ast.Expr):
        return []
    node = body[0].value
    return [node] if kind == "expression" else next(rows_of(node), [])


def rows_of(node: ast.AST) -> Iterator[list[Any]]:
    """What stands next to each other in a node: arguments, items of a dict, statements."""
    if isinstance(node, ast.Call):
        yield [*node.args, *node.keywords]
    elif isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        yield [part for key, value in pairs if key for part in (key, value)]
    for _, value in ast.iter_fields(node):
        row = value if isinstance(value, list) else [value]
        yield [part for part in row if isinstance(part, ast.AST)]


def dump(node: ast.AST) -> str:
    """The same for the same code, whether a name in it is read or written."""
    return re.sub(r"(Store|Del)\(\)", "Load()", ast.dump(node))


def places(tree: ast.AST, change: Change) -> dict[Span, str]:
    """Where `old` stands in the tree, and as which kind."""
    found: dict[Span, str] = {}
    rows = [row for node in ast.walk(tree) for row in rows_of(node)]
    deleted = "expression" if change.old.startswith("@") else "statements"
    for kind in KINDS if change.new else (deleted,):
        wanted = nodes_of(change.old.removeprefix("@"), kind)
        types, dumps = [type(node) for node in wanted], [dump(node) for node in wanted]
        if not wanted or (change.new and not nodes_of(change.new.removeprefix("@"), kind)):
            continue
        for row in rows:
            for start in range(len(row) - len(wanted) + 1):
                part = row[start : start + len(wanted)]
                if [type(x) for x in part] == types and [dump(x) for x in part] == dumps:
                    first, last = part[0], part[-1]
                    span = first.lineno, first.col_offset, last.end_lineno, last.end_col_offset
                    found.setdefault(span, kind)
    return found


def replaced(text: str, span: Span, kind: str, new: str) -> str:
    line, column, end_line, end_column = span
    lines = text.encode().splitlines(keepends=True)
    if kind == "expression" and not new:  # a decorator
        return b"".join([*lines[: line - 1], *lines[end_line:]]).decode()
    before = b"".join(lines[: line - 1]) + lines[line - 1][:column]
    after = lines[end_line - 1][end_column:] + b"".join(lines[end_line:])
    new = new.removeprefix("@") or "pass"
    new = f"({new})" if kind == "expression" else new.replace("\n", "\n" + " " * column)
    return (before + new.encode() + after).decode()
