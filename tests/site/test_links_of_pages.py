"""Links of pages lead somewhere, on the built site too; what pages name exists."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "site"))

import make_site

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


def test_a_link_of_the_site_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = (
        '<a href="#no">1</a><a href="b.html">2</a><img src="https://x/y"><a href="https://x">ok</a>'
    )
    (tmp_path / "a.html").write_text(page + '<a href="a.html#yes" id="yes">ok</a>')
    assert len(make_site.broken_links(tmp_path)) == 3


def test_what_the_faq_names_exists() -> None:
    """The doctor's rules, metrics, and flags."""
    metrics, faq = (text_of(f"docs/{name}.md") for name in ("metrics", "faq"))
    rows = re.findall(r"^\| (`[^|]+) \|", metrics, flags=re.MULTILINE)
    known = {key for row in rows for key in re.findall(r"`([^`]+)`", row)}
    known |= set(re.findall(r"^def (\w+)", text_of("harness/report/rules.py"), re.MULTILINE))
    sentences = re.findall(r"the doctor's rules? ([^(;,.]*(?:,[^(;.]*)?)", faq)
    assert {name for said in sentences for name in re.findall(r"`(\w+)`", said)} <= known
    code = [*ROOT.glob("*/*.py"), *ROOT.glob("rl/training/*.py")]
    fields = {
        f"--{name.replace('_', '-')}"
        for path in code
        for name in re.findall(r"^    (\w+): ", path.read_text("utf-8"), flags=re.MULTILINE)
    }
    assert set(re.findall(r"`?(--[a-z][\w-]*)", faq)) <= fields


def test_the_pythons_that_are_named_are_those_that_ci_tests() -> None:
    """3.10 and its like; an arXiv number has five digits. The badge names some of them."""
    ends = re.search(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', text_of("pyproject.toml"))
    assert ends
    supported = [f"3.{minor}" for minor in range(int(ends[1]), int(ends[2]))]
    named = re.findall(r"\b3\.1\d\b(?!\.)", text_of(".github/workflows/ci.yml"))
    assert sorted(named) == supported
    badge = re.findall(r"\b3\.1\d\b", text_of("docs/badges/python.svg"))
    assert badge and set(badge) <= set(supported)
    assert f"Python {supported[0]} to {supported[-1]}" in text_of("README.md")


def test_the_version_is_the_same_everywhere() -> None:
    (version,) = re.findall(r'^version = "(.+)"$', text_of("pyproject.toml"), re.M)
    assert f"\nversion: {version}\n" in text_of("CITATION.cff")
