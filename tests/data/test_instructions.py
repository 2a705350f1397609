"""data/worlds/instructions.py: the rules by hand-written answers, and what is kept apart."""

from __future__ import annotations

import re

import pytest

from data.worlds.instructions import (
    CONSTRAINTS,
    HELD_OUT,
    SPLITS,
    TOPICS,
    kept,
    names,
    prompts,
    read_prompt,
)

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


def test_another_topic_is_not_named() -> None:
    assert names("bees", "A bee's wing.") and names("tomatoes", "One tomato.")
    assert (
        names("libraries", "A Library") and names("bread", "two breads") and names("foxes", "a fox")
    )
    assert not names("bees", "To be or not to be.") and not names("bread", "breadth")
    assert not any(names(topic, topic[:-1]) for topic in TOPICS if re.search("[isu]s$", topic))
    assert all(names(topic, f"about {topic}, yes") for topic in TOPICS)


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
