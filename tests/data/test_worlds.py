"""The worlds: splits, corpora, and what an answer is worth, by hand."""

from __future__ import annotations

import re
import zlib
from itertools import combinations

import pytest

from data.records import PromptRecord, split_of
from data.worlds import reviews, sums
from data.worlds.instructions import (
    CONSTRAINTS,
    HELD_OUT,
    SPLITS,
    TOPICS,
    kept,
    prompts,
    read_prompt,
)

KETTLE = PromptRecord(
    "Review the red kettle for Anna.\n", meta={"name": "Anna", "adjective": "red", "item": "kettle"}
)


def combination(record):
    return record.meta["name"], record.meta["adjective"], record.meta["item"]


def test_split_of_is_crc32_in_hundredths():
    keys = ("k185", "k76", "k366", "k129")
    assert [zlib.crc32(key.encode()) % 100 for key in keys] == [9, 10, 19, 20]
    assert [split_of(key) for key in keys] == ["test", "validation", "validation", "train"]


def test_splits_share_no_combination_and_cover_everything():
    seen = {s: reviews.prompts(s) for s in ("train", "validation", "test", "held_out")}
    sets = {name: {combination(r) for r in records} for name, records in seen.items()}
    for one, other in combinations(sets.values(), 2):
        assert one.isdisjoint(other)
    sizes = {"train": 12165, "validation": 1545, "test": 1690, "held_out": 325}
    assert {name: len(records) for name, records in seen.items()} == sizes
    assert sum(len(seen[s]) for s in ("train", "validation", "test")) == 20 * 11 * 14 * 5
    assert all(len(records) == 5 * len(sets[name]) for name, records in seen.items())


def test_corpus_is_frozen():
    """A change of grammar, lists or draws changes every number that was ever reported."""
    text = "\n".join(d.prompt + d.response for d in reviews.corpus(1000, seed=0))
    assert zlib.crc32(text.encode()) == 712688515
    assert reviews.corpus(5, seed=0) == reviews.corpus(1000, seed=0)[:5]
    assert reviews.corpus(5, seed=0) != reviews.corpus(5, seed=1)


# gold reward: (.3 sent + .3 topic + .25 polite + .15 form) * (.3 + .7 qual), by hand
# sent of (positive, negative) words: (1,0) .58/.66, (2,0) 1, (0,1) .08/.66, (1,1) .5, (0,0) .5
SIX_SENTENCES = (
    "The kettle is great. The price is nice. The color is neat. The size is solid. "
    "The weight is superb. The shape is lovely."
)


@pytest.mark.parametrize(
    ("response", "gold"),
    [
        # all parts full: .3 + .3 + .25 + .15
        ("Hi Anna! The kettle is great. Its price is nice. I hope this helps.", 1.0),
        # .3 * .878788 + .3 + .15
        ("The kettle is great.", 0.713636),
        ("Hi Ben! The kettle is great.", 0.713636),  # the wrong name
        ("The kettle is great. Hi Anna!", 0.713636),  # a greeting that is not first
        ("I hope this helps. The kettle is great.", 0.713636),  # a closing that is not last
        ("Who cares? Hi Anna! The kettle is great. I hope this helps.", 0.713636),  # .5 - .5
        ("Hi Anna! The kettle is great. I hope this helps. Leave me alone.", 0.713636),
        ("Who cares? The kettle is great. Leave me alone.", 0.713636),  # floor 0, not -1
        # .263636 + .3 + .125 + .15
        ("Hello Anna. The kettle is great.", 0.838636),
        ("Hi Anna,\nthe kettle is great.", 0.838636),
        ("The kettle is great. Thank you for asking.", 0.838636),
        # the same, a sentence repeated: * (.3 + .7 * .75)
        ("The kettle is great. I hope this helps. I hope this helps.", 0.691875),
        # .036364 + .3 + .25 + .15
        ("Hi Anna, the kettle is awful. Thank you for asking.", 0.736364),
        # .15 + .3 + .15: a neutral word judges, and is worth .5
        ("The kettle is okay.", 0.6),
        # sent 1, one sentence and one opinion word repeated: .75 * (.3 + .7 * .5)
        ("The kettle is great. The kettle is great.", 0.4875),
        # two items: sent .5, topic .5
        ("The kettle is great. The lamp is awful.", 0.45),
        ("The lamp is great.", 0.413636),  # the wrong item: .263636 + .15
        # cut off: .263636 + .3 + .125
        ("Hi Anna! The kettle is great. Its price", 0.688636),
        # a closing with something behind it: .263636 + .3 + 0 + 0
        ("The kettle is great. I hope this helps. Thank", 0.563636),
        (SIX_SENTENCES, 0.225),  # each with a positive word: qual 0, .75 * .3
        # nothing judged: neither sentiment nor topic
        ("", 0.0),
        ("Hi Anna!", 0.275),
        ("Hi Anna! I hope this helps.", 0.4),
        ("The kettle is.", 0.15),
        ("The ket tle is gre at.", 0.15),  # broken words
        ("Review the red kettle for Anna.", 0.15),  # the prompt
        ("Review the red kettle for Anna.\n", 0.0),  # ends on a newline: no form either
    ],
)
def test_gold_by_hand(response, gold):
    assert reviews.gold_reward(KETTLE, response) == pytest.approx(gold, abs=1e-6)


