"""Links of pages lead somewhere, and the version is one."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("*.md", "docs/**/*.md", "*/*.md", "notebooks/course/**/*.md", "notebooks/[0-9]*.py")
PAGES = sorted({path for pattern in FOLDERS for path in ROOT.glob(pattern)})


def text_of(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def written(path: Path) -> str:
    """A page's text without its code; of a notebook's source the comments, where its texts are."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        text = "\n".join(re.findall(r"^# (.*)$", text, flags=re.M))
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


@cache
def anchors(path: Path) -> frozenset[str]:
    """The places that a page's headings make, as GitHub and the site name them."""
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles]
    return frozenset(re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in plain)


def test_links_of_a_page_lead_somewhere() -> None:
    """To a file or a folder that is there, and to a heading that it has."""
    broken, seen = [], 0
    for path in PAGES:
        for target in re.findall(r"\]\(<?(?![a-z]+:)([^)\s>]+)>?\)", written(path)):
            name, _, anchor = target.partition("#")
            start = ROOT if name.startswith("/") else path.parent
            file = (start / name.lstrip("/")).resolve() if name else path
            lost = anchor and file.suffix == ".md" and anchor not in anchors(file)
            broken += [f"{path.name}: {target}"] if lost or not file.exists() else []
            seen += 1
    assert broken == [] and seen > 500


def test_the_version_is_the_same_everywhere() -> None:
    (version,) = re.findall(r'^version = "(.+)"$', text_of("pyproject.toml"), re.M)
    assert f"\nversion: {version}\n" in text_of("CITATION.cff")
