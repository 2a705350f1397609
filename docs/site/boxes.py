"""The algorithm boxes (docs/boxes) and the lines of the engines that carry them out.

A marker is a comment `# line 9`, `# lines 6-7` or `# lines 2 and 4` in an engine. It stands for

- the whole function or `with` block, on the line where that begins;
- the head of a loop or an `if`;
- the whole statement, on any of its lines; alone on its line, the statement below it.

A box is a Markdown file: its fields, its lines (`- [9] .. text`, two dots for each level, with
continuation lines below), and sections. This file imports nothing but the standard library.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "boxes"
MARKER = re.compile(r"\blines? (\d+)(?:( and |-)(\d+))?(?: and (\d+))?")
MAP_ROW = re.compile(r"^    lines? (\d+)(?:( and |-)(\d+))? +\S", re.MULTILINE)


class BoxError(Exception):
    """A box that cannot be read; the message names it."""


@dataclass
class BoxLine:
    """One line of a box: its number, its depth, its text, and what the engine leaves out of it."""

    number: int
    depth: int
    text: str
    more: list[str] = field(default_factory=list)  # formulas and words below the text
    left_out: str = ""  # why no code does this line
    see: list[str] = field(default_factory=list)  # dotted names of functions elsewhere that do it


@dataclass
class Box:
    """A box file: title, fields, lines and the sections that follow, in order."""

    engine: str
    title: str
    fields: dict[str, str]
    lines: list[BoxLine]
    sections: dict[str, str]


def source_of(engine: str) -> Path:
    return ROOT / "rl" / f"{engine}_engine.py"


def engines() -> list[str]:
    """Names of all engines: rl/NAME_engine.py."""
    return sorted(path.stem.removesuffix("_engine") for path in (ROOT / "rl").glob("*_engine.py"))


@cache
def read_box(engine: str) -> Box:
    """The box of an engine. Raises BoxError for a line that cannot be read."""
    path = FOLDER / f"{engine}.md"
    if not path.exists():
        raise BoxError(f"docs/boxes/{engine}.md is missing: write the box of rl/{engine}_engine.py")
    head, *parts = re.split(r"^## (.+)\n", path.read_text("utf-8"), flags=re.MULTILINE)
    title, *rest = head.strip().splitlines()
    fields = dict(line.removeprefix("- ").split(": ", 1) for line in rest if line.strip())
    sections = {n: t.strip() for n, t in zip(parts[::2], parts[1::2], strict=True)}
    lines = box_lines(sections.pop("Box", ""), engine)
    return Box(engine, title.removeprefix("# "), fields, lines, sections)


def box_lines(text: str, engine: str) -> list[BoxLine]:
    lines: list[BoxLine] = []
    for row in filter(str.strip, text.splitlines()):
        start = re.match(r"- \[(\d+)\] ((?:\.\. )*)(.+)$", row)
        if start:
            lines.append(BoxLine(int(start[1]), start[2].count(".."), start[3]))
        elif row.startswith("  ") and lines:
            continue_line(lines[-1], row.strip())
        else:
            raise BoxError(f"docs/boxes/{engine}.md: {row!r} is no line of a box, as in - [9] text")
    found = [line.number for line in lines]
    if not found or found != sorted(set(found)):
        raise BoxError(f"docs/boxes/{engine}.md: the lines are not in order: {found}")
    return lines


def continue_line(line: BoxLine, text: str) -> None:
    kind, _, rest = text.partition(": ")
    if kind == "left out":
        line.left_out = rest
    elif kind == "see":
        line.see += re.split(r",\s*", rest)
    else:
        line.more.append(text)


# --- markers in the code -------------------------------------------------------------------------


def numbers(first: str, how: str, second: str, third: str = "") -> list[int]:
    """`6`, `6-7`, `2 and 4` and `6-7 and 9` as numbers."""
    last = int(second) if how == "-" else int(first)
    listed = [second] * (how == " and ") + [third]
    return [*range(int(first), last + 1), *map(int, filter(None, listed))]


def extent(line: int, nodes: list[ast.stmt]) -> tuple[int, int]:
    """First and last line of what a marker on this line stands for."""
    around = [n for n in nodes if n.lineno <= line <= (n.end_lineno or n.lineno)]
    node = max(around, key=lambda n: (n.lineno, -(n.end_lineno or 0)))
    body = getattr(node, "body", None)
    if not body:
        return node.lineno, node.end_lineno or node.lineno
    if isinstance(node, (ast.With, ast.FunctionDef, ast.ClassDef)):
        if line == node.lineno:
            return node.lineno, node.end_lineno or node.lineno
        return line, line  # a parameter
    return node.lineno, body[0].lineno - 1  # the head of a loop or a condition


def markers(engine: str) -> dict[int, list[tuple[int, int]]]:
    """Line of the box -> the extents of code that carry its marker."""
    source = source_of(engine).read_text("utf-8")
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    found: dict[int, list[tuple[int, int]]] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        for groups in MARKER.findall(token.string):
            if not token.line[: token.start[1]].strip():  # alone on its line
                line = min(node.lineno for node in nodes if node.lineno > token.start[0])
            for number in numbers(*groups):
                found.setdefault(number, []).append(extent(line, nodes))
    return found


def mapped_lines(engine: str) -> set[int]:
    """The lines of the box that the engine's docstring maps to the code."""
    docstring = ast.get_docstring(ast.parse(source_of(engine).read_text("utf-8")), clean=False)
    return {number for row in MAP_ROW.findall(docstring or "") for number in numbers(*row)}


def problems(engine: str) -> list[str]:
    """Where the box, the markers and the docstring of an engine do not fit each other, in words."""
    lines, marked, mapped = read_box(engine).lines, set(markers(engine)), mapped_lines(engine)
    done = {line.number for line in lines if not line.left_out}
    left_out = {line.number for line in lines} - done
    wrong = {
        "have no code that is marked `# line N`": done - marked,
        "are missing in the docstring": done - mapped,
        "are marked, but are not in the box or left out of it": marked - done,
        "are in the docstring, but not in the box": mapped - done - left_out,
    }
    here = f"docs/boxes/{engine}.md and rl/{engine}_engine.py"
    return [f"{here}: lines {sorted(found)} {said}" for said, found in wrong.items() if found]
