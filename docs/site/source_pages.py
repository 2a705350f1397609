"""Every text file of the repository as a page with numbered, linkable lines.

A page holds the text and nothing else; static/code.js makes lines with addresses of it and colours them.
"""

from __future__ import annotations

import ast
import html
from pathlib import Path, PurePosixPath

import files
from files import ROOT


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
    text = (ROOT / name).read_text("utf-8", errors="replace").rstrip("\n")
    places = " ".join(f"{line} {title}" for line, title in definitions(name, text).items())
    kind, lines = Path(name).suffix.removeprefix("."), text.count("\n") + 1
    return (
        f'<div class="highlight src" data-kind="{kind}" data-lines="{lines}" data-names="{places}">'
        f"<pre>\n{html.escape(text, quote=False)}</pre></div>"
    )


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
    for at, part in enumerate(("files", *parts)):
        up = depth - at if is_folder else depth - at - 1
        last = at == depth
        target = "../" * max(up, 0) + "index.html"
        links.append(html.escape(part) if last else f'<a href="{target}">{html.escape(part)}</a>')
    return " / ".join(links)


TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} - Glassbox RLHF</title>
<link rel="stylesheet" href="{up}_static/pygments.css">
<link rel="stylesheet" href="{up}_static/site.css">
<script>document.documentElement.className = "plain";
addEventListener("DOMContentLoaded", () => {{
  document.body.dataset.theme = localStorage.getItem("theme") || "auto"; }});</script>
<script defer src="{up}_static/code.js"></script>
</head><body class="plain" data-theme="auto">
<nav><a href="{up}index.html">Glassbox RLHF</a> / {trail}</nav>
<main><h1>{title}</h1>{body}</main></body></html>
"""


def write_page(html_folder: Path, page: str, title: str, path_above: str, body: str) -> None:
    target = html_folder / f"{page}.html"
    target.parent.mkdir(parents=True, exist_ok=True)
    up = "../" * page.count("/")
    values = {"title": html.escape(title), "up": up, "trail": path_above, "body": body}
    target.write_text(TEMPLATE.format(**values), encoding="utf-8")


def write_pages(html_folder: Path) -> None:
    """All files and folders, beside Sphinx's pages and without their table of contents.

    They stay out of the search, which would drown in them.
    """
    for name in files.sources():
        write_page(html_folder, f"code/{name}", name, trail(name), file_page(name))
    for folder in sorted(files.folders()):
        title = "The repository" if folder == "." else folder
        page = "code/index" if folder == "." else f"code/{folder}/index"
        write_page(html_folder, page, title, trail(folder), folder_page(folder))
