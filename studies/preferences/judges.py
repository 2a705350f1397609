"""Judges that share nothing with the reward model that pays: words, a rule, and how verdicts are counted.

The linear judge is a Bradley-Terry model (Bradley and Terry 1952) on counts of words, sigmoid(w . (x_1 -
x_2)), fitted by numpy: its heaviest words say what the pairs teach.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.worlds.instructions import words as words_in
from reward_model.accuracy_report import wilson_interval

Array = NDArray[np.float64]
Row = Mapping[str, Any]
LEAST, STEPS, RATE, DECAY = 3, 400, 0.5, 0.003  # answers with a word; of the ascent
HEAVIEST = 20
MATCHED = 0.25  # of equal length: |log of the ratio| is below
# In chosen answers of the polite pairs at least five times as often as in rejected ones, but for could,
# please and thank; glad and certainly are in none of them.
POLITE = frozenset(
    "i'd i'm indeed may kindly happy glad would could help assist suggest please thank lovely "
    "appreciate clarify delighted certainly".split()
)
FUNCTION_WORDS = frozenset(
    "a an the is are was were be been being am do does did to of in on at by for from with as that this "
    "these those it its he she they we you i his her their our your my me him them and or but not no so if "
    "then than there here can will shall should must have has had what which who whom whose how when where "
    "why into about over up out very called known equivalent".split()
)
NUMBER = r"-?\d+(?:\.\d+)?"
ASKS = frozenset("what who which where when how name convert calculate".split())  # for one answer


def said(text: str) -> list[str]:
    """Words and marks of a sentence, as the linear judge reads them."""
    return re.findall(r"[a-z']+|[.!?,]", text.lower())


@dataclass(frozen=True)
class WordJudge:
    """A weight for each word; an answer's score is the sum of weight * log(1 + count)."""

    weights: Mapping[str, float]

    @classmethod
    def fitted(cls, rows: Sequence[Row]) -> WordJudge:
        """Maximises the mean of log sigmoid(w . (x_chosen - x_rejected)) less a small quadratic penalty."""
        seen = Counter(
            w for row in rows for key in ("chosen", "rejected") for w in {*said(row[key])}
        )
        names = sorted(word for word, answers in seen.items() if answers >= LEAST)

        def features(text: str) -> Array:
            counts = Counter(said(text))
            return np.log1p([counts[name] for name in names])

        apart = np.array([features(row["chosen"]) - features(row["rejected"]) for row in rows])
        weights = np.zeros(len(names))
        for _ in range(STEPS):
            wrong = 1 / (1 + np.exp(apart @ weights))
            weights += RATE * (apart.T @ wrong / len(rows) - DECAY * weights)
        return cls(dict(zip(names, weights.tolist(), strict=True)))

    def score(self, text: str) -> float:
        counts = Counter(said(text))
        return float(sum(self.weights.get(word, 0.0) * np.log1p(n) for word, n in counts.items()))

    def heaviest(self) -> dict[str, list[str]]:
        """The words that speak most for an answer, and most against it."""
        ranked = sorted(self.weights, key=lambda word: -self.weights[word])
        return {"for": ranked[:HEAVIEST], "against": ranked[: -HEAVIEST - 1 : -1]}


def polite_words(text: str) -> int:
    return sum(word in POLITE for word in words_in(text))


# --- right answers --------------------------------------------------------------------------------


def content(text: str) -> list[str]:
    """Its words and numbers without function words and polite ones; 3,000 is one word, and so is -3.5."""
    plain = re.sub(r"(?<=\d),(?=\d{3})", "", text.lower())
    found = re.findall(r"(?<![\w.])[-\u2212]?\d+(?:\.\d+)?|[a-z]\w*(?:'[a-z]+)?", plain)
    return [word.replace("\u2212", "-") for word in found if word not in FUNCTION_WORDS | POLITE]


