"""What the front page says of the project is true: Pythons and version."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def test_the_pythons_that_are_named_are_those_that_ci_tests() -> None:
    """3.10 and its like; an arXiv number has five digits. The badge names some of them."""
    ends = re.search(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', text("pyproject.toml"))
    assert ends
    supported = [f"3.{minor}" for minor in range(int(ends[1]), int(ends[2]))]
    named = re.findall(r"\b3\.1\d\b(?!\.)", text(".github/workflows/ci.yml"))
    assert sorted(named) == supported
    badge = re.findall(r"\b3\.1\d\b", text("docs/badges/python.svg"))
    assert badge and set(badge) <= set(supported)
    for name in ("README.md", "docs/guide.md", "Makefile"):
        assert f"Python {supported[0]} to {supported[-1]}" in text(name)


def test_the_version_is_the_same_everywhere() -> None:
    (version,) = re.findall(r'^version = "(.+)"$', text("pyproject.toml"), re.M)
    assert f"\nversion: {version}\n" in text("CITATION.cff")
    assert re.search(rf"^## {re.escape(version)}\b", text("CHANGELOG.md"), re.M)
