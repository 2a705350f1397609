"""Figures of docs/archive.md, whose runs are gone: drawn from the numbers that were recorded.

`python -m studies figures` draws them, beside all other figures of recorded numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.files import read_object
from report.style import COLOURS, SERIES
from report.words import ENGINES
from studies.overoptimisation.figures import (
    GOLD,
    OTHER,
    SMALL,
    WIDTH,
    legend_below,
    median_curve,
    panels,
)
from studies.pages import Numbers, drawing

WORLDS = {"reviews": ("gold reward", "kl_2"), "sums": ("exact match", "kl_1")}  # what, equal KL
CURVES = {
    "reviews": "On reviews all curves lie near GRPO's, and three starts cannot tell them apart",
    "sums": "On sums most curves lie a little above GRPO's, and three starts cannot tell them apart",
}
# The corrections of the off-policy table by what they do.
CORRECTIONS = {
    "none": "no correction", "token_tis": "a weight a token, at most 2",
    "decoupled": "a weight a token, no bound", "dppo_tv": "tokens far off are left out",
    "sequence_tis": "one weight an answer", "sequence_mask": "answers far off are left out",
    "sampler_clip": "PPO's clip at the sampler",
}  # fmt: skip
LAGS = ("16", "64")  # optimizer steps
HALF = {"reviews": 0.015, "sums": 0.055}  # of a 95% interval, as the page says


def draw(docs: Path, out: Path) -> None:
    """All of them, from what stands in docs."""
    numbers = read_object(docs / "overoptimisation.json")
    draw_budget(numbers, out)
    draw_curves(numbers, out)
    draw_off_policy((docs / "archive.md").read_text(encoding="utf-8"), out)
    draw_preferences(read_object(docs / "preferences_48_tokens.json"), out)


def draw_budget(numbers: Numbers, docs: Path) -> None:
    """Every engine's difference to GRPO: a dot a start, a bar their mean, a star where significant."""
    with drawing(docs / "study_budget.png", WIDTH, 7.4) as figure:
        title = "PPO leads GRPO from every start at equal tokens; only one engine passes the test"
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        axes = figure.subplots(2, 2, sharex="row", sharey="row")
        for row, (world, (what, distance)) in zip(axes, WORLDS.items(), strict=True):
            table = numbers["budget"][world]["table"]
            far = {"kl_1": "1 nat", "kl_2": "2 nats"}[distance]
            titles = ("at equal sampled tokens", f"at a KL of {far}")
            for axis, view, told in zip(row, ("tokens", distance), titles, strict=True):
                found = {r["engine"]: r.get("difference") for r in table if r["view"] == view}
                engines = [engine for engine in found if engine != "grpo"]
                for place, engine in enumerate(engines):
                    draw_difference(axis, place, found[engine] or {})
                axis.axvline(0, color=COLOURS["exact"], linewidth=1)
                axis.set_yticks(
                    range(len(engines)), [ENGINES[each] for each in engines], fontsize=SMALL + 0.5
                )
                axis.tick_params(axis="x", labelsize=SMALL)
                axis.locator_params(axis="x", nbins=5)
                axis.set_title(f"{world}, {told}", fontsize=10)
                axis.set_xlabel(f"{what}, less GRPO's", fontsize=9.5)
            row[0].invert_yaxis()


def draw_difference(axis: Any, place: int, difference: Mapping[str, Any]) -> None:
    """A row: nothing where no start has reached the distance."""
    if "mean" not in difference:
        return
    starts, mean = difference.get("by_start", []), difference["mean"]
    axis.plot(starts, [place] * len(starts), "o", color=SERIES[2], markersize=5, alpha=0.8)
    axis.plot([mean] * 2, [place - 0.32, place + 0.32], "-", color=SERIES[0], linewidth=2.5)
    if difference.get("holm", 1) < 0.05:
        axis.plot(max(starts) + 0.012, place, "*", color=COLOURS["exact"], markersize=10)


