"""What may be concluded: pages 13, 21 and 23."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from course.questions import Table, numbers, question, statements, which
from course.recorded import comparisons

RECORDINGS = Path(__file__).resolve().parents[1] / "recordings"
POWER, LEVEL = 0.8416, 1.96  # normal quantiles of 0.8 and of 0.975

# --- 13: best of n, a recorded run, a table -------------------------------------------------------


@question(
    numbers(
        nats=("nats, at most", 2.0, 2.5, 3.0, 3.5, 4.0, 4.5),
    ),
    mistakes="""
        math.log(n + 1) - n / (n + 1) -> math.log(n + 1)
            e to the nats is too few: you have left out (n - 1) / n.
        math.log(n + 1) - n / (n + 1) -> math.log(n + 1) - 1
            nearly: (n - 1) / n is a little below 1, so that this many are just beyond.
    """,
)
def answers_within(nats):
    """From how many answers may best-of-n choose?

    Find the largest whole n for which log n - (n - 1) / n is at most that: try some, or write a loop.
    """
    n = 1
    while math.log(n + 1) - n / (n + 1) <= nats:
        n += 1
    return n


@cache
def recorded_runs() -> dict[str, Any]:
    path = RECORDINGS / "overoptimisation.json"
    return json.loads(path.read_text(encoding="utf-8"))["runs"]


def an_exploited_run(rng):
    """A recorded run of GRPO against a learned reward; which column is the gold reward is not said."""
    while True:
        points = recorded_runs()[rng.choice(sorted(recorded_runs()))]["points"]
        last = len(points["step"]) - 1
        kept = sorted({0, last, *rng.sample(range(1, last), min(8, last - 1))})
        gold, proxy = ([round(points[key][i], 2) for i in kept] for key in ("gold", "proxy"))
        if gold_given_up(gold, proxy) > 0.04:
            break
    shown = [("gold", gold), ("proxy", proxy)]
    rng.shuffle(shown)
    rows = [
        [
            f"{points['step'][i]:g}",
            f"{points['kl'][i]:.1f}",
            *(f"{line[row]:.2f}" for _, line in shown),
        ]
        for row, i in enumerate(kept)
    ]
    return Table(["step", "KL", "A", "B"], rows, {"gold": gold, "proxy": proxy})


@question(
    an_exploited_run,
    mistakes="""
        max(gold) - gold[proxy.index(max(proxy))] -> max(proxy) - proxy[gold.index(max(gold))]
            you took the learned reward for the gold one. The learned one is what the run climbs.
        max(gold) - gold[proxy.index(max(proxy))] -> max(gold) - gold[0]
            that is how much there was to gain. How much of it is given up by going on?
        max(gold) - gold[proxy.index(max(proxy))] -> gold[proxy.index(max(proxy))] - gold[0]
            that is what is left of the gain. How much of it is given up?
        max(gold) - gold[proxy.index(max(proxy))] -> max(proxy) - max(gold)
            the two have different units: compare gold with gold.
    """,
)
def gold_given_up(gold, proxy):
    """How much gold is given up by keeping the policy that the learned reward likes best?

    One of A and B is the learned reward, which training climbs, and the other is gold.
    """
    return max(gold) - gold[proxy.index(max(proxy))]


which(
    "three_starts",
    statements(
        "PPO was ahead in all three starts; whether it is better remains undecided.",
        "PPO is better than GRPO here, p = 0.014.",
        "PPO and GRPO do not differ.",
        "Nothing: three starts are no evidence.",
    ),
    right="right",
    text="""Which sentence may be concluded?

    It must survive twelve comparisons, and claim nothing that three starts cannot show.

    wrong1: p = 0.014 is one of twelve that were looked at. Corrected for that it is 0.129.
    wrong2: not significant is not equal: all three starts favour PPO, by up to 0.1.
    wrong3: three starts are few, but they are evidence: all three have one sign.
    """,
)

# --- 21: which claims stand? ----------------------------------------------------------------------


def five_claims(rng):
    """Five p-values for which Holm's correction differs from both simpler ways."""
    while True:
        p = dict(
            zip(
                "abcde",
                rng.sample((0.001, 0.004, 0.008, 0.011, 0.012, 0.018, 0.02, 0.022, 0.024, 0.2), 5),
            )
        )
        rising = sorted(p, key=lambda claim: p[claim])
        passes = "".join(sorted(c for i, c in enumerate(rising) if p[c] * (5 - i) <= 0.05))
        ways = ["".join(sorted(which_claims_stand(p))), at(p, 0.01), at(p, 0.05), passes]
        if len(set(ways)) == 4:
            break
    return Table(["claim", "p, each alone"], [[c, f"{p[c]:.3f}"] for c in "abcde"], {"p": p})


def at(p, level):
    return "".join(c for c in "abcde" if p[c] <= level)


def which_claims_stand(p):
    """Which claims stand at 5% after Holm's correction?

    Enter their letters, such as "ac". The smallest p times five, the next times four, and so on; the first
    that is above 0.05 ends it.
    """
    stand = []
    for place, claim in enumerate(sorted(p, key=p.get)):
        if p[claim] * (len(p) - place) > 0.05:
            break
        stand.append(claim)
    return "".join(stand)


