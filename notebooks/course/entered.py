"""Questions whose answer is entered: a number, a word or letters, on a table of the reader's own.

    entered.table("matched_rate", 7)               the table that belongs to the number 7
    entered.check_answer("matched_rate", 0.61, 7)  says whether 0.61 is right for it, and if not, why

A reader's number (at a university the student's) draws the table, so that a neighbour's answer is of no
use. The right answer is computed from the table, and so is each typical wrong one, which has a sentence.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from course import plots
from course.exercises import Verdict

RECORDED = Path(__file__).resolve().parents[2] / "docs" / "preferences_48_tokens.json"
POWER, LEVEL = 0.8416, 1.96  # normal quantiles of 0.8 and of 0.975


@dataclass(frozen=True)
class Table:
    """What a reader sees, and the numbers that it was made of."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Question:
    """`answer` and each wrong one of `mistakes` are computed from the facts of a table.

    A number counts as right within `tolerance` of it, relatively.
    """

    asks: str
    draw: Callable[[random.Random], Table]
    answer: Callable[..., Any]
    mistakes: Sequence[tuple[Callable[..., Any], str]]
    tolerance: float = 0.01


def load(name: str) -> Question:
    """The question of that name; ValueError with all names for one that is not there."""
    if name not in QUESTIONS:
        raise ValueError(
            f"there is no question {name!r}: use one of {', '.join(sorted(QUESTIONS))}"
        )
    return QUESTIONS[name]


def table_of(name: str, number: int) -> Table:
    """The table that belongs to a reader's number, the same on every machine."""
    return load(name).draw(random.Random(f"{name} {number}"))


def table(name: str, number: int = 0) -> None:
    """Show that table."""
    drawn = table_of(name, number)
    plots.table(drawn.columns, drawn.rows)


def right_answer(name: str, number: int) -> Any:
    return load(name).answer(**table_of(name, number).facts)


def check_answer(name: str, mine: Any, number: int = 0) -> None:
    """Print what is found out about an answer to the table of that number."""
    print(verdict(name, mine, number).text)


def verdict(name: str, mine: Any, number: int = 0) -> Verdict:
    """right, empty, unusable, mistake (with the sentence of the one that gives this answer), or other."""
    question, facts = load(name), table_of(name, number).facts
    right = question.answer(**facts)
    if mine is None or mine is ...:
        return Verdict(f"not filled in yet: {name}. {question.asks}", "empty")
    if isinstance(right, str) != isinstance(mine, str):
        wanted = "letters or a word, in quotes" if isinstance(right, str) else "a number"
        return Verdict(f"not yet: the answer is {wanted}.", "unusable")
    if not isinstance(mine, str):
        try:
            mine = float(mine)
        except (TypeError, ValueError):
            return Verdict("not yet: the answer is one number.", "unusable")
    if equal(mine, right, question.tolerance):
        return Verdict("right.", "right")
    for wrong, says in question.mistakes:
        if equal(mine, wrong(**facts), question.tolerance):
            return Verdict(f"not yet: {says}", "mistake", says)
    return Verdict("not yet: the table says something else.", "other")


def equal(mine: Any, wanted: Any, tolerance: float) -> bool:
    """Numbers within the tolerance; words in any case, letters in any order."""
    if isinstance(wanted, str):
        return letters(mine) == letters(wanted)
    return math.isfinite(mine) and abs(mine - wanted) <= tolerance * abs(wanted)


def letters(text: str) -> str:
    """The letters of a text, sorted."""
    return "".join(sorted(filter(str.isalpha, text.lower())))


# --- how many pairs -------------------------------------------------------------------------------


def a_pilot(rng: random.Random) -> Table:
    rate, ties = (
        rng.choice((0.54, 0.55, 0.56, 0.57, 0.58)),
        rng.choice((0.15, 0.2, 0.25, 0.3, 0.35)),
    )
    rows = [["the least win rate that would matter, a tie is half", rate], ["share of ties", ties]]
    return Table(["of your pilot", "number"], rows, {"rate": rate, "ties": ties})


def pairs_needed(rate: float, ties: float, reach: float = LEVEL + POWER) -> float:
    """(z / effect)^2 times the variance of one comparison that is worth 1, 1/2 or 0."""
    return (reach / (rate - 0.5)) ** 2 * (rate - ties / 4 - rate**2)


# --- matched pairs --------------------------------------------------------------------------------

