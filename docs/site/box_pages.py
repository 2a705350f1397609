"""Code beside the paper: one page an engine, made from its box, its file and the ledger."""

from __future__ import annotations

import ast
import html
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import boxes
import files
import ledger
import notebook_pages
from boxes import Box, BoxLine
from formulas import mathml
from notebook_pages import raw
from overopt.figures import draw_engines
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer


def inline(text: str) -> str:
    """`code`, **bold**, *italics*, [links](..) and $math$ as HTML."""
    parts = re.split(r"(\$[^$]+\$|`[^`]+`)", text)
    return "".join(inline_part(part) for part in parts)


def inline_part(part: str) -> str:
    if part.startswith("$") and len(part) > 1:
        return mathml(part.strip("$"))
    if part.startswith("`"):
        return f"<code>{html.escape(part.strip('`'))}</code>"
    text = html.escape(part, quote=False)
    text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", text)
    text = re.sub(r"\*(.+?)\*", r"<i>\1</i>", text)
    return re.sub(r"\[([^\]]+)\]\((\w+)\.md\)", r'<a href="\2.html">\1</a>', text)  # another box


def block(text: str) -> str:
    if text.startswith("$$"):
        return f'<div class="bx-formula">{mathml(text.strip("$"), display="block")}</div>'
    return f'<div class="bx-words">{inline(text)}</div>'


def shown_functions(box: Box) -> list[str]:
    """Ledger functions that the engine names, in its code or in its line map, in the file's order."""
    head = " ".join(boxes.line_map(box.engine).values())
    tree = ast.walk(ast.parse(box.source.read_text("utf-8")))
    used = sorted((n.lineno, n.id) for n in tree if isinstance(n, ast.Name))
    words = [*re.findall(r"\w+", head), *(name for _, name in used)]
    words += [name.rsplit(".", 1)[-1] for line in box.lines for name in line.see]
    extra = re.split(r",\s*", box.fields.get("equations", ""))
    return [name for name in dict.fromkeys([*words, *extra]) if name in ledger.equations()]


def see_links(line: BoxLine) -> str:
    """Where else the code of a line is, as links."""
    links = []
    for name in line.see:
        module, function = name.rsplit(".", 1)
        path = module.replace(".", "/") + ".py"
        links.append(
            f'<a href="../code/{path}.html#{function}"><code>{html.escape(name)}</code></a>'
        )
    return f'<div class="bx-words">also in {", ".join(links)}</div>' if links else ""


def box_line(line: BoxLine, first: int | None) -> str:
    number = f'<span class="bx-number">{line.number}</span>'
    text = f'<div class="bx-text">{inline(line.text)}</div>' + "".join(map(block, line.more))
    if line.left_out:
        text += f'<div class="bx-words">left out here: {inline(line.left_out)}</div>'
    text += see_links(line)
    state = 'class="bx-line bx-left-out"' if first is None else (
        f'class="bx-line" tabindex="0" role="button" data-line="{line.number}" data-code="L{first}"'
    )  # fmt: skip
    return f'<div {state} style="--depth:{line.depth}">{number}<div>{text}</div></div>'


def code_parts(box: Box, marked: dict[int, list[tuple[int, int]]]) -> list[tuple[int, int]]:
    """The functions that carry markers, from first to last line, in the file's order."""
    tree = ast.parse(box.source.read_text("utf-8"))
    spans = [(n.lineno, n.end_lineno or n.lineno) for n in tree.body if hasattr(n, "lineno")]
    used = {at for extents in marked.values() for first, last in extents for at in (first, last)}
    return [(a, b) for a, b in spans if any(a <= line <= b for line in used)]


def gap(source: list[str], first: int, last: int) -> str:
    """What stands for the lines between two functions that are shown."""
    left_out = any(map(str.strip, source[first - 1 : last]))
    words = f"lines {first} to {last} are not shown" if left_out else ""
    return f'<span class="bx-gap">{words}</span>'


