"""The budget's part of docs/study.md: the template study_budget.md.jinja, and what it needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from studies.pages import between_marks, rendered

from harness.files import write_text
from overopt.cells import (
    BUDGET_DISTANCES,
    COMMAND,
    Numbers,
    above_and_below,
    difference,
    distance_view,
    significant,
)
from overopt.repeats import repeats_text
from overopt.settings import TUNING

TEMPLATE = Path(__file__).with_name("study_budget.md.jinja")
VIEWS = {"tokens": "equal sampled tokens", "seconds": "equal CPU time"}
VIEWS |= {distance_view(distance): f"KL {distance:g}" for distance in BUDGET_DISTANCES}
GOLD = {"reviews": "gold", "sums": "exact match"}


def into_study(numbers: Numbers, path: Path) -> None:
    """Put the budget's part between its two marks in docs/study.md."""
    if path.exists():
        page = path.read_text(encoding="utf-8")
        lines = ["", *budget_text(numbers).rstrip().splitlines(), ""]
        write_text(path, between_marks(page, "one budget", lines))


def budget_text(numbers: Numbers) -> str:
    """The differences to GRPO as a picture; per world what is significant, and means."""
    return rendered(
        TEMPLATE, command=COMMAND, budget=numbers.get("budget"), settings=numbers["settings"],
        missing=missing_runs(numbers), tries=len(TUNING),
        tuned=tuned_text(numbers), views=VIEWS, gold=GOLD, titles=titles, seen=seen, by_engine=by_engine,
        mean_text=mean_text, repeats_text=repeats_text, later=numbers.get("later"), difference=difference,
    )  # fmt: skip


def titles(world: str) -> dict[str, str]:
    """What each view measures, in words."""
    gold = {view: f"{GOLD[world]} at {title}" for view, title in VIEWS.items()}
    return gold | {"kl_at_tokens": "KL at equal sampled tokens"}


def missing_runs(numbers: Numbers) -> dict[str, int] | None:
    """How far the runs have come, where some are still to be made."""
    done = numbers["progress"]["budget"]
    if done["done"] == done["jobs"]:
        return None
    groups = [numbers.get(group, {}) for group in ("budget", "later")]
    runs = [run for group in groups for found in group.values() for run in found["runs"]]
    return {"runs": len(runs), "starts": len({run["start"] for run in runs})}


def tuned_text(numbers: Numbers) -> str:
    """What the tries of SAPO chose, per world."""
    said = []
    for world, found in numbers.get("budget", {}).items():
        chosen = " ".join(
            f"`--{name.replace('_', '-')} {value:g}`"
            for name, value in (found["tuned"] or {}).items()
        )
        best = f"{chosen} (`sapo_tuned`)" if chosen else "its own (`sapo`)"
        if found["tuned"] is not None:
            said.append(f"{best} did best on {world}")
    return "; ".join(said) or "not all of them are run yet"


def seen(found: Numbers, world: str) -> list[str]:
    """A sentence per view: which engines differ significantly from GRPO."""
    lines = []
    for view, title in VIEWS.items():
        told = [r for r in found["table"] if r["view"] == view and "difference" in r]
        if told:
            lines.append(f"{GOLD[world].capitalize()} at {title}: {told_of(told)}")
    return lines


def told_of(rows: Sequence[Numbers]) -> str:
    """Engines significantly above and below GRPO."""
    tested = [row for row in rows if "p" in row["difference"]]
    if not tested:
        return "not tested: fewer than three starts are known."
    found, named = [row for row in tested if significant(row)], []
    for word, own in zip(("above", "below"), above_and_below(found), strict=True):
        shown = ", ".join(f"`{r['engine']}` ({r['difference']['mean']:+.3f})" for r in own)
        named += [f"significantly {word} GRPO: {shown}"] if own else []
    rest = f"{len(tested) - len(found)} of {len(tested)} do not differ significantly"
    rest = rest if found else f"none of {len(tested)} differs significantly"
    left_out = [f"`{row['engine']}` is not tested"] if (row := untested(rows)) else []
    return "; ".join([*named, rest, *left_out]) + "."


def untested(rows: Sequence[Numbers]) -> Numbers | None:
    """The first of them whose starts are not known."""
    return next((row for row in rows if "p" not in row["difference"]), None)


def by_engine(measured: Sequence[Numbers]) -> dict[str, dict[str, Numbers]]:
    rows: dict[str, dict[str, Numbers]] = {}
    for row in measured:
        rows.setdefault(row["engine"], {})[row["view"]] = row
    return rows


def mean_text(row: Numbers) -> str:
    """A mean, how many runs it is of where some are missing, and a star where it differs."""
    if "mean" not in row:
        return "-"
    star = "\\*" if significant(row) else ""
    missing = f" ({row['reached']} of {row['of']})" if row["reached"] < row["of"] else ""
    return f"{row['mean']:.3f}{star}{missing}"
