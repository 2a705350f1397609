"""The family as differences: any two one-paper files of nano/ as a coloured diff.

Made at build time, without JavaScript: a matrix to choose from and one light page a pair. What is
said over a pair stands in neighbours.txt.
"""

from __future__ import annotations

import difflib
import html
import re
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from pathlib import Path

import ledger
import source_pages
from files import ROOT
from notebook_pages import raw

PAGE = "beside/family"
CONTEXT = 3  # equal lines that stay open on either side of a change


@cache
def papers() -> dict[str, str]:
    """The one-paper files and what is new in each, in the order of the table in nano/README.md."""
    text = (ROOT / "nano" / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| \[(\w+)\.py\]\(\1\.py\) \|[^|]+\| (.+) \|$", text, re.MULTILINE)
    return dict(rows)


@cache
def neighbours() -> dict[tuple[str, str], str]:
    """Pairs that the course or the papers compare, and what the step from left to right does."""
    lines = (ROOT / "docs" / "site" / "neighbours.txt").read_text("utf-8").splitlines()
    found = {}
    for line in lines:
        names, _, said = line.partition(": ")
        left, right = names.split()
        found[left, right] = said
    return found


def pairs() -> list[tuple[str, str]]:
    return list(combinations(papers(), 2))


def page_of(pair: tuple[str, str]) -> str:
    return f"{PAGE}/{pair[0]}-{pair[1]}"


def lines_of(name: str) -> list[str]:
    return (ROOT / "nano" / f"{name}.py").read_text("utf-8").splitlines()


def title_of(name: str) -> str:
    """What a file's first line calls its algorithm."""
    return re.split(r":| \(", lines_of(name)[0].removeprefix('"""'))[0]


# --- one pair -------------------------------------------------------------------------------------


def without_comment(line: str) -> str:
    """Line numbers of an algorithm box differ between papers where the code does not."""
    return re.sub(r"  # .*$", "", line)


@cache
def parts(pair: tuple[str, str]) -> list[tuple[bool, list[str], list[str]]]:
    """Both files in pieces: whether their code is the same there, lines of the left, of the right."""
    left, right = map(lines_of, pair)
    codes = ([*map(without_comment, lines)] for lines in (left, right))
    found = difflib.SequenceMatcher(None, *codes, autojunk=False).get_opcodes()
    return [(kind == "equal", left[a:b], right[c:d]) for kind, a, b, c, d in found]


def changed_lines(pair: tuple[str, str]) -> int:
    """How many lines of code go or come; what the files say of themselves is left out."""
    found = difflib.ndiff(*([*map(without_comment, code_of(name))] for name in pair))
    return sum(row[0] in "+-" and bool(row[2:].strip()) for row in found)


def code_of(name: str) -> list[str]:
    """A file's lines after its docstring."""
    lines = lines_of(name)
    return lines[lines.index('"""') + 1 :]


def whole(tag: str, lines: list[str]) -> str:
    """Lines, each an element, so that a phone can wrap them."""
    return "".join(f"<{tag}>{html.escape(line, quote=False)}\n</{tag}>" for line in lines)


def same(left: str, right: str) -> str:
    """A line whose code is the same, its two comments in place."""
    if left == right:
        return whole("span", [left])
    code = without_comment(left)
    ends = (html.escape(line.removeprefix(code), quote=False) for line in (left, right))
    marked = "".join(
        f"<{t}>{end}</{t}>" for t, end in zip(("del", "ins"), ends, strict=True) if end
    )
    return f"<span>{html.escape(code, quote=False)}{marked}\n</span>"


def diff(pair: tuple[str, str]) -> str:
    """Both files in one: <del> is the left one's alone, <ins> the right one's, the rest is both's."""
    out, last = "", len(parts(pair)) - 1
    for at, (equal, left, right) in enumerate(parts(pair)):
        if not equal:
            out += whole("del", left) + whole("ins", right)
            continue
        rows = [same(*both) for both in zip(left, right, strict=True)]
        first, end = CONTEXT * (at > 0), len(rows) - CONTEXT * (at < last)
        if end - first < 2 * CONTEXT:  # folding would save little
            first = end = len(rows)
        out += "".join(rows[:first]) + folded(rows[first:end]) + "".join(rows[end:])
    return f'<div class="highlight fam-diff">{out}</div>'


def folded(rows: list[str]) -> str:
    summary = f"<summary>{len(rows)} lines with the same code</summary>"
    return f"<details>{summary}{''.join(rows)}</details>" if rows else ""


def in_the_study(pair: tuple[str, str]) -> str:
    """The rows of the study that have both, in its first table that does; its link otherwise."""
    tables: dict[tuple[str, tuple[str, ...]], dict[str, tuple[str, ...]]] = {}
    for row in ledger.rows_of(list(pair)):
        tables.setdefault((row.section, row.head), {}).setdefault(row.cells[0], row.cells)
    for (section, head), rows in tables.items():
        if len(rows) == 2:
            said = " ".join(f"<b>{name}</b> {measured(head, rows[name])}." for name in pair)
            link = f"../../docs/study.html#{section.lower()}"
            return f'<a href="{link}">The study, {section.lower()}</a>: {said}'
    return (
        'No table of <a href="../../docs/study.html">the study</a> has both: another world or other '
        "data, or not run."
    )


def measured(head: tuple[str, ...], cells: tuple[str, ...]) -> str:
    """The first number of a row, and how far from the start it was reached."""
    named = dict(zip(head[1:], cells[1:], strict=True))
    wanted = dict.fromkeys([head[1], "KL (nats)"])
    return ", ".join(f"{name} {html.escape(named[name])}" for name in wanted if name in named)


def sentence(pair: tuple[str, str]) -> str:
    """What the difference does; of files that nobody compares what each brings."""
    own = (f"{title_of(name)}: {papers()[name]}." for name in pair)
    return neighbours().get(pair) or " ".join(own)


def pair_page(pair: tuple[str, str]) -> str:
    left, right = (f'<a href="../../code/nano/{name}.py.html">nano/{name}.py</a>' for name in pair)
    return (
        f'<p class="fam-says">{html.escape(sentence(pair))}</p><p>{in_the_study(pair)}</p>'
        f'<p class="fam-key"><del>{left}</del> <ins>{right}</ins></p>{diff(pair)}'
    )


def write_pages(html_folder: Path) -> None:
    """A light page a pair, beside Sphinx's pages."""
    for pair in pairs():
        title = " and ".join(map(title_of, pair))
        above = f'<a href="../family.html">The family as differences</a> / {title}'
        source_pages.write_page(html_folder, page_of(pair), title, above, pair_page(pair))


# --- the matrix -----------------------------------------------------------------------------------


def cells(row: str) -> Iterator[str]:
    for column in papers():
        pair = (row, column) if (row, column) in pairs() else (column, row)
        if row == column:
            yield "<td></td>"
            continue
        count, title = changed_lines(pair), " and ".join(map(title_of, pair))
        near = " class=fam-near" if pair in neighbours() else ""
        link = f'<a href="family/{"-".join(pair)}.html" title="{title}">{count}</a>'
        yield f'<td{near} style="--share:{min(count, 100)}%">{link}</td>'


def matrix() -> str:
    head = "".join(f"<th><span>{name}</span></th>" for name in papers())
    body = "".join(f"<tr><th>{name}</th>{''.join(cells(name))}</tr>" for name in papers())
    return f'<table class="fam"><tr><th></th>{head}</tr>{body}</table>'


def pages() -> dict[str, str]:
    """The page to choose from, in Markdown."""
    text = (
        "---\nhide-toc: true\n---\n# The family as differences\n\n"
        "Pick two algorithms: the cell where they meet opens their two files of [nano](/nano/README.md) "
        "as one, with what goes and what comes in colour. The number is how many lines of code differ. "
        "A frame marks neighbours: pairs that the course or the papers compare.\n\n"
    )
    text += raw(matrix(), "fam-page") + "\n"
    text += "| file | what is new |\n|---|---|\n"
    text += "".join(f"| [{n}.py](../nano/{n}.py) | {new} |\n" for n, new in papers().items())
    return {PAGE: text}