def code_block(box: Box, marked: dict[int, list[tuple[int, int]]]) -> str:
    source = box.source.read_text("utf-8")
    rows = highlight(source, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)).split("\n")
    belongs: dict[int, set[int]] = {}
    for number, extents in marked.items():
        for first, last in extents:
            for at in range(first, last + 1):
                belongs.setdefault(at, set()).add(number)
    starts: dict[int, set[int]] = {}
    for number, extents in marked.items():
        for first, _ in extents:
            starts.setdefault(first, set()).add(number)
    out, previous = [], 0
    for first, last in code_parts(box, marked):
        if previous:
            out.append(gap(source.splitlines(), previous + 1, first - 1))
        for at in range(first, last + 1):
            numbers = " ".join(map(str, sorted(belongs.get(at, ()))))
            badge = " ".join(map(str, sorted(starts.get(at, ()))))
            state = f' data-lines="{numbers}"' if numbers else ""
            out.append(
                f'<span class="bx-code" id="L{at}"{state}><span class="bx-badge">{badge}</span>'
                f'<span class="bx-at">{at}</span>{rows[at - 1]}</span>'
            )
        previous = last
    return '<div class="highlight bx-source"><pre>' + "".join(out) + "</pre></div>"


def best_place(box: Box, extents: list[tuple[int, int]]) -> int:
    """Where a tap on a line goes: into the loop, which is what one reads, if the line is there."""
    tree = ast.parse(box.source.read_text("utf-8"))
    loop = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "train")
    starts = sorted(first for first, _ in extents)
    inside = [line for line in starts if loop.lineno <= line <= (loop.end_lineno or 0)]
    return (inside or starts)[0]


def beside(box: Box) -> str:
    marked = boxes.markers(box.engine)
    goal = {number: best_place(box, extents) for number, extents in marked.items()}
    lines = "".join(box_line(line, goal.get(line.number)) for line in box.lines)
    name = f"rl/{box.engine}_engine.py"
    return (
        '<div class="beside"><div class="bx-box"><p class="bx-title">'
        f"{inline(box.fields['box'])}</p>{lines}</div>"
        f'<div class="bx-file"><p class="bx-title"><a href="../code/{name}.html">{name}</a></p>'
        f"{code_block(box, marked)}</div></div>"
    )


def in_words(peers: int) -> str:
    return "1 other implementation agrees" if peers == 1 else f"{peers} other implementations agree"


def equation_list(box: Box) -> str:
    text = ""
    for name in shown_functions(box):
        entry = ledger.equations()[name]
        peers = f", {in_words(entry.peers)}" if entry.peers else ""
        text += (
            f"**[{entry.title}](/docs/equations.md#{entry.anchor})** `{entry.function}`"
            f"{peers}\n\n$$\n{entry.formula}\n$$\n\n"
        )
    return text


def study_names(box: Box) -> list[str]:
    """The rows of the study that a page shows."""
    return re.split(r",\s*", box.fields.get("study", ""))


def own_rows(box: Box) -> list[str]:
    """Those that are this engine's own: GRPO stands on the other pages to compare with."""
    return [name for name in study_names(box) if name != "grpo" or box.engine == "grpo"]


def study_table(box: Box) -> str:
    """The rows of the study that ran this engine, each table with its head, and the picture.

    A section that only has GRPO to compare with, or rows that another section shows, is left out.
    """
    names, text, head = study_names(box), "", None
    first_seen = {row.cells: row for row in reversed(ledger.rows_of(own_rows(box)))}
    sections = {row.section for row in first_seen.values()}
    rows: dict[tuple[str, str], ledger.StudyRow] = {}
    for row in ledger.rows_of(["base model", *names]):
        if row.section in sections:  # of several tables in one the first: three seeds, main setting
            rows.setdefault((row.section, row.cells[0]), row)
    for row in rows.values():
        if (row.section, row.head) != head:
            head = (row.section, row.head)
            text += (
                f"\n**{row.section}**\n\n| {' | '.join(row.head)} |\n|{'---|' * len(row.head)}\n"
            )
        text += f"| {' | '.join(row.cells)} |\n"
    for section, picture in dict.fromkeys((row.section, row.picture) for row in rows.values()):
        text += f"\n![{section}: every engine of the study](/docs/{picture})\n"
    return text


def notebook_link(box: Box) -> str:
    """The course's page about an engine, found by its name without the number."""
    wanted = box.fields.get("notebook", "")
    for name in files.notebooks():
        stem = name.split("/")[-1].removesuffix(".ipynb")
        if wanted and re.sub(r"^\d+_", "", stem) == wanted:
            title = notebook_pages.title_of(files.ROOT / name)
            return f"[{title}](/{name.removesuffix('.ipynb')}.md)"
    return ""


