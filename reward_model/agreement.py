"""What a person's answers show: bias by position and length, agreement, and a win rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from reward_model.accuracy_report import share, wilson_interval

Row = Mapping[str, Any]
UNTOLD = "A coin could have done that: more pairs would tell (--pairs), if you prefer one at all."


def kappa(pairs: Sequence[tuple[Hashable, Hashable]]) -> float:
    """Cohen's kappa (1960) of two people's verdicts, (p_o - p_e) / (1 - p_e); NaN where p_e is 1."""
    alike = sum(a == b for a, b in pairs) / len(pairs)  # p_o
    one, other = (Counter(side) for side in zip(*pairs, strict=True))
    chance = sum(one[verdict] * other[verdict] for verdict in one) / len(pairs) ** 2  # p_e
    return (alike - chance) / (1 - chance) if chance < 1 else float("nan")


def summary(asked: Sequence[Row], rows: Sequence[Row], me: str) -> list[str]:
    """Sentences on the rows of `me`, and on the others' where they answered the same questions."""
    sides: dict[tuple[str, bool], dict[int, str]] = {}  # a: the first answer of a question
    for row in rows:
        if row["verdict"] != "skip":
            a = row["chosen_tokens"] == asked[row["question"]]["chosen_tokens"]
            side = "tie" if row["verdict"] == "tie" else "ba"[a]
            sides.setdefault((row["annotator"], row["repeat"]), {})[row["question"]] = side
    once, again = sides.get((me, False), {}), sides.get((me, True), {})
    verdicts = Counter(row["verdict"] for row in rows if row["annotator"] == me)
    decided = verdicts["first"] + verdicts["second"]
    lines = [
        f"{decided} pairs, {verdicts['tie']} ties, {verdicts['skip']} skipped",
        f"the first answer was chosen in {share(verdicts['first'], decided)}",
    ]
    for (name, repeat), theirs in sides.items():
        both = [(once[q], theirs[q]) for q in theirs if q in once]
        alike = share(sum(a == b for a, b in both), len(both))
        if both and theirs is again:
            lines.append(f"asked a second time, the same in {alike}")
        elif both and name != me and not repeat:
            lines.append(f"the same as {name} in {alike}, Cohen's kappa {kappa(both):.2f}")
    policy, other = asked[0]["chosen_from"], asked[0]["rejected_from"]
    if policy != other:
        wins = sum({"a": 1.0, "tie": 0.5, "b": 0.0}[side] for side in once.values())
        lines.append(f"{policy} won against {other} in {share(wins, len(once))}, a tie is half")
        low, high = wilson_interval(wins, len(once)) if once else (0, 1)
        than = "less" if high < 0.5 else "more" if low > 0.5 else ""
        coin = f"That is {than} often than a coin would: you tell the two apart"
        lines.append(f"{coin}." if than else UNTOLD)
    return lines
