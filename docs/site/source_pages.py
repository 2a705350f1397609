"""Every text file of the repository as a page with numbered, linkable lines."""

from __future__ import annotations

import ast
import html
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import files
from files import ROOT
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound


def definitions(name: str, text: str) -> dict[int, str]:
    """Line -> name of what begins there: functions, classes and methods (`Class.method`)."""
    if not name.endswith(".py"):
        return {}
    found: dict[int, str] = {}
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.lineno] = node.name
        for child in getattr(node, "body", []):
            if isinstance(node, ast.ClassDef) and isinstance(child, ast.FunctionDef):
                found[child.lineno] = f"{node.name}.{child.name}"
    return found


def file_page(name: str) -> str:
    text = (ROOT / name).read_text("utf-8", errors="replace")
    try:
        lexer = get_lexer_for_filename(name, stripnl=False)
    except ClassNotFound:
        lexer = TextLexer(stripnl=False)
    rows = highlight(text, lexer, HtmlFormatter(nowrap=True)).rstrip("\n").split("\n")
    names, out = definitions(name, text), []
    for number, row in enumerate(rows, 1):
        anchor = f'<a id="{names[number]}"></a>' if number in names else ""
        out.append(
            f'<span class="src-line" id="L{number}">{anchor}<a class="src-at" href="#L{number}">'
            f"{number}</a>{row}</span>"
        )
    return f'<div class="highlight src"><pre>{"".join(out)}</pre></div>'


def entries(folder: str) -> list[tuple[str, str]]:
    """What lies in a folder: (name, page relative to the folder's own page)."""
    base = PurePosixPath(folder)
    inside = [n for n in files.sources() if folder == "." or n.startswith(f"{folder}/")]
    parts = [PurePosixPath(n).relative_to(base).parts for n in inside]
    folders = sorted({p[0] for p in parts if len(p) > 1})
    single = sorted(p[0] for p in parts if len(p) == 1)
    return [(f"{n}/", f"{n}/index.html") for n in folders] + [(n, f"{n}.html") for n in single]


def folder_page(folder: str) -> str:
    rows = "".join(f'<li><a href="{link}">{html.escape(n)}</a></li>' for n, link in entries(folder))
    return f'<ul class="src-folder">{rows}</ul>'


def trail(name: str) -> str:
    """The path above a page, each folder a link."""
    parts = Path(name).parts if name != "." else ()
    links, depth = [], len(parts)
    is_folder = name in files.folders()
    for at, part in enumerate(("repository", *parts)):
        up = depth - at if is_folder else depth - at - 1
        last = at == depth
        target = "../" * max(up, 0) + "index.html"
        links.append(html.escape(part) if last else f'<a href="{target}">{html.escape(part)}</a>')
    return " / ".join(links)


def pages() -> Iterator[tuple[str, dict[str, Any], str]]:
    """(page, what the theme's template gets, template) of all files and folders."""
    for name in files.sources():
        body = f"<h1>{html.escape(name)}</h1><p>{trail(name)}</p>{file_page(name)}"
        yield f"code/{name}", {"title": name, "body": body}, "page.html"
    for folder in sorted(files.folders()):
        title = "The repository" if folder == "." else folder
        page = "code/index" if folder == "." else f"code/{folder}/index"
        body = f"<h1>{html.escape(title)}</h1><p>{trail(folder)}</p>{folder_page(folder)}"
        yield page, {"title": title, "body": body}, "page.html"
