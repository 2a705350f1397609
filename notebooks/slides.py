"""One deck of slides from the pages: each page's question, formulas, figures and what to remember.

    python notebooks/slides.py --out slides            all pages
    python notebooks/slides.py 07 08 --out slides      some

It writes OUT/slides.md, which Marp turns into HTML, PDF or PowerPoint (`npx @marp-team/marp-cli
slides.md --pdf`), and OUT/figures. Everything is read from the stored .ipynb, nothing is run and nothing
copied by hand: build a page again, and its slides follow.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
HEAD = """---
marp: true
math: katex
paginate: true
style: |
  section { font-size: 26px }
  img { display: block; margin: auto; max-height: 430px; max-width: 100% }
---
"""
FORMULA = re.compile(r"\$\$.+?\$\$", re.DOTALL)
KINDS = {"image/png": "png", "image/svg+xml": "svg"}


class SlideError(Exception):
    """A page that is not there."""


def pages(names: Sequence[str]) -> list[Path]:
    """The notebooks whose names begin with one of `names`, in order; all of them without names."""
    every = sorted(FOLDER.glob("[0-9][0-9]_*.ipynb"))
    for name in names:
        if not any(path.name.startswith(name) for path in every):
            raise SlideError(f"no page begins with {name!r}")
    return [path for path in every if not names or path.name.startswith(tuple(names))]


def pictures(cell: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """(ending, content) of each figure below a code cell."""
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        text = {kind: "".join(content) for kind, content in data.items() if kind != "text/plain"}
        drawn = re.search(r"<svg.*</svg>", text.get("text/html", ""), re.DOTALL)
        if "image/png" in text:
            yield "png", base64.b64decode(text["image/png"])
        elif "image/svg+xml" in text or drawn:
            yield "svg", text.get("image/svg+xml", drawn[0] if drawn else "").encode()


def paragraph(text: str, start: str) -> str:
    """The paragraph that begins like this, or nothing."""
    return next((p for p in re.split(r"\n\s*\n", text) if p.startswith(start)), "")


def away(text: str) -> str:
    """Links without their targets, which lead nowhere from a slide."""
    text = re.sub(r"^\[\w+\]: .*$", "", text, flags=re.MULTILINE)
    return re.sub(r"\[([^\]]+)\]\((?!http)[^)]*\)", r"\1", text)


def slides_of(path: Path, figures: Path) -> list[str]:
    """A title slide, one for each formula and figure under its section's heading, and the last words."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    first = "".join(cells[0]["source"])
    title = first.splitlines()[0]
    opening = [paragraph(first, start) for start in ("**The question", "**After this page")]
    slides, section, before, count = ["\n\n".join([title, *filter(None, opening)])], title, "", 0
    for cell in cells:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            for part in re.split(r"^(?=## )", text, flags=re.MULTILINE):
                heading = re.match(r"## (.*)", part)
                if heading:
                    section, before = f"## {heading[1]}", ""
                if section == "## To remember":
                    slides.append(re.split(r"\n(?=Next: )", part)[0].strip())
                    continue
                for formula in FORMULA.finditer(part):
                    lead = re.split(r"\n\s*\n", part[: formula.start()].strip())[-1]
                    lead = "" if lead.startswith(("#", "|", "$$", "<", "```")) else lead
                    slides.append("\n\n".join(filter(None, [section, lead, formula[0]])))
                said = [p for p in re.split(r"\n\s*\n", part) if p.startswith("**Predict")]
                before = said[-1] if said else ""
        for ending, content in pictures(cell):
            count += 1
            name = f"{path.stem}_{count}.{ending}"
            (figures / name).write_bytes(content)
            picture = f"![]({figures.name}/{name})"
            slides.append("\n\n".join(filter(None, [section, before, picture])))
    return [away(slide).strip() for slide in slides]


def deck(paths: Sequence[Path], out: Path) -> Path:
    """Write the slides of all pages into `out`; the file that holds them."""
    figures = out / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    slides = [slide for path in paths for slide in slides_of(path, figures)]
    target = out / "slides.md"
    target.write_text(HEAD + "\n" + "\n\n---\n\n".join(slides) + "\n", encoding="utf-8")
    return target


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="beginnings of page names; default: all")
    parser.add_argument("--out", type=Path, required=True, help="folder of the deck")
    given = parser.parse_args(arguments)
    try:
        print(deck(pages(given.names), given.out))
    except SlideError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
