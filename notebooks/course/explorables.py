"""Pages to play with: docs/explorables in the output of a cell, and in the pages of the site."""

from __future__ import annotations

import html
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "explorables"
SHARED = "common"


def names() -> list[str]:
    """What there is: a file of docs/explorables each."""
    return sorted(path.stem for path in FOLDER.glob("*.js") if path.stem != SHARED)


def html_of(name: str) -> str:
    """An explorable as HTML that needs nothing else. Raises ValueError for a name that there is not."""
    if name not in names():
        raise ValueError(f"there is no explorable {name!r}: use one of {', '.join(names())}")
    style, *scripts = (
        (FOLDER / file).read_text(encoding="utf-8")
        for file in ("style.css", f"{SHARED}.js", f"{name}.js")
    )
    words = "Something to play with, but this viewer runs no scripts: open it in Jupyter or on the site."
    return (
        f'<div class="explorable" data-name="{html.escape(name)}">{words}</div>\n<style>\n{style}</style>\n'
        "<script>\n" + "".join(scripts) + "explorables.mountAll();\n</script>"
    )
