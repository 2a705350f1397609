"""The family as differences: every pair is reached, and a page holds both files whole."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "site"))

import family
from conftest import require_package
from files import ROOT

require_package("latex2mathml", "make docs")

import staging  # noqa: E402

FILES = sorted(path.stem for path in (ROOT / "nano").glob("*.py"))
PAPERS = [name for name in FILES if name not in ("__init__", "gpt", "rlhf")]


class BothSides(HTMLParser):
    """The two files that a diff was made of, by its tags."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.inside: list[str] = []
        self.left = self.right = ""

    def handle_starttag(self, tag: str, attributes: object) -> None:
        self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.inside.pop() == tag

    def handle_data(self, data: str) -> None:
        if "summary" not in self.inside:
            self.left += data * ("ins" not in self.inside)
            self.right += data * ("del" not in self.inside)


def test_each_paper_has_a_place_in_the_order() -> None:
    assert sorted(family.papers()) == sorted(PAPERS)
    assert set(family.neighbours()) <= set(family.pairs())


def test_a_diff_holds_both_files() -> None:
    for pair in family.pairs():
        both = BothSides()
        both.feed(family.diff(pair))
        for name, text in zip(pair, (both.left, both.right), strict=True):
            assert text == (ROOT / "nano" / f"{name}.py").read_text("utf-8"), pair


def test_the_matrix_leads_to_every_pair(tmp_path: Path) -> None:
    (page,) = family.pages().values()
    assert f"\n/{family.PAGE}\n" in staging.contents(list(family.pages()))
    family.write_pages(tmp_path)
    written = list((tmp_path / family.PAGE).glob("*.html"))
    linked = re.findall(r'href="(family/[\w-]+\.html)"', page)
    assert {tmp_path / "beside" / link for link in linked} == set(written)
    assert len(linked) == 2 * len(written) == len(PAPERS) * (len(PAPERS) - 1)
    assert sum(path.stat().st_size for path in written) < 1_500_000