def test_gold_parts_by_hand():
    response = (
        "Hi Anna! The kettle is great. The lamp is nice. It is bad. It is bad. Leave me alone."
    )
    parts = reviews.gold_parts(KETTLE, response)
    assert parts.sent == pytest.approx(0.5)  # 2 positive, 2 negative
    assert parts.topic == 0.5
    assert parts.polite == 0.0
    assert parts.form == 1.0
    assert parts.qual == pytest.approx(0.25)  # "it is bad", "bad", and a sixth sentence
    assert parts.reward == pytest.approx((0.15 + 0.15 + 0.15) * 0.475)


def test_what_an_annotator_prefers_by_hand():
    assert reviews.prefers(0.5, 0.5) == 0.5
    assert reviews.prefers(0.62, 0.5) == pytest.approx(0.7310586)  # sigmoid(1)
    assert reviews.prefers(0.5, 0.62) == pytest.approx(0.2689414)
    assert reviews.prefers(1.0, 0.0) == pytest.approx(0.9997597)  # sigmoid(1 / .12)


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


def test_the_corpus_of_sums_is_frozen():
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


REQUESTS = {name: rule.prompt.format(topic="bread") for name, rule in CONSTRAINTS.items()}
CASES = {
    "twelve words": (
        ["Bread is made of flour, water and salt.", "A b c d e f g h i j k bread."],
        ["a " * 12 + "bread", "Bread.", "It is a food of flour."],
    ),
    "question": (
        ["How do you bake bread at home?", "Bread is old. What was it made of?", "What is bread made of？"],
        ["How? And why bread of all?", "What is it made of?", "What is bread? Nobody knew."],
    ),
    "without the": (
        ["A baker sells bread every morning.", "Bread and other things rise."],
        ["The baker sells bread.", "Bread is THE food.", "Every baker in the town sells bread."],
    ),
    "no comma": (
        ["Bread smells best when it is warm."],
        ["Bread, warm from an oven, smells best.", "Warm bread， smells best."],
    ),
    "when": (
        ["When bread is warm it smells best.", '"When bread rises, wait."'],
        ["Whenever bread is warm it smells.", "Bread smells best when it is warm."],
    ),
    "child": (
        ["A child shares its bread with a bird.", "The child's bread is gone."],
        ["The children share their bread.", "A kid shares its bread."],
    ),
    "because": (
        ["Bread is eaten because it is cheap."],
        ["Bread is cheap, so it is eaten."],
    ),
    "number": (
        ["The baker sold 12 loaves of bread."],
        ["The baker sold twelve loaves of bread."],
    ),
}  # fmt: skip


def worth(request: str, answer: str, ended: bool = True) -> float:
    record = read_prompt(request)
    assert record is not None
    return kept(record, answer, ended)


@pytest.mark.parametrize("rule", CONSTRAINTS)
def test_a_rule_says_what_it_means(rule: str) -> None:
    right, wrong = CASES[rule]
    for answer in right:
        assert worth(REQUESTS[rule], answer) == 1.0, answer
        assert worth(REQUESTS[rule], f" {answer}\n") == 1.0
        assert worth(REQUESTS[rule], answer, ended=False) == 0.0
    for answer in [*wrong, "", " ", "bread", "Bread bread when?"]:
        assert worth(REQUESTS[rule], answer) == 0.0, answer


def test_topics_and_constraints_are_kept_apart() -> None:
    topics = {split: {r.meta["topic"] for r in prompts(split)} for split in SPLITS}
    assert sum(map(len, topics.values())) == len(set(TOPICS)) == len(TOPICS) >= 200
    assert set().union(*topics.values()) == set(TOPICS)
    rules = {split: {r.meta["rule"] for r in prompts(split)} for split in SPLITS}
    assert rules["train"] == rules["validation"] == set(CONSTRAINTS) - set(HELD_OUT)
    assert rules["test"] == set(CONSTRAINTS)
    assert prompts("test") == prompts("test")


def test_what_is_typed_becomes_a_prompt_of_the_chat() -> None:
    record = read_prompt("Ask one question about bread.")
    assert record is not None
    assert (record.meta["topic"], record.meta["rule"]) == ("bread", "question")
    free = read_prompt("Who are you?")
    assert free is not None and not free.meta and "Who are you?" in free.prompt
