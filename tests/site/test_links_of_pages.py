"""Links of the Markdown pages and of the course lead somewhere; what the FAQ names exists."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("*.md", "docs/**/*.md", "*/*.md", "notebooks/course/**/*.md", "notebooks/[0-9]*.py")
PAGES = sorted({path for pattern in FOLDERS for path in ROOT.glob(pattern)})


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


def test_what_the_faq_names_exists() -> None:
    """The doctor's rules, metrics, and flags."""
    metrics, rules, faq = (
        (ROOT / "docs" / f"{name}.md").read_text("utf-8") for name in ("metrics", "doctor", "faq")
    )
    rows = re.findall(r"^\| (`[^|]+) \|", metrics + rules, flags=re.MULTILINE)
    known = {key for row in rows for key in re.findall(r"`([^`]+)`", row)}
    sentences = re.findall(r"the doctor's rules? ([^(;,.]*(?:,[^(;.]*)?)", faq)
    assert {name for said in sentences for name in re.findall(r"`(\w+)`", said)} <= known
    code = [*ROOT.glob("*/*.py"), *ROOT.glob("rl/training/*.py")]
    fields = {
        f"--{name.replace('_', '-')}"
        for path in code
        for name in re.findall(r"^    (\w+): ", path.read_text("utf-8"), flags=re.MULTILINE)
    }
    assert set(re.findall(r"`?(--[a-z][\w-]*)", faq)) <= fields
