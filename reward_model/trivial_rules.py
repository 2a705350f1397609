"""Trivial rules that may order pairs as well as a judge does: what a judge is worth, it knows beyond them.

A rule measures a number of (prompt, answer). Whether more of it wins or less, and which first words are
rules, is decided on training pairs, never on those that a rule is scored on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

Texts = tuple[str, str, str]  # prompt, chosen answer, rejected answer
Rule = Callable[[str, str], float]
FIRST_WORDS = 20  # the commonest ones at the beginning of training answers


def words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())


def copied(prompt: str, answer: str) -> float:
    """The share of the answer's words that stand in the prompt."""
    asked, own = set(words(prompt)), words(answer)
    return sum(word in asked for word in own) / max(len(own), 1)


def first_word(answer: str) -> str:
    return "".join(words(answer.strip().partition(" ")[0])[:1])


def begins_with(word: str, prompt: str, answer: str) -> float:
    return first_word(answer) == word


# What wins where more of it wins, what wins where less of it does, and the number.
RULES: dict[tuple[str, str], Rule] = {
    ("longer", "shorter"): lambda _, answer: len(answer),
    ("more words of the prompt", "fewer words of the prompt"): copied,
    ("a full stop at the end", "no full stop at the end"): lambda _, a: a.rstrip().endswith("."),
    ("more exclamation marks", "fewer exclamation marks"): lambda _, answer: answer.count("!"),
    ("more question marks", "fewer question marks"): lambda _, answer: answer.count("?"),
    ("more lines", "fewer lines"): lambda _, answer: len(answer.strip().splitlines()),
    ("more list items", "fewer list items"): lambda _, answer: len(
        re.findall(r"^\s*(?:[-*•]|\d+[.)])\s", answer, re.M)
    ),
}


def rules_for(train: Sequence[Texts]) -> dict[tuple[str, str], Rule]:
    """RULES, and one for each common first word of these answers."""
    firsts = Counter(first_word(answer) for _, *both in train for answer in both)
    names = [word for word, _ in firsts.most_common(FIRST_WORDS)]
    return RULES | {
        (f"beginning with {w!r}", f"not beginning with {w!r}"): partial(begins_with, w)
        for w in names
    }