CELLS = ((True, True), (True, False), (False, True), (False, False))  # ended: mine, the other
ENDS = ('."', ".'", ".", "!", "?", '"', "'", ")", "`")


def ended(answer: str) -> bool:
    """Does the text end as a sentence does? An answer that was cut off seldom happens to."""
    return answer.strip().endswith(ENDS)


@cache
def comparisons() -> tuple[tuple[str, int, bool, bool, bool], ...]:
    """(policy, prompt, policy's answer ended, start's ended, the judge preferred the policy's)."""
    answers = json.loads(RECORDED.read_text(encoding="utf-8"))["answers"]
    start = answers["start"]
    return tuple(
        (name, i, ended(a["answers"]), ended(b["answers"]), a["judge"] > b["judge"])
        for name, rows in answers.items()
        if name != "start"
        for i, (a, b) in enumerate(zip(rows, start, strict=True))
    )


def some_policies(rng: random.Random) -> Table:
    """Nine of the recorded policies, so that their raw rate is not the matched one."""
    names, counts = sorted({row[0] for row in comparisons()}), dict[tuple[bool, bool], Any]()
    while not counts or abs(rate_of(counts) - matched_rate(counts)) < 0.02:
        kept = set(rng.sample(names, 9))
        for mine, other in CELLS:
            cell = [c[4] for c in comparisons() if c[0] in kept and c[2:4] == (mine, other)]
            counts[mine, other] = sum(cell), len(cell)
    words = {True: "ended", False: "was cut off"}
    rows = [[words[a], words[b], won, of] for (a, b), (won, of) in counts.items()]
    columns = [
        "the policy's answer",
        "the start's answer",
        "the judge preferred the policy",
        "pairs",
    ]
    return Table(columns, rows, {"counts": counts})


Counts = Mapping[tuple[bool, bool], tuple[int, int]]


def rate_of(counts: Counts, *cells: tuple[bool, bool]) -> float:
    chosen = [counts[cell] for cell in cells or counts]
    return sum(won for won, _ in chosen) / max(sum(of for _, of in chosen), 1)


def matched_rate(counts: Counts) -> float:
    """Of all pairs whose two answers ended, or were both cut off."""
    return rate_of(counts, (True, True), (False, False))


# --- what may be concluded ------------------------------------------------------------------------


def three_policies(rng: random.Random) -> Table:
    """Win, tie and loss counts against one start, of two judges and both orders; redrawn where a
    statement would hang on a hair."""
    while True:
        n = rng.choice((120, 200, 400, 800))
        won = {p: round(n * rng.choice((0.49, 0.5, 0.52, 0.56, 0.6, 0.65))) for p in "AB"}
        first = round(n * rng.choice((0.5, 0.52, 0.58, 0.63)))
        alike = round(n * rng.choice((0.52, 0.55, 0.68, 0.75)))
        facts: dict[str, Any] = {"n": n, "won": won, "first": first, "alike": alike}
        if all(abs(margin) > 0.15 for margin in margins(**facts)):
            break
    rows = [
        ["A won against the start", won["A"], n],
        ["B won against the start, other prompts", won["B"], n],
        ["of A's pairs, the answer shown first won", first, n],
        ["of A's pairs, a second judge agreed (each judge chose A in half of them)", alike, n],
    ]
    return Table(["without ties", "pairs", "of"], rows, facts)


def margins(n: int, won: Mapping[str, int], first: int, alike: int) -> list[float]:
    """How far each statement is from its border, in standard errors; above 0 it may be concluded.

    a: A beats the start. b: the judge has a leaning to a position. c: A is better than B. d: B is as
    good as the start, within 0.05. e: the judges agree more than chance alone would make them.
    """
    error = 0.5 / math.sqrt(n)
    a, b = (won[p] / n - 0.5 for p in "AB")
    return [
        a / error - LEVEL,
        abs(first / n - 0.5) / error - LEVEL,
        (a - b) / (error * math.sqrt(2)) - LEVEL,
        (0.05 - abs(b)) / error - LEVEL,
        (alike / n - 0.5) / error - LEVEL,
    ]


def may_be_concluded(**facts: Any) -> str:
    held = zip("abcde", margins(**facts), strict=True)
    return "".join(letter for letter, margin in held if margin > 0)