def short_answer(asked: str, reference: str) -> list[str]:
    """What a reference answer adds to its question, where that is one number or at most two words.

    Empty for what is not asked by one of ASKS, and for requests to edit a text: those are left out.
    """
    if words_in(asked)[:1] not in [[word] for word in ASKS] or "### Input" in asked:
        return []
    known = {*content(asked)}
    added = [word for word in content(reference) if word not in known]
    numbers = [word for word in added if re.fullmatch(NUMBER, word)]
    if numbers:
        return numbers if len(numbers) == 1 else []
    return added if len(added) <= 2 else []


def is_right(asked: str, reference: str, answer: str) -> bool | None:
    """Whether the short answer stands in an answer, a number as its first new one; None without one."""
    wanted, known = short_answer(asked, reference), {*content(asked)}
    if not wanted:
        return None
    given = [word for word in content(answer) if word not in known]
    if re.fullmatch(NUMBER, wanted[0]):
        numbers = [word for word in given if re.fullmatch(NUMBER, word)]
        return numbers[:1] == wanted
    places = range(len(given) - len(wanted) + 1)
    return any(given[at : at + len(wanted)] == wanted for at in places)


# --- verdicts -------------------------------------------------------------------------------------


def verdicts(found: Row, before: Row, scores: str) -> Array:
    """1 where a judge prefers what `found` answers, 0 for `before`; 1/2 for a tie or the same answer."""
    other, one = np.asarray(found[scores], float), np.asarray(before[scores], float)
    both = [[*zip(x["answers"], x["ended"], strict=True)] for x in (found, before)]
    same = np.array([a == b for a, b in zip(*both, strict=True)])
    won: Array = (1 + np.sign(other - one)) / 2
    won[same] = 0.5
    return won


def length_controlled(won: Array, tokens: Array, before: Array) -> float:
    """The share of wins if answers were equally long, sigmoid(theta).

    A logistic regression of the verdicts on theta + phi tanh(d / std d), d the difference of the
    lengths (AlpacaEval 2: Dubois et al. 2024, arXiv:2404.04475, without its term for each question, which
    wants many models); a small penalty keeps phi finite.
    """
    apart = tokens - before
    x = np.tanh(apart / max(float(apart.std()), 1e-9))
    features = np.stack([np.ones_like(x), x], axis=1)
    weights, penalty = np.zeros(2), np.diag([0.0, 1.0])
    for _ in range(50):  # Newton's steps
        p = 1 / (1 + np.exp(-features @ weights))
        slope = features.T @ (won - p) - penalty @ weights
        curve = features.T @ (features * (p * (1 - p) + 1e-9)[:, None]) + penalty
        weights += np.linalg.solve(curve, slope)
    return float(1 / (1 + np.exp(-weights[0])))


def agree_with_people(margins: Array, rows: Sequence[Row]) -> dict[str, Any]:
    """How often a judge orders pairs as their labels do, in all, of equal length, and as the longer one.

    `margins` (K,) are scores of chosen less rejected. Lengths are in words.
    """
    lengths = np.array(
        [[len(row[key].split()) + 1 for key in ("chosen", "rejected")] for row in rows]
    )
    ratio = np.log(lengths[:, 0] / lengths[:, 1])
    right = (1 + np.sign(margins)) / 2
    parts = {
        "all": np.ones(len(rows), bool), "of equal length": np.abs(ratio) < MATCHED,
        "shorter chosen": ratio <= -MATCHED, "longer chosen": ratio >= MATCHED,
    }  # fmt: skip
    votes = [row.get("annotators_for_chosen") for row in rows]
    for n in {2, 3}.intersection(votes):
        parts[f"{n} of 3 agree"] = np.array([each == n for each in votes])
    found = {name: counted(right[chosen]) for name, chosen in parts.items()}
    return found | {"the longer one": counted((1 + np.sign(ratio)) / 2)}


def share_of(won: float, of: int) -> dict[str, Any]:
    """So many won of so many, a tie as half: the share, and Wilson's interval."""
    return {"share": won / of if of else None, "of": of, "interval": wilson_interval(won, of)}


def counted(won: Array) -> dict[str, Any]:
    """Of verdicts, 1 for one that was won."""
    return share_of(float(won.sum()), len(won))
