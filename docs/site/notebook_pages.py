"""Committed notebooks as Markdown pages: texts, code, and the outputs as they were stored."""

from __future__ import annotations

import base64
import html
import json
import posixpath
import re
from functools import cache
from pathlib import Path
from typing import Any

import files

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def fence(language: str, text: str, mark: str = "`") -> str:
    """A fenced block that its own content cannot end."""
    longest = max((len(run) for run in re.findall(rf"{mark}{{3,}}", text)), default=2)
    marks = mark * (longest + 1)
    return f"{marks}{language}\n{text.rstrip(chr(10))}\n{marks}\n"


def raw(content: str, name: str = "nb-output") -> str:
    return fence("{raw} html", f'<div class="{name}">\n{content}\n</div>')


def between(begin: str, markdown: str, end: str) -> str:
    """Markdown inside tags of HTML, which become blocks of their own."""
    html_block = "{raw} html"
    return f"{fence(html_block, begin)}\n{markdown.strip()}\n\n{fence(html_block, end)}"


def joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)


def to_pages(content: str) -> str:
    """Links of an output to files of the repository lead to the pages that show them."""

    def page(match: re.Match[str]) -> str:
        found = files.page_of(posixpath.normpath(posixpath.join("notebooks", match[1])))
        return f'href="../{found}.html"' if found else match[0]

    return re.sub(r'href="([\w./-]+)"', page, content)


def output_text(output: dict[str, Any], pictures: Path, stem: str, number: str) -> str:
    """One output as Markdown; a picture becomes a file in `pictures`."""
    if output["output_type"] == "stream":
        text = ANSI.sub("", joined(output["text"]))
        columns = re.search(r"\S {2,}\S", text)  # a table keeps its lines, sentences may be wrapped
        return raw(f"<pre>{html.escape(text)}</pre>", "nb-text" if columns else "nb-text nb-words")
    data = output.get("data", {})
    if "text/html" in data:
        return raw(to_pages(joined(data["text/html"])))
    if "image/svg+xml" in data:
        return raw(joined(data["image/svg+xml"]))
    if "image/png" in data:
        pictures.mkdir(parents=True, exist_ok=True)
        file = pictures / f"{stem}-{number}.png"
        file.write_bytes(base64.b64decode(joined(data["image/png"])))
        words = joined(data.get("text/plain", "")).strip("<>")
        alt = "plot" if "Figure" in words or not words else words
        image = f"```{{image}} pictures/{file.name}\n:alt: {alt}\n:class: nb-picture\n```\n"
        return between('<div class="nb-scroll">', image, "</div>")
    if "text/markdown" in data:
        return joined(data["text/markdown"])
    return raw(f"<pre>{html.escape(joined(data.get('text/plain', '')))}</pre>", "nb-text")


def attachments(cell: dict[str, Any], pictures: Path, stem: str, number: int) -> str:
    """The text of a cell, with the pictures that it carries in itself written beside the page."""
    text = joined(cell["source"])
    for name, kinds in cell.get("attachments", {}).items():
        pictures.mkdir(parents=True, exist_ok=True)
        file = pictures / f"{stem}-{number}-{name}"
        file.write_bytes(base64.b64decode(joined(next(iter(kinds.values())))))
        text = text.replace(f"attachment:{name}", f"pictures/{file.name}")
    return text


def fold(summary: str, markdown: str) -> str:
    """Markdown that a reader opens."""
    begin = f'<details class="fold"><summary>{summary}</summary>'
    return between(begin, markdown, "</details>")


def folded(text: str) -> str:
    """`<details>` with its Markdown as Markdown: the tags become blocks of HTML of their own."""

    def block(match: re.Match[str]) -> str:
        return f"\n{fold(match[1].strip(), match[2])}\n"

    pattern = r"<details>\s*<summary>(.+?)</summary>\n(.*?)</details>"
    return re.sub(pattern, block, text, flags=re.DOTALL)


@cache
def title_of(notebook: Path) -> str:
    """The page's first heading."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    texts = (joined(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return next(match[1] for text in texts if (match := re.search(r"^# (.+)$", text, re.M)))


def one_title(texts: list[str]) -> list[str]:
    """A page has one title; where its parts have titles too, all that follows goes one deeper."""
    titles = [re.findall(r"^# ", text, re.M) for text in texts]
    if sum(map(len, titles)) < 2:
        return texts
    first = next(at for at, found in enumerate(titles) if found)
    deeper = [re.sub(r"^(#+ )", r"#\1", text, flags=re.M) for text in texts]
    return [*texts[: first + 1], *deeper[first + 1 :]]


def is_setup(cell: dict[str, Any]) -> bool:
    """Whether a cell holds imports and settings, and shows nothing."""
    return joined(cell["source"]).startswith(("import ", "from ")) and not cell.get("outputs")


def markdown_of(notebook: Path, pictures: Path) -> str:
    """The page of one .ipynb; pictures are written into the folder `pictures`."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    texts = [
        folded(attachments(cell, pictures, notebook.stem, number))
        for number, cell in enumerate(cells)
        if cell["cell_type"] == "markdown"
    ]
    prose, parts, first = iter(one_title(texts)), [], True
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "markdown":
            parts.append(next(prose) + "\n")
            continue
        if joined(cell["source"]).strip():
            code, first = fence("python", joined(cell["source"])), first and is_setup(cell)
            parts.append(fold("Imports and settings", code) if first else code)
        for order, output in enumerate(cell.get("outputs", [])):
            parts.append(output_text(output, pictures, notebook.stem, f"{number:02d}-{order}"))
    return "\n".join(parts)
