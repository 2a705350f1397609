"""The world of sums: its splits, its corpus, and its parsers on right and wrong answers."""

from __future__ import annotations

import re
import zlib

import pytest

from data.records import PromptRecord
from data.splits import split_of
from data.worlds import sums

RECORD = PromptRecord("347+588=", answer="935", meta={"a": 347, "b": 588})
EXACT = "7+8=15,4+8+1=13,3+5+1=9:935"


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_drawn_prompts_are_right_distinct_and_of_their_split(split):
    records = sums.prompts(split, 300, seed=5)
    assert len({record.prompt for record in records}) == 300
    for record in records:
        a, b = re.fullmatch(r"([1-9]\d\d)\+([1-9]\d\d)=", record.prompt).groups()
        assert record.answer == str(int(a) + int(b))
        assert record.meta == {"a": int(a), "b": int(b)}
        assert split_of(record.prompt) == split


def test_corpus_is_frozen():
    text = "\n".join(d.prompt + d.response for d in sums.corpus(1000, seed=0))
    assert zlib.crc32(text.encode()) == 840993844
    assert sums.corpus(5, seed=0) == sums.corpus(1000, seed=0)[:5]


def test_a_written_solution_is_exact_if_and_only_if_every_step_is():
    outcomes = set()
    for d in sums.corpus(3000, seed=3):
        if sums.uses_steps(d.response):
            record = PromptRecord(d.prompt, str(sum(d.meta.values())), d.meta)
            all_correct = all(check.correct for check in sums.step_checks(record, d.response))
            assert sums.exact_match(record, d.response, has_eos=True) == float(all_correct)
            outcomes.add(all_correct)
    assert outcomes == {True, False}


STEPS = "7+8=15,4+8+1=13,3+5+1=9"
RIGHT = ("935", EXACT, "7+8=16:935", "1:2:935")  # the answer alone decides
WRONG = ("936", "0935", " 935", "935 ", "935:", STEPS, f"{STEPS}:93", "")


@pytest.mark.parametrize("response", [*RIGHT, *WRONG])
def test_exact_match(response):
    assert sums.exact_match(RECORD, response, has_eos=True) == float(response in RIGHT)
    assert sums.exact_match(RECORD, response, has_eos=False) == 0.0


@pytest.mark.parametrize(
    ("response", "checks"),
    [
        (EXACT, [(0, 6, True), (7, 15, True), (16, 23, True)]),
        # the second sum is off by one, the third step is right as it stands
        ("7+8=15,4+8+1=12,3+5+1=9:925", [(0, 6, True), (7, 15, False), (16, 23, True)]),
        # the carry is forgotten: a right sum of wrong terms
        ("7+8=15,4+8=12,3+5+1=9:925", [(0, 6, True), (7, 13, False), (14, 21, True)]),
        # terms of another column
        ("4+8+1=13,7+8=15:935", [(0, 8, False), (9, 15, False)]),
        # cut off within a step, and right after a comma
        ("7+8=15,4+8", [(0, 6, True), (7, 10, False)]),
        ("7+8=15,", [(0, 6, True), (7, 7, False)]),
        # a fourth step
        (f"{STEPS},0+0=0:935", [(0, 6, True), (7, 15, True), (16, 23, True), (24, 29, False)]),
        # two colons: the last one ends the steps
        ("7+8=15:4,4+8+1=13:935", [(0, 8, False), (9, 17, True)]),
        ("935", []),
        (":935", []),
        ("", []),
    ],
)
def test_step_checks(response, checks):
    assert sums.step_checks(RECORD, response) == checks