def draw_curves(numbers: Numbers, docs: Path) -> None:
    """A panel an engine: its gold by distance, the median of its runs, beside GRPO's."""
    for world, title in CURVES.items():
        runs: dict[str, list[Any]] = {}
        for run in numbers["budget"][world]["runs"]:
            runs.setdefault(run["engine"], []).append(run)
        others = [engine for engine in runs if engine != "grpo"]
        with panels(docs / f"study_budget_{world}.png", len(others), 4, 1.8, title) as axes:
            for place, (axis, engine) in enumerate(zip(axes, others, strict=True)):
                axis.plot(*median_curve(runs[engine]), label="the engine", **GOLD)
                axis.plot(*median_curve(runs["grpo"]), label="GRPO", **OTHER)
                axis.set_title(ENGINES[engine], fontsize=9.5)
                if place % 4 == 0:
                    axis.set_ylabel(WORLDS[world][0], fontsize=9.5)


def off_policy_table(page: str) -> dict[str, dict[str, tuple[float, bool]]]:
    """Of each correction in the page's table its gold by "WORLD, lag LAG", and whether it has a star."""
    lines = page[page.index("| correction |") :].split("\n\n")[0].splitlines()
    places = [f"{world}, lag {lag}" for world in WORLDS for lag in LAGS]
    found = {}
    for line in lines[2:]:
        name, _, *cells = (cell.strip(" `") for cell in line.strip("|").split("|"))
        values = [(float(re.sub(r"\*", "", cell)), "*" in cell) for cell in cells]
        found[name] = dict(zip(places, values, strict=True))
    return found


def draw_off_policy(page: str, docs: Path) -> None:
    """Gold by correction at both lags; the lines are the runs without a correction."""
    table = off_policy_table(page)
    names = [name for name in CORRECTIONS if name in table]
    titles = {
        "reviews": "Reviews: weights of whole answers harm,\nno harm of token weights was seen",
        "sums": "Sums: every correction prevents\na part of the collapse",
    }
    with drawing(docs / "off_policy.png", WIDTH, 3.9) as figure:
        axes = figure.subplots(1, 2, sharey=True)
        for axis, world in zip(axes, WORLDS, strict=True):
            for lag, colour, mark, shift in zip(
                LAGS, (SERIES[2], SERIES[0]), "os", (-0.13, 0.13), strict=True
            ):
                cells = [table[name][f"{world}, lag {lag}"] for name in names]
                places = [place + shift for place in range(len(names))]
                axis.errorbar(
                    [value for value, _ in cells], places, xerr=HALF[world], fmt=mark, color=colour,
                    markersize=6, elinewidth=1.2, label=f"{lag} optimizer steps old",
                )  # fmt: skip
                axis.axvline(cells[0][0], color=colour, linewidth=1, linestyle=":")
            axis.set_yticks(range(len(names)), [CORRECTIONS[name] for name in names], fontsize=9)
            axis.tick_params(axis="x", labelsize=SMALL)
            axis.set_xlabel("gold reward, unseen prompts", fontsize=9.5)
            axis.set_title(titles[world], fontsize=10)
        axes[0].invert_yaxis()
        legend_below(figure, axes)


# The policies of the recording with 48 tokens that are named, with their colours and marks.
NAMED = {
    "start": (COLOURS["reference"], "o", "as published"),
    "the four commands": (COLOURS["policy"], "o", "the four commands"),
    "unpriced": (COLOURS["bad"], "X", "GRPO, cut-off answers unpriced"),
    "dpo": (SERIES[0], "s", "DPO"),
}
OTHERS = (SERIES[2], "o", "other engines")


def draw_preferences(numbers: Numbers, docs: Path) -> None:
    """A point for each trained policy: does the judge like it, and do its answers end?"""
    with drawing(docs / "preferences_48_tokens.png", 6.5, 4.2) as figure:
        axis = figure.subplots()
        for name, points in numbers["policies"].items():
            folder, last = re.sub(r"-\d+$", "", name), points[-1]
            if folder != "best":
                colour, mark, _ = NAMED.get(folder, OTHERS)
                axis.plot(last["ended"], last["preferred"], mark, color=colour)
        for colour, mark, label in (*NAMED.values(), OTHERS):
            axis.plot([], [], mark, color=colour, label=label)
        axis.legend(loc="upper left", fontsize=SMALL + 0.5)
        axis.axhline(0.5, color=COLOURS["exact"], linewidth=1, linestyle=":")
        axis.set(xlabel="share of its answers that end", ylabel="preferred by the unseen judge")
        axis.set(xlim=(-0.03, 1.03), ylim=(0.2, 0.85))
        axis.set_title("The judge prefers policies whose answers end")