def boxes_of(notebook: str) -> str:
    """A line of links from a page of the course (its name without .ipynb) to the boxes of its engines."""
    links = [
        f"[{box.title}](/beside/{box.engine}.md)"
        for box in map(boxes.read_box, boxes.engines())
        if f"(/{notebook}.md)" in notebook_link(box)
    ]
    return f"*Code beside the paper, line by line: {', '.join(links)}.*" if links else ""


def papers(box: Box) -> str:
    """The papers of an engine in words, and links to them."""
    arxiv = ", ".join(
        f"[arXiv:{number}](https://arxiv.org/abs/{number})"
        for number in re.split(r",\s*", box.fields["arxiv"])
    )
    return f"{box.fields['paper']} ({arxiv})"


def page(box: Box) -> str:
    course = notebook_link(box)
    links = [f"Paper: {papers(box)}."]
    links += [f"In the course: {course}."] if course else []
    short = f"nano/{box.engine}.py"
    if (files.ROOT / short).exists():
        links.append(
            f"In one short file: [{short}](../{short}), and [any two as a diff](/beside/family.md)."
        )
    text = f"---\nhide-toc: true\n---\n# {box.title}\n\n{box.fields['idea']} {' '.join(links)}\n\n"
    text += (
        "*Point at a line of the box, or tap it: the lines of code that carry it out light up. It works "
        "the other way round too. The box is in our words, with the paper's equation numbers.*\n\n"
    )
    text += raw(beside(box), "bx-page") + "\n"
    for title, body in box.sections.items():
        text += f"## {title}\n\n{body}\n\n"
    text += f"## Its equations\n\n{equation_list(box)}"
    table = study_table(box)
    if table:
        text += (
            "## What it does\n\nFrom [the study](/docs/study.md): mean (lowest to highest) of three "
            f"seeds.\n{table}\n"
        )
    if curves_of(box):
        text += (
            "**On one budget.** Its gold reward against the distance from the start, every run a line, "
            "with GRPO's runs in grey ([all engines](/docs/study.md#one-budget)).\n\n"
            f"![gold against distance](/{curve_of(box)})\n"
        )
    return text


@cache
def measured() -> dict[str, Any]:
    """The numbers of the study of one budget and of over-optimisation."""
    path = files.ROOT / "docs" / "overoptimisation.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def curves_of(box: Box) -> list[tuple[str, str]]:
    """World and row of the runs on one budget that are this engine's own."""
    own = own_rows(box)
    return [
        (world, row)
        for world, found in measured().get("budget", {}).items()
        for row in dict.fromkeys(run["engine"] for run in found["runs"])
        if row in own
    ]


def curve_of(box: Box) -> str:
    """The picture of these runs, from the site's root."""
    return f"beside/{box.engine}-budget.png"


def draw_curves(target: Path) -> None:
    """A picture for every engine that has run on the budget."""
    for box in map(boxes.read_box, boxes.engines()):
        if wanted := curves_of(box):
            picture = target / curve_of(box)
            picture.parent.mkdir(parents=True, exist_ok=True)
            draw_engines(measured(), wanted, picture)


def pages() -> dict[str, str]:
    """Page -> Markdown: one an engine, in the order of docs/boxes/ORDER, and an index."""
    all_boxes = sorted(map(boxes.read_box, boxes.engines()), key=lambda b: int(b.fields["order"]))
    result = {f"beside/{box.engine}": page(box) for box in all_boxes}
    index = (
        "# Code beside the paper\n\nEach page shows an algorithm box and, beside it, the lines of "
        "code that carry it out. The code is the engine's own file. All engines have the same shape, "
        "so the second one reads faster than the first. Begin with GRPO.\n\n"
        "| engine | the idea | paper |\n|---|---|---|\n"
    )
    for box in all_boxes:
        link = f"[{box.title}](/beside/{box.engine}.md)"
        index += f"| {link} | {box.fields['idea']} | {papers(box)} |\n"
    tree = "\n".join(f"/{name}" for name in result)
    index += f"\n```{{toctree}}\n:hidden:\n\n{tree}\n```\n"
    return {"beside/index": index} | result
