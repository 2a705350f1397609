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
MAP_ROW = re.compile(r"^    lines? (\d+)(?:( and |-)(\d+))? +(\S.*)$", re.MULTILINE)


class BoxError(Exception):
    """A box or a marker that does not fit; the message names it."""


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

    @property
    def source(self) -> Path:
        return ROOT / "rl" / f"{self.engine}_engine.py"


def engines() -> list[str]:
    """Names of all engines: rl/NAME_engine.py."""
    return sorted(path.stem.removesuffix("_engine") for path in (ROOT / "rl").glob("*_engine.py"))


def numbers(first: str, how: str | None, second: str | None) -> list[int]:
    """`6`, `6-7` and `2 and 4` as numbers."""
    if not second:
        return [int(first)]
    return [*range(int(first), int(second) + 1)] if how == "-" else [int(first), int(second)]


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
    if "Box" not in sections:
        raise BoxError(f"docs/boxes/{engine}.md has no section Box")
    lines = box_lines(sections.pop("Box"), engine)
    return Box(engine, title.removeprefix("# "), fields, lines, sections)


def box_lines(text: str, engine: str) -> list[BoxLine]:
    lines: list[BoxLine] = []
    for row in text.splitlines():
        start = re.match(r"- \[(\d+)\] ((?:\.\. )*)(.+)$", row)
        if start:
            lines.append(BoxLine(int(start[1]), start[2].count(".."), start[3]))
        elif row.startswith("  ") and lines:
            continue_line(lines[-1], row.strip())
        elif row.strip():
            raise BoxError(f"docs/boxes/{engine}.md: {row!r} is no line of a box, as in - [9] text")
    found = [line.number for line in lines]
    if found != sorted(set(found)):
        raise BoxError(f"docs/boxes/{engine}.md: the lines are not in order: {found}")
    return lines


def continue_line(line: BoxLine, text: str) -> None:
    if text.startswith("left out: "):
        line.left_out = text.removeprefix("left out: ")
    elif text.startswith("see: "):
        line.see += re.split(r",\s*", text.removeprefix("see: "))
    else:
        line.more.append(text)


# --- markers in the code -------------------------------------------------------------------------


def comments(source: str) -> dict[int, tuple[str, bool]]:
    """Line -> its comment, and whether it stands alone on its line."""
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            alone = not token.line[: token.start[1]].strip()
            found[token.start[0]] = (token.string, alone)
    return found


def statements(tree: ast.AST) -> list[ast.stmt]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]


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
    source = (ROOT / "rl" / f"{engine}_engine.py").read_text("utf-8")
    nodes, found = statements(ast.parse(source)), {}
    for at, (comment, alone) in comments(source).items():
        for first, how, second, third in MARKER.findall(comment):
            line = at
            if alone:
                line = min(n.lineno for n in nodes if n.lineno > at)
            for number in numbers(first, how or None, second or None) + (
                [int(third)] if third else []
            ):
                found.setdefault(number, []).append(extent(line, nodes))
    return found


def line_map(engine: str) -> dict[int, str]:
    """Line of the box -> what the docstring's line map says of it."""
    source = (ROOT / "rl" / f"{engine}_engine.py").read_text("utf-8")
    docstring = ast.get_docstring(ast.parse(source), clean=False) or ""
    found: dict[int, str] = {}
    for first, how, second, text in MAP_ROW.findall(docstring):
        found |= dict.fromkeys(numbers(first, how or None, second or None), text)
    return found


def problems(engine: str) -> list[str]:
    """Where box, line map and markers of an engine do not fit each other, in words."""
    box, marked, mapped = read_box(engine), markers(engine), line_map(engine)
    found = []
    known = {line.number for line in box.lines}
    for line in box.lines:
        here = f"docs/boxes/{engine}.md, line {line.number}"
        if line.left_out and line.number in marked:
            found.append(
                f"{here} is said to be left out, and rl/{engine}_engine.py marks code for it"
            )
        if not line.left_out and line.number not in marked:
            found.append(f"{here} has no code: put `# line {line.number}` in rl/{engine}_engine.py")
        if not line.left_out and line.number not in mapped:
            found.append(f"{here} is missing in the line map of rl/{engine}_engine.py's docstring")
    for number in sorted(set(marked) - known):
        found.append(
            f"rl/{engine}_engine.py marks line {number}, which docs/boxes/{engine}.md lacks"
        )
    for number in sorted(set(mapped) - known):
        found.append(
            f"rl/{engine}_engine.py maps line {number}, which docs/boxes/{engine}.md lacks"
        )
    return found
