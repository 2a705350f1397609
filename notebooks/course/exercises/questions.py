"""Questions whose answer is a number or the letter of a choice: it has to be worked out, or run.

A wrong answer that somebody would find for a reason gets that reason; any other one the general hint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Question:
    """The right answer, a hint, and why each typical wrong one is wrong. An int must be met exactly."""

    right: float | str
    hint: str
    wrong: dict[float | str, str] = field(default_factory=dict)

    def verdict(self, mine: Any) -> tuple[str, str]:
        """In a word, "right", "empty", "mistake" or "number", and the sentence that is printed."""
        if mine is None or mine is ...:
            return "empty", "not answered yet: enter it above, and run the cell again."
        if alike(mine, self.right):
            return "right", "right."
        for answer, reason in self.wrong.items():
            if alike(mine, answer):
                return "mistake", f"not yet: {reason}"
        return "number", f"not yet. {self.hint}"


def alike(mine: Any, answer: float | str) -> bool:
    """A letter in any case; a number within 2%, a whole one exactly."""
    if isinstance(answer, str):
        return str(mine).strip().lower() == answer
    try:
        return abs(float(mine) - answer) <= (0 if isinstance(answer, int) else 0.02 * abs(answer))
    except (TypeError, ValueError):
        return False


QUESTIONS = {
    "answers_for_four_nats": Question(
        147,
        "Find the largest whole n for which log n - (n - 1) / n is at most 4: try some, or write a loop.",
        {
            54: "e^4 is 54.6, but best of 54 is only 3.0 nats away: you have left out (n - 1) / n.",
            148: "e^5 is 148.4, but (n - 1) / n is a little below 1: best of 148 is just beyond 4 nats.",
        },
    ),
    "three_starts": Question(
        "c",
        "Which sentence would survive twelve comparisons, and claim nothing that three starts cannot show?",
        {
            "a": "p = 0.014 is one of twelve that were looked at. Corrected for that it is 0.129.",
            "b": "not significant is not equal: all three starts favour PPO, by up to 0.1.",
            "d": "three starts are few, but they are evidence: all three have one sign.",
        },
    ),
    "steps_in_one_direction": Question(
        2000.0,
        "For small steps the KL is the square of a distance. Which of the two adds up from batch to batch?",
        {
            10: "you add up nats. Distances add up, and they are roots: (200 sqrt(0.05))^2.",
            0.05: "that bounds one batch, against the one before. Nothing bounds their sum.",
        },
    ),
    "true_share": Question(
        0.6,
        "If the new model is better on a share w of prompts, how often does the judge say so? Solve for w.",
        {
            0.56: "you take the judge at its word. Its errors pull every share towards one half.",
            0.448: "you multiply by its accuracy. Where the old one is better it errs as well.",
            0.7: "you divide by its accuracy. Where the old one is better it errs as well.",
        },
    ),
    "length_of_a_tenth": Question(
        58,
        "Log-ratios add up, so their variance is 0.04 L, and the effective share is exp(-variance).",
        {
            57: "nearly: at 57 tokens exp(-0.04 L) is still 0.102.",
            12: "you let standard deviations add up. Variances do: 0.2^2 L.",
            11: "you let standard deviations add up. Variances do: 0.2^2 L.",
            116: "your share is exp(-variance / 2). It is E[w]^2 / E[w^2] = exp(-variance).",
            115: "your share is exp(-variance / 2). It is E[w]^2 / E[w^2] = exp(-variance).",
        },
    ),
    "beta_for_five_nats": Question(
        0.316,
        "The optimum is the reference times exp(R / beta), here a normal distribution moved by 1 / beta.",
        {
            0.1: "the KL of two normal distributions is half the *square* of the distance, here 1 / beta.",
            0.447: "the half is missing: the KL is (1 / beta)^2 / 2.",
            3.16: "this is 1 / beta, how much reward it gains. A weak hold is a small beta.",
            0.2: "the KL is not 1 / beta: it is half the square of that.",
        },
    ),
}
