"""What the front page says of the project is true: Pythons, licence, version, pages."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def versions(shown: str) -> list[str]:
    """3.10 and its like, in order; an arXiv number has five digits."""
    return re.findall(r"\b3\.1\d\b(?!\.)", shown)


def supported() -> list[str]:
    """The Pythons between the two ends of `requires-python`."""
    ends = re.search(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', text("pyproject.toml"))
    assert ends
    return [f"3.{minor}" for minor in range(int(ends[1]), int(ends[2]))]


def test_the_pythons_that_are_named_are_those_that_ci_tests() -> None:
    """The badge and the guide name those on which somebody has run the tests."""
    assert sorted(versions(text(".github/workflows/ci.yml"))) == supported()
    badge = text("docs/badges/python.svg")
    (sentence,) = re.findall(
        r"^All tests were run on Python (.+?) on Linux", text("docs/guide.md"), re.M
    )
    assert set(versions(sentence)) <= set(supported())
    shown = [versions(line) for line in badge.splitlines() if versions(line)]
    assert shown == [versions(sentence)] * 3
    ends = f"Python {supported()[0]} to {supported()[-1]}"
    assert all(ends in text(name) for name in ("README.md", "docs/guide.md", "Makefile"))


def test_the_version_is_the_same_everywhere() -> None:
    (version,) = re.findall(r'^version = "(.+)"$', text("pyproject.toml"), re.M)
    assert f"\nversion: {version}\n" in text("CITATION.cff")
    assert re.search(
        rf"^## {re.escape(version)}(, \d{{4}}-\d\d-\d\d)?$", text("CHANGELOG.md"), re.M
    )


def test_the_front_page_is_short_and_leads_to_every_engine() -> None:
    page = text("README.md")
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert len(page.splitlines()) <= 150 and len(links) <= 60
    engines = {f"rl/{path.name}" for path in (ROOT / "rl").glob("*_engine.py")}
    assert {*engines, "nano/rlhf.py", "notebooks/00_start_here.ipynb"} <= set(links)