def with_letter(letter: str, condition: Callable[..., bool]) -> Callable[..., str]:
    """The right letters and one more, where the condition makes that mistake possible."""

    def wrong(**facts: Any) -> str:
        right = may_be_concluded(**facts)
        return right + letter if letter not in right and condition(**facts) else right

    return wrong


# --- the weight of a hard prompt ------------------------------------------------------------------


def two_prompts(rng: random.Random) -> Table:
    easy, hard = rng.choice((0.6, 0.7, 0.8)), rng.choice((0.02, 0.04, 0.05, 0.1))
    rows = [["easy", easy], ["hard", hard]]
    return Table(["prompt", "share of right answers"], rows, {"easy": easy, "hard": hard})


# --- memory ---------------------------------------------------------------------------------------


def a_cluster(rng: random.Random) -> Table:
    facts = {
        "policy": rng.choice((3.1, 7.6, 8.0, 14.0)),
        "judge": rng.choice((1.5, 3.1, 7.6)),
        "gpus": rng.choice((4, 8, 16)),
        "tensor": rng.choice((1, 2, 4)),
    }
    rows: list[list[Any]] = [
        ["weights of the policy, and of the reference", f"{facts['policy']} billion"],
        ["weights of the reward model", f"{facts['judge']} billion"],
        ["GPUs, over which the trained and both frozen models are sharded", facts["gpus"]],
        ["GPUs that share one copy of the sampler, bfloat16", facts["tensor"]],
    ]
    return Table(["", "number"], rows, facts)


def gigabytes(policy: float, judge: float, gpus: int, tensor: int) -> float:
    """16 bytes a trained weight, 2 a frozen one, both over all GPUs; 2 of the sampler over its few."""
    return (16 * policy + 2 * policy + 2 * judge) / gpus + 2 * policy / tensor


# --- a log ----------------------------------------------------------------------------------------

CAUSES = "abcde"


def a_log(rng: random.Random) -> Table:
    """Ten rows of a run in which one of five things happens after the sixth."""
    cause = rng.choice(CAUSES)
    at = rng.randrange(100, 400, 10)
    rows: list[list[Any]] = []
    for i in range(10):
        after = max(0, i - 5)
        row = {
            "reward": 0.4 + 0.01 * i, "kl": 2.0 + 0.1 * i, "grad": 0.5, "error": 8e-3, "length": 210.0,
            "ended": 0.97, "gold": 0.4 + 0.008 * i,
        }  # fmt: skip
        if cause == "a":  # the sampler kept old weights
            row |= {"error": 8e-3 + 0.07 * after}
            row |= {"grad": 0.5 + 0.3 * after, "kl": row["kl"] + 0.8 * after}
        elif cause == "e":  # the rate is too high: everything moves, the ratio starts at 1
            row |= {"kl": row["kl"] * 2.2**after, "grad": 0.5 * 1.8**after}
            row |= {"reward": row["reward"] - 0.08 * after, "gold": row["gold"] - 0.08 * after}
            row |= {"length": 210 - 25.0 * after}
        elif cause == "c":  # answers grow into the limit
            row |= {"length": 210 + 55.0 * after, "ended": 0.97 - 0.16 * after}
            row |= {"reward": row["reward"] - 0.07 * after, "gold": row["gold"] - 0.07 * after}
        elif cause == "d":  # the reward model is exploited
            row |= {"reward": row["reward"] + 0.12 * after, "gold": row["gold"] - 0.06 * after}
            row |= {"kl": row["kl"] + 1.5 * after}
        elif cause == "b" and i == 6:  # one odd batch, and its gradient was cut
            row |= {"grad": 11.0, "reward": row["reward"] - 0.03}
        noise = {key: value * (1 + 0.03 * rng.gauss(0, 1)) for key, value in row.items()}
        ends = min(noise["ended"], 1.0)
        rows.append(
            [
                at + i, f"{noise['reward']:.2f}", f"{noise['gold']:.2f}", f"{noise['kl']:.1f}",
                f"{noise['grad']:.2f}", f"{noise['error']:.3f}", f"{noise['length']:.0f}", f"{ends:.2f}",
            ]
        )  # fmt: skip
    columns = [
        "step", "reward", "of people, each tenth pair", "KL", "gradient before its cut",
        "|ratio - 1| before the update", "tokens", "ended",
    ]  # fmt: skip
    return Table(columns, rows, {"cause": cause})


# --- all of them ----------------------------------------------------------------------------------

