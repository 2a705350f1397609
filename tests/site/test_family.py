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


def test_a_pair_says_what_the_difference_does_and_what_the_study_measured(tmp_path: Path) -> None:
    known, other, unmeasured = ("grpo", "dr_grpo"), ("rloo", "minillm"), ("reinforce", "ppo")
    assert family.sentence(known) == family.neighbours()[known]
    assert family.sentence(other) == "RLOO: " + family.papers()["rloo"] + ". MiniLLM: " + (
        family.papers()["minillm"] + "."
    )
    study = (ROOT / "docs" / "study.md").read_text("utf-8")
    said = family.in_the_study(known)
    for name in known:
        row = re.search(rf"^\| {name} \| ([^|]+) \|", study, re.MULTILINE)
        assert row and f"<b>{name}</b> gold reward {row[1]}" in said
    assert "study.html#reviews" in said and "No table" in family.in_the_study(unmeasured)
