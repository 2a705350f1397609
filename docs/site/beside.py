"""Code beside the paper: the page of a box, its lines on the left and the engine's file beside them."""

from __future__ import annotations

import re
from pathlib import Path

import boxes
from boxes import ROOT, Box, BoxLine
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

HOW_TO = (
    "*Point at a line of the box, or tap it: the lines of code that carry it out light up. It works "
    "the other way round too. The box is in our words, with the paper's equation numbers.*"
)


def all_boxes() -> list[Box]:
    return sorted(map(boxes.read_box, boxes.engines()), key=lambda box: int(box.fields["order"]))


def page_name(path: Path) -> str:
    """The page of a file's box; nothing for a file that is no engine."""
    engine = path.stem.removesuffix("_engine")
    return f"docs/boxes/{engine}" if path == boxes.source_of(engine) else ""


def page(engine: str) -> str:
    """The page of an engine's box, in Markdown."""
    box = boxes.read_box(engine)
    sections = "".join(f"## {title}\n\n{body}\n\n" for title, body in box.sections.items())
    left = f'<div class="bx-box">\n\n{box.fields["box"]}\n\n{box_html(box)}</div>'
    right = f'<div class="highlight bx-file">\n\n{code_html(engine)}\n\n</div>'
    both = f'<div class="beside">\n\n{left}\n\n{right}\n\n</div>'
    return (
        f"---\nhide-toc: true\n---\n# {box.title}\n\n{box.fields['idea']} {links(box)}\n\n{HOW_TO}"
        f"\n\n{both}\n\n{sections}"
    )


def links(box: Box) -> str:
    """The papers, the engine, its short twin, and the course's page, found without its number."""
    papers = re.split(r",\s*", box.fields["arxiv"])
    said = ", ".join(f"[arXiv:{number}](https://arxiv.org/abs/{number})" for number in papers)
    course = f"notebooks/[0-9][0-9]_{box.fields['notebook']}.ipynb"
    wanted = (f"rl/{box.engine}_engine.py", f"nano/{box.engine}.py", course)
    names = [path.relative_to(ROOT).as_posix() for name in wanted for path in ROOT.glob(name)]
    files = ", ".join(f"[{name}](/{name})" for name in names)
    return f"Paper: {box.fields['paper']} ({said}). Files: {files}."


def box_html(box: Box) -> str:
    """The lines of a box: Markdown inside tags."""
    marked, text = boxes.markers(box.engine), ""
    for line in box.lines:
        state = ""
        if line.number in marked:  # its last place is in the loop, which is what one reads
            last = max(first for first, _ in marked[line.number])
            state = f' tabindex="0" role="button" data-line="{line.number}" data-code="L{last}"'
        text += (
            f'<div class="bx-line" style="--depth:{line.depth}"{state}>\n'
            f"<b>{line.number}</b><div>\n\n{line_text(line)}\n\n</div></div>\n\n"
        )
    return text


def line_text(line: BoxLine) -> str:
    parts = [line.text, *line.more]
    parts += [f"*left out here: {line.left_out}*"] if line.left_out else []
    parts += [
        f"also in [`{name}`](/{name.rsplit('.', 1)[0].replace('.', '/')}.py)" for name in line.see
    ]
    return "\n\n".join(parts)


def code_html(engine: str) -> str:
    """The engine's file, each line with the numbers of the box that it carries out."""
    source = boxes.source_of(engine).read_text("utf-8")
    rows = highlight(source, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)).splitlines()
    belongs: dict[int, set[int]] = {}
    starts: dict[int, set[int]] = {}
    for number, extents in boxes.markers(engine).items():
        for first, last in extents:
            starts.setdefault(first, set()).add(number)
            for at in range(first, last + 1):
                belongs.setdefault(at, set()).add(number)
    out = ""
    for at, row in enumerate(rows, 1):
        state = f' data-lines="{in_order(belongs[at])}"' if at in belongs else ""
        badge = f"<b>{in_order(starts.get(at, set()))}</b><i>{at}</i>"
        out += f'<span class="bx-code" id="L{at}"{state}>{badge}{row}\n</span>'
    return f"<pre>{out}</pre>"


def in_order(found: set[int]) -> str:
    return " ".join(map(str, sorted(found)))
