"""Lay out everything that Sphinx reads, in the same tree as the repository, so that links keep."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path

import api_pages
import box_pages
import family
import files
import notebook_pages
from course.explorables import html_of
from files import ROOT
from PIL import Image

# Sidebar: title -> pages in order. What is not named here is found and goes where it belongs.
SECTIONS = {
    "Course": [],
    "Play": ["docs/explorables", "docs/ask_both_models"],
    "Guide": ["docs/guide", "docs/faq", "data/README", "rl/README", "docs/report", "docs/doctor",
              "docs/extending", "docs/ranks", "docs/memory", "docs/lora",
              "docs/gpu"],
    "Code beside the paper": ["beside/index", "beside/family"],
    "Results": ["docs/results", "docs/study", "docs/claims", "docs/imdb", "docs/overoptimisation",
                "docs/benchmarks"],
    "Proofs": ["docs/equations", "docs/engine_contract", "docs/mutation_check",
               "docs/reliability", "docs/conformance"],
    "Look up": ["docs/glossary", "docs/symbols", "docs/cheat_sheet", "docs/metrics", "docs/papers",
                "api/index"],
    "Project": ["CONTRIBUTING", "CHANGELOG"],
    "Folders": [],
}  # fmt: skip
RESULTS = ("result", "study", "benchmark")  # pages so named stand with the results


def contents(pages: list[str]) -> str:
    """The table of contents behind the sidebar."""
    known = {page for listed in SECTIONS.values() for page in listed}
    found = [files.page_of_guide(name) for name in files.guides()]
    rest = [page for page in found if page not in known | {"index"}]
    course = [name.removesuffix(".ipynb") for name in files.notebooks()]
    text = ""
    for title, listed in SECTIONS.items():
        entries = list(listed)
        if title == "Course":
            entries = course + [page for page in rest if page.startswith("notebooks/")]
        elif title == "Results":
            entries += [p for p in rest if is_result(p) and not p.endswith("/README")]
        elif title == "Guide":
            entries += [page for page in rest if not is_elsewhere(page)]
        elif title == "Folders":
            entries = [p for p in rest if p.endswith("/README") and not p.startswith("notebooks/")]
        lines = "\n".join(f"/{page}" for page in entries if page in pages)
        text += f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{lines}\n```\n"
    return text + "\n"


def is_elsewhere(page: str) -> bool:
    """Whether a page that no section names stands with the results, the course or the folders."""
    return is_result(page) or page.startswith("notebooks/") or page.endswith("/README")


def is_result(page: str) -> bool:
    return any(word in page for word in RESULTS)


def shrink(picture: Path) -> None:
    """A plot needs no more than 256 colours: a PNG in a palette, if that is smaller."""
    if picture.suffix != ".png":
        return
    smaller = io.BytesIO()
    colours = Image.open(picture).convert("RGB")
    colours = colours.quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    colours.save(smaller, "png", optimize=True)
    if len(smaller.getvalue()) < picture.stat().st_size:
        picture.write_bytes(smaller.getvalue())


def with_explorables(page: str) -> str:
    """A page with the explorables in the place of the comments that name them."""
    return re.sub(
        r"^<!-- explorable: (\w+) -->$",
        lambda found: notebook_pages.raw(html_of(found[1])),
        page,
        flags=re.M,
    )


def stage(target: Path, only: tuple[str, ...] = ()) -> None:
    """Write all pages but the rendered code into `target`, which is emptied first.

    With `only`, the first page and those whose names begin like one of them.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in files.tracked():
        if name.endswith(files.PICTURES):
            copy = target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy)
            shrink(copy)
    pages = {files.page_of_guide(n): (ROOT / n).read_text("utf-8") for n in files.guides()}
    for name in files.notebooks():
        path = ROOT / name
        pictures = target / Path(name).parent / "pictures"
        page = name.removesuffix(".ipynb")
        title, rest = notebook_pages.markdown_of(path, pictures).split("\n", 1)
        pages[page] = f"{title}\n\n{box_pages.boxes_of(page)}\n{rest}"
    for picture in (target / "notebooks" / "pictures").glob("*.png"):
        shrink(picture)
    pages["docs/explorables"] = with_explorables(pages["docs/explorables"])
    pages |= api_pages.pages() | box_pages.pages() | family.pages()
    if only:
        pages = {n: text for n, text in pages.items() if n.startswith(("index", *only))}
    if any(name.startswith("beside/") for name in pages):
        box_pages.draw_curves(target)
    pages["index"] += contents(list(pages))
    for page, text in pages.items():
        path = target / f"{page}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
