"""The budget's part of docs/study.md: every number and every sentence comes from the JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from overopt.intervals import SURE
from overopt.settings import TUNING
from overopt.tables import (
    BUDGET_DISTANCES,
    COMMAND,
    NOT_RUN,
    Numbers,
    difference,
    distance_view,
    repeats_text,
    surely,
    table,
)

MARK = "<!-- one budget: written by scripts/overoptimisation.py --draw budget -->"
END_MARK = "<!-- end of one budget -->"
VIEWS = {"tokens": "equal sampled tokens", "seconds": "equal CPU time"}
VIEWS |= {distance_view(distance): f"KL {distance:g}" for distance in BUDGET_DISTANCES}
GOLD = {"reviews": "gold", "sums": "exact match"}


def into_study(numbers: Numbers, path: Path) -> None:
    """Put the budget's part between its two marks in docs/study.md."""
    if not path.exists():
        return
    own = NOT_RUN.format(part="budget")
    if "budget" in numbers:
        own = budget_text(numbers)
    body = f"{MARK}\n\n{own}{END_MARK}"
    text = path.read_text(encoding="utf-8")
    between_marks = re.escape(MARK) + ".*?" + re.escape(END_MARK)
    path.write_text(re.sub(between_marks, lambda _: body, text, flags=re.S), encoding="utf-8")


def budget_text(numbers: Numbers) -> str:
    """The differences to GRPO as a picture; per world what is sure, the means, and the differences."""
    picture = "![every engine's difference to GRPO](study_budget.png)\n\n"
    text = (
        missing_runs(numbers)
        + picture
        + HOW.format(
            starts=len(numbers["settings"]["budget_starts"]),
            seeds=len(numbers["settings"]["budget_seeds"]),
            tries=len(TUNING),
            tuned=tuned_text(numbers),
        )
    )
    for world, found in numbers["budget"].items():
        text += (
            f"### One budget: {world}\n\n"
            f"The budget is {found['tokens']:,.0f} sampled tokens, or the {found['seconds']:.0f} CPU "
            "seconds that GRPO needs for them.\n\n"
            + "".join(f"- {line}\n" for line in seen(found, world))
            + "\n"
            + means_table(found["table"], world)
            + f"![gold against distance, GRPO in grey](study_budget_{world}.png)\n\n"
            + "Differences to GRPO (95%), and p after the correction where it is below 1:\n\n"
            + differences_table(found["table"])
            + repeats_text(found.get("repeats", ()), titles(world))
        )
    return text


def titles(world: str) -> dict[str, str]:
    """What each view measures, in words."""
    gold = {view: f"{GOLD[world]} at {title}" for view, title in VIEWS.items()}
    return gold | {"kl_at_tokens": "KL at equal sampled tokens"}


HOW = """How to read it:

- {starts} whole starts, {seeds} seeds each. Intervals are 95% bootstraps over starts, seeds within starts,
  and prompts. With so few starts they are too narrow rather than too wide.
- Differences to GRPO are paired by start, seed and prompt. A star, or a filled mark: p < 0.05 after
  Holm's correction over the engines of one column. "-": no run reaches it.
- A run that stops early, before the budget, counts with its end. At a KL (nats) the runs that reach it
  count. A difference needs pairs of at least two starts.
- `cispo_5` is CISPO at ScaleRL's bound of 5. SAPO was tried at {tries} settings on validation prompts of
  the first start: {tuned}.
- Intervals of every mean, and for a new run, are in [overoptimisation.json](overoptimisation.json).

"""


def missing_runs(numbers: Numbers) -> str:
    """How far the runs have come, where some are still to be made."""
    done, settings = numbers["progress"]["budget"], numbers["settings"]
    if done["done"] == done["jobs"]:
        return ""
    runs = [run for found in numbers["budget"].values() for run in found["runs"]]
    starts, of = len({run["start"] for run in runs}), len(settings["budget_starts"])
    return (
        f"**Not all of it is run:** {len(runs)} runs are there, of {starts} of {of} starts; "
        f"`{COMMAND} --parts budget` goes on. Until then read every interval as too narrow.\n\n"
    )


def tuned_text(numbers: Numbers) -> str:
    """What the tries of SAPO chose, per world."""
    said = []
    for world, found in numbers["budget"].items():
        chosen = " ".join(
            f"`--{name.replace('_', '-')} {value:g}`"
            for name, value in (found["tuned"] or {}).items()
        )
        best = f"{chosen} (`sapo_tuned`)" if chosen else "its own (`sapo`)"
        if found["tuned"] is not None:
            said.append(f"{best} did best on {world}")
    return "; ".join(said) or "not all of them are run yet"


def seen(found: Numbers, world: str) -> list[str]:
    """A sentence per view: which engines differ significantly from GRPO, and how many do not."""
    lines = []
    for view, title in VIEWS.items():
        told = [r for r in found["table"] if r["view"] == view and "difference" in r]
        if told:
            lines.append(f"{GOLD[world].capitalize()} at {title}: {sure_ones(told)}")
    return lines


def sure_ones(told: Sequence[Numbers]) -> str:
    """Engines above and below GRPO after the correction."""
    above, below = surely(told)
    named = []
    for word, rows in (("above", above), ("below", below)):
        if rows:
            shown = ", ".join(f"`{r['engine']}` ({r['difference']['mean']:+.3f})" for r in rows)
            named.append(f"{word} GRPO are {shown}")
    rest = len(told) - len(above) - len(below)
    if not named:
        if len(told) == 1:
            return (
                f"`{told[0]['engine']}`, the only one with enough pairs, does not differ from GRPO."
            )
        return f"none of {len(told)} engines differs measurably from GRPO."
    return "; ".join(named) + (f"; {rest} do not differ." if rest else ".")


def means_table(measured: Sequence[Numbers], world: str) -> str:
    """An engine a line, a view that any engine reaches a column."""
    by_place = {(row["engine"], row["view"]): row for row in measured}
    reached = {row["view"] for row in measured if "mean" in row}
    views = {view: title for view, title in titles(world).items() if view in reached}
    rows = [
        (engine, *(mean_text(by_place[engine, view]) for view in views))
        for engine in dict.fromkeys(row["engine"] for row in measured)
    ]
    return table(("engine", *views.values()), rows)


def mean_text(row: Numbers) -> str:
    """A mean, of how many runs where some are missing, and a star where it differs from GRPO's."""
    if "mean" not in row:
        return "-"
    star = "\\*" if row.get("difference", {}).get("holm", 1) < SURE else ""
    missing = f" ({row['reached']} of {row['of']})" if row["reached"] < row["of"] else ""
    return f"{row['mean']:.3f}{star}{missing}"


def differences_table(measured: Sequence[Numbers]) -> str:
    """An engine a line, its difference to GRPO in every view in which an engine has one."""
    told = {(row["engine"], row["view"]): row for row in measured if "difference" in row}
    reached = {view for _, view in told}
    titles = {**VIEWS, "kl_at_tokens": "KL at equal sampled tokens"}
    views = {view: title for view, title in titles.items() if view in reached}
    rows = []
    for engine in dict.fromkeys(engine for engine, _ in told):
        own = [difference(told.get((engine, view), {})) for view in views]
        rows.append((engine, *(s if p in ("-", "1.000") else f"{s}, {p}" for s, p in own)))
    return table(("engine", *views.values()), rows) if rows else ""