question(
    five_claims,
    mistakes="""
        p[claim] * (len(p) - place) -> p[claim]
            each p alone is below 0.05 there, but five were looked at.
        p[claim] * (len(p) - place) -> p[claim] * len(p)
            you multiply all by five: that is Bonferroni's correction, stricter than it needs to be.
        break -> continue
            the first p that fails ends it: those after it fail as well.
    """,
)(which_claims_stand)

# --- 23: how many pairs? --------------------------------------------------------------------------


@question(
    numbers(
        rate=("the least win rate that would matter, a tie is half", 0.54, 0.55, 0.56, 0.57, 0.58),
        ties=("share of ties", 0.15, 0.2, 0.25, 0.3, 0.35),
    ),
    mistakes="""
        reach = LEVEL + POWER -> reach = LEVEL
            so many let every *second* study exclude one half: its estimate lies below the true rate as
            often as above. Go 0.84 standard errors further.
        variance = rate - ties / 4 - rate**2 -> variance = rate - rate**2
            you took a tie for a whole win or loss. A tie is half a point, so it makes the mean steadier:
            take the variance of what is 1, 1/2 or 0.
    """,
    tolerance=0.03,
)
def pairs_needed(rate, ties):
    """How many comparisons, ties included, let four studies of five exclude one half?"""
    reach = LEVEL + POWER
    variance = rate - ties / 4 - rate**2
    return (reach / (rate - 0.5)) ** 2 * variance


# --- 23: matched pairs ----------------------------------------------------------------------------

CELLS = ((True, True), (True, False), (False, True), (False, False))  # ended: mine, the other
Counts = Mapping[tuple[bool, bool], tuple[int, int]]


def rate_of(counts: Counts, *cells: tuple[bool, bool]) -> float:
    chosen = [counts[cell] for cell in cells or counts]
    return sum(won for won, _ in chosen) / max(sum(of for _, of in chosen), 1)


def some_policies(rng):
    """Nine of the recorded policies, so that their raw rate is not the matched one."""
    names, counts = sorted({row[0] for row in comparisons()}), dict[tuple[bool, bool], Any]()
    while not counts or abs(rate_of(counts) - matched_rate(counts)) < 0.02:
        kept = set(rng.sample(names, 9))
        for cell in CELLS:
            won = [c[4] for c in comparisons() if c[0] in kept and c[2:4] == cell]
            counts[cell] = sum(won), len(won)
    words = {True: "ended", False: "was cut off"}
    rows = [[words[a], words[b], won, of] for (a, b), (won, of) in counts.items()]
    preferred = "the judge preferred the policy"
    columns = ["the policy's answer", "the start's answer", preferred, "pairs"]
    return Table(columns, rows, {"counts": counts})


def matched_rate(counts):
    """What is the win rate among the pairs whose answers both ended or were both cut off?"""
    both, neither = (True, True), (False, False)
    return rate_of(counts, both, neither)


question(
    some_policies,
    mistakes="""
        return rate_of(counts, both, neither) -> return rate_of(counts)
            that is the raw rate, of all pairs. Leave out those where only one ended.
        return rate_of(counts, both, neither) -> return rate_of(counts, both)
            that is the rate where both ended. Both cut off is a matched pair as well.
        return rate_of(counts, both, neither)
        -> return (rate_of(counts, both) + rate_of(counts, neither)) / 2
            that is the mean of two rates. Every *pair* counts the same: add wins, and pairs.
        return rate_of(counts, both, neither) -> return rate_of(counts, (True, False), (False, True))
            these are the pairs that differ in their ending: the ones to leave out.
    """,
)(matched_rate)

# --- 23: what may be concluded --------------------------------------------------------------------


def three_policies(rng):
    """Counts of wins against one start, of two judges and both orders; none that hangs on a hair."""
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


def held(n, won, first, alike):
    pairs = zip("abcde", margins(n, won, first, alike), strict=True)
    return "".join(letter for letter, margin in pairs if margin > 0)


def more_where(condition: bool, letter: str, right: str) -> str:
    """The right letters, and one more where the condition makes that mistake possible."""
    return right + letter if condition and letter not in right else right


@question(
    three_policies,
    mistakes="""
        return right -> return more_where(won["A"] > won["B"], "c", right)
            A won more often than B, but the *difference* of the two rates has an interval of its own, wider
            than either's, and it holds 0.
        return right -> return more_where(abs(won["B"] / n - 0.5) < 0.05, "d", right)
            an interval that holds one half does not show that B is as good as the start. For that the
            *whole* interval must lie within 0.05 of one half.
        return right -> return more_where(first > n / 2, "b", right)
            more than half is not yet a leaning: the share of first answers has an interval too.
        return right -> return more_where(alike > n / 2, "e", right)
            two judges who toss coins agree in half of such pairs: more than half, by more than chance, is
            wanted.
    """,
)
def what_follows(n, won, first, alike):
    """Which of the statements a to e does the table support, at 95%?"""
    right = held(n, won, first, alike)
    return right
