"""The review world: its splits, its corpus, and its gold reward against hand-computed numbers."""

from __future__ import annotations

import zlib
from itertools import combinations

import pytest

from data.records import PromptRecord
from data.splits import split_of
from data.worlds import reviews

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


def test_held_out_items_are_only_in_their_split():
    held = set(reviews.HELD_OUT_ITEMS)
    for split in ("train", "validation", "test", "held_out"):
        items = {record.meta["item"] for record in reviews.prompts(split)}
        assert items == (held if split == "held_out" else set(reviews.ITEMS) - held)


def test_prompts_are_text_of_their_meta_in_a_fixed_mixed_order():
    records = reviews.prompts("test")
    assert records == reviews.prompts("test")
    assert len({record.prompt for record in records}) == len(records)
    assert len({record.meta["item"] for record in records[:100]}) == 20
    for record in records:
        assert record.prompt.endswith((".\n", "?\n")) and record.prompt.count("\n") == 1
        assert all(f" {value}" in f" {record.prompt}" for value in combination(record))


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
        ("Hi Anna and Ben! The kettle is great.", 0.713636),
        ("The kettle is great. Hi Anna!", 0.713636),  # a greeting that is not first
        ("I hope this helps. The kettle is great.", 0.713636),  # a closing that is not last
        ("Who cares? Hi Anna! The kettle is great. I hope this helps.", 0.713636),  # .5 - .5
        ("Hi Anna! The kettle is great. I hope this helps. Leave me alone.", 0.713636),
        ("Who cares? The kettle is great. Leave me alone.", 0.713636),  # floor 0, not -1
        # .263636 + .3 + .125 + .15
        ("Hello Anna. The kettle is great.", 0.838636),
        ("HI ANNA! THE KETTLE IS GREAT.", 0.838636),
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
        ("It is great.", 0.413636),
        # cut off: .263636 + .3 + .125
        ("Hi Anna! The kettle is great. Its price", 0.688636),
        # a closing with something behind it: .263636 + .3 + 0 + 0
        ("The kettle is great. I hope this helps. Thank", 0.563636),
        (SIX_SENTENCES, 0.225),  # each with a positive word: qual 0, .75 * .3
        # nothing judged: neither sentiment nor topic
        ("", 0.0),
        (" \n", 0.0),
        ("Hi Anna!", 0.275),
        ("Hi Anna! I hope this helps.", 0.4),
        ("The kettle is.", 0.15),
        ("The ket tle is gre at.", 0.15),  # broken words
        ("The kettles are greatgreat.", 0.15),
        ("...", 0.15),
        ("Review the red kettle for Anna.", 0.15),  # the prompt
        ("Review the red kettle for Anna. Review the red kettle for Anna.", 0.12375),
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
