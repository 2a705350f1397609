"""A judge beside trivial rules: planted rulers are found by name, judges with a taste are not."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from toys import GLASSBOX

from reward_model.accuracy_report import against_rules, edited_copies, more_pairs
from reward_model.pairs import TokenPair
from reward_model.trivial_rules import RULES, rules_for

PROMPT = "Name two rivers."


@pytest.mark.parametrize(
    ("name", "answer", "expected"),
    [
        ("longer", "Rhine, Nile", 11),
        ("more words of the prompt", "Two rivers: Rhine, NILE", 0.5),
        ("more words of the prompt", "!", 0),
        ("a full stop at the end", "The Rhine. ", 1),
        ("a full stop at the end", "No. 1", 0),
        ("more exclamation marks", "Oh! Yes!", 2),
        ("more question marks", "Which? Two?", 2),
        ("more lines", "\nRhine\nNile\n", 2),
        ("more list items", "Two:\n- Rhine\n 2. Nile\n2.5 km\nwell - no", 2),
    ],
)
def test_a_rule_measures(name, answer, expected):
    (rule,) = [rule for names, rule in RULES.items() if name in names]
    assert rule(PROMPT, answer) == expected


def test_first_words_are_those_of_training_answers():
    rules = rules_for([(PROMPT, "Sure, the Nile", "sure!"), (PROMPT, '"I think', "")])
    found = [rule for names, rule in rules.items() if names[0] == "beginning with 'sure'"]
    assert [found[0](PROMPT, text) for text in ("Sure: 2", "Surely", "I am sure")] == [1, 0, 0]
    assert any("'i'" in name for names in rules for name in names)


# Files of 450 pairs, a score function in the place of a trained judge ------------------------------

WORDS = (
    "river stone light paper garden window table music winter summer bread water letter house road"
).split()


def kind(_, answer):
    return "kind" in answer


def words_to(more, rng):
    """Nothing, or what makes an answer more of it."""
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 12) + 12 * more))


def with_mark(more, rng):
    return words_to(rng.random() < 0.5, rng) + "!" * more


def with_opening(more, rng):
    return "Sure, " * more + words_to(rng.random() < 0.5, rng)


def with_copy(more, rng):
    return words_to(rng.random() < 0.5, rng) + " name two" * more


def file_of(write, right, tasteful, seed):
    """The chosen answer has more of what `write` makes in the share `right`, kind in `tasteful`."""
    rng, pairs = random.Random(seed), []
    for _ in range(450):
        more, better = rng.random() < right, rng.random() < tasteful
        both = [write(more, rng), write(not more, rng)]
        both[not better] += " kind"
        pairs.append((f"Name two {rng.choice(WORDS)}s", *both))
    return pairs


def judged(score, pairs):
    gaps = [float(score(prompt, a)) - float(score(prompt, b)) for prompt, a, b in pairs[350:]]
    return against_rules(torch.tensor(gaps).double(), pairs[:350], pairs[350:])


@pytest.mark.parametrize(
    ("write", "right", "score", "rule"),
    [
        (words_to, 0.05, lambda _, answer: -len(answer), "shorter"),
        (words_to, 0.8, lambda _, answer: len(answer), "longer"),
        (with_mark, 0.9, lambda _, a: a.count("!"), "more exclamation marks"),
        (with_opening, 0.1, lambda _, a: -a.startswith("Sure"), "not beginning with 'sure'"),
        (with_copy, 0.15, lambda _, a: -a.count(" name two"), "fewer words of the prompt"),
    ],
)
def test_a_planted_ruler_is_found_by_name(write, right, score, rule):
    """All pairs have a taste as well, which this judge has not learned."""
    found = judged(score, file_of(write, right, 0.7, seed=1))
    assert found["trivial_rule"]["rule"] == rule
    assert found["followed_rule"]["rule"] == rule


@pytest.mark.parametrize(
    ("write", "right", "tasteful", "length"),
    [
        (words_to, 0.5, 0.9, 0.0),
        (words_to, 0.75, 0.9, 0.0),
        (words_to, 0.15, 0.95, 0.0),
        (words_to, 0.75, 0.65, 0.0),
        (with_mark, 0.8, 0.85, 0.02),  # it likes length as well
    ],
)
def test_a_judge_with_a_taste_is_not_flagged(write, right, tasteful, length):
    pairs = file_of(write, right, tasteful, seed=2)
    assert judged(lambda p, a: kind(p, a) + length * len(a), pairs)["followed_rule"] is None


# By hand -------------------------------------------------------------------------------------------

LONG, SHORT = "aaaaaaaa", "bb"


def test_training_pairs_decide_which_way_a_rule_points():
    """Of three training pairs two prefer the shorter; of the held-out ones none does."""
    train = [(PROMPT, SHORT, LONG)] * 2 + [(PROMPT, LONG, SHORT)]
    found = judged_by([1.0] * 4, train, [(PROMPT, LONG, SHORT)] * 4)["trivial_rule"]
    assert found["rule"] == "shorter" and found["training_accuracy"] == pytest.approx(2 / 3)
    assert found["accuracy"] == 0 and found["where_it_fails"]["pairs"] == 4


def judged_by(margins, train, held_out):
    return against_rules(torch.tensor(margins).double(), train, held_out)


def test_where_a_rule_fails_it_is_wrong_or_silent():
    """Longer is right once, silent once (a tie of the judge), wrong twice (of which the judge gets one)."""
    train = [(PROMPT, LONG, SHORT)]
    held_out = [(PROMPT, LONG, SHORT), (PROMPT, "cccc", "dddd"), (PROMPT, "ccc", "dddd")]
    found = judged_by([1.0, 0, 1, -1], train, [*held_out, (PROMPT, SHORT, LONG)])
    fails = found["trivial_rule"]["where_it_fails"]
    assert (fails["pairs"], fails["accuracy"]) == (3, 0.5)
    assert found["trivial_rule"]["accuracy"] == 0.375
    parts = [found[name] for name in ("equal_length", "shorter_chosen")]
    assert [(part["pairs"], part["accuracy"]) for part in parts] == [(2, 0.75), (2, 0.5)]


@pytest.mark.parametrize(
    ("right", "fails", "interval", "more"),
    [(1, 2, (0.3, 1), 4), (0.75, 10, (0.4, 0.9), 6), (0.75, 20, (0.3, 0.7), 0), (0.6, 9, (0, 0.4), 0)],
)  # fmt: skip
def test_how_many_more_pairs_would_tell(right, fails, interval, more):
    """0.9604 / 0.25^2 = 15.4: from 16 pairs on, at least from 6; none where they have told."""
    part = {"pairs": fails, "accuracy_interval": interval}
    assert more_pairs({"accuracy": right}, {"where_it_fails": part}) == more


def test_copies_are_cut_padded_and_of_another_prompt():
    """A judge that counts tokens: 6, its half and the end, twice the sentence, the other answer's."""
    encode, eos = GLASSBOX.encode, [GLASSBOX.eos_id]
    texts, prompt = ("One two three.", "Yes."), encode("Name it.\n")
    tokens = [encode(text) for text in texts]
    pairs = [
        TokenPair([*prompt, n], [*answer, *eos], [5, *eos])
        for n, answer in enumerate(tokens) for _ in range(2)
    ]  # fmt: skip
    config = SimpleNamespace(context=64)

    class Counter:
        gpt, device = SimpleNamespace(config=config), torch.device("cpu")

        def __call__(self, batch):
            return batch.lengths.float()

    first, second = edited_copies(Counter(), pairs, GLASSBOX)
    twice = encode("One two three. One two three.")
    assert first == {
        "answer": texts[0], "whole": len(tokens[0]) + 1, "cut short": len(tokens[0]) // 2 + 1,
        "padded": len(twice) + 1, "off topic": len(tokens[1]) + 1,
    }  # fmt: skip
    assert second["off topic"] == first["whole"]
    assert edited_copies(Counter(), pairs[:2], GLASSBOX) == []