QUESTIONS = {
    "pairs_needed": Question(
        "How many comparisons, ties included, let four studies of five exclude one half?",
        a_pilot,
        pairs_needed,
        (
            (
                lambda rate, ties: pairs_needed(rate, ties, LEVEL),
                "so many let every *second* study exclude one half: its estimate lies below the true "
                "rate as often as above. Go 0.84 standard errors further.",
            ),
            (
                lambda rate, ties: pairs_needed(rate, 0.0),
                "you took a tie for a whole win or loss. A tie is half a point, so it makes the mean "
                "steadier: take the variance of what is 1, 1/2 or 0.",
            ),
        ),
        tolerance=0.03,
    ),
    "matched_rate": Question(
        "What is the win rate among the pairs whose answers both ended or were both cut off?",
        some_policies,
        matched_rate,
        (
            (rate_of, "that is the raw rate, of all pairs. Leave out those where only one ended."),
            (
                lambda counts: rate_of(counts, (True, True)),
                "that is the rate where both ended. Both cut off is a matched pair as well.",
            ),
            (
                lambda counts: (
                    (rate_of(counts, (True, True)) + rate_of(counts, (False, False))) / 2
                ),
                "that is the mean of two rates. Every *pair* counts the same: add wins, and pairs.",
            ),
            (
                lambda counts: rate_of(counts, (True, False), (False, True)),
                "these are the pairs that differ in their ending: the ones to leave out.",
            ),
        ),
    ),
    "what_follows": Question(
        "Which of the statements a to e does the table support, at 95%?",
        three_policies,
        may_be_concluded,
        (
            (
                with_letter("c", lambda n, won, first, alike: won["A"] > won["B"]),
                "A won more often than B, but the *difference* of the two rates has an interval of its "
                "own, wider than either's, and it holds 0.",
            ),
            (
                with_letter("d", lambda n, won, first, alike: abs(won["B"] / n - 0.5) < 0.05),
                "an interval that holds one half does not show that B is as good as the start. For "
                "that the *whole* interval must lie within 0.05 of one half.",
            ),
            (
                with_letter("b", lambda n, won, first, alike: first > n / 2),
                "more than half is not yet a leaning: the share of first answers has an interval too.",
            ),
            (
                with_letter("e", lambda n, won, first, alike: alike > n / 2),
                "two judges who toss coins agree in half of such pairs: more than half, by more than "
                "chance, is wanted.",
            ),
        ),
    ),
    "hard_prompts_weight": Question(
        "In GRPO, how many times does the hard prompt's gradient of p count, relative to the easy one's?",
        two_prompts,
        lambda easy, hard: math.sqrt(easy * (1 - easy) / (hard * (1 - hard))),
        (
            (
                lambda easy, hard: easy / hard,
                "that is supervised learning on a fixed number of right answers for each prompt. GRPO "
                "divides by the group's standard deviation, not by p.",
            ),
            (
                lambda easy, hard: easy * (1 - easy) / (hard * (1 - hard)),
                "you divide by the variance. GRPO divides by its root.",
            ),
            (
                lambda easy, hard: math.sqrt(hard * (1 - hard) / (easy * (1 - easy))),
                "that is the easy prompt relative to the hard one.",
            ),
            (lambda easy, hard: 1.0, "without a division both would count the same. GRPO divides."),
        ),
        tolerance=0.02,
    ),
    "gigabytes_per_gpu": Question(
        "How many GB (1e9 bytes) of weights, gradients and moments does each GPU hold?",
        a_cluster,
        gigabytes,
        (
            (
                lambda policy, judge, gpus, tensor: (18 * policy + 2 * judge) / gpus,
                "the sampler keeps a copy of its own, in the layout in which it samples.",
            ),
            (
                lambda policy, judge, gpus, tensor: (20 * policy + 2 * judge) / gpus,
                "the sampler's copy is shared by a few GPUs only, not by all.",
            ),
            (
                lambda policy, judge, gpus, tensor: (
                    16 * policy / gpus + 2 * (policy + judge) + 2 * policy / tensor
                ),
                "the table says that the frozen models are sharded, too.",
            ),
            (
                lambda policy, judge, gpus, tensor: (
                    (16 * policy + 2 * judge) / gpus + 2 * policy / tensor
                ),
                "the reference is missing.",
            ),
        ),
    ),
    "cause_of_the_jump": Question(
        "Which of the causes a to e made this log?",
        a_log,
        lambda cause: cause,
        (),
    ),
}
