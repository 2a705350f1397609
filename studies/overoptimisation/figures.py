"""Figures of the over-optimisation study, drawn from its JSON alone.

Gold is green and the learned reward orange, as everywhere. What is a setting is purple. Thin lines are
single starts; a thick line is their median at each distance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from report.style import COLOURS, SERIES
from studies.bootstrap import Array, at_distance
from studies.pages import Numbers, drawing

Style = dict[str, Any]
GOLD: Style = dict(color=COLOURS["gold"], linewidth=2.2)
START: Style = dict(color=COLOURS["gold"], linewidth=0.7, alpha=0.4)
PROXY: Style = dict(color=COLOURS["proxy"], linewidth=1.5, linestyle="--")
OTHER: Style = dict(color=SERIES[1], linewidth=1.5, linestyle=":")
ALARM: Style = dict(color=COLOURS["bad"], marker="X", linestyle="", markersize=8)
# d at the right edge of the law's panels: few runs go on, and they would squeeze the rest.
FARTHEST = 8.0
WIDTH, SMALL = 8.5, 8.5  # inches, and points: 11 pixels where a page shows it 850 pixels wide
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D")
DISTANCE = "d = sqrt(KL in nats)"
CURES = {  # what a panel calls them
    "baseline": "no remedy", "more_labels": "more labels", "own_answers": "labels of own answers",
    "wide_pairs": "wider pairs", "ensemble_mean": "three models, mean",
    "ensemble_min": "three models, lowest", "ensemble_uwo": "three models, mean - variance",
    "kl_0.02": "KL penalty 0.02", "kl_0.1": "KL penalty 0.1",
}  # fmt: skip


def ramp(count: int) -> list[Any]:
    """The values of one setting in their order: so many purples, from light to dark."""
    from matplotlib.colors import LinearSegmentedColormap

    shades = LinearSegmentedColormap.from_list("ramp", (SERIES[5], SERIES[1], SERIES[0]))
    return [shades(part) for part in np.linspace(0, 1, count)]


def root_kl(points: Mapping[str, Sequence[float]]) -> Array:
    """d = sqrt(KL); a mean estimate a little below 0 counts as 0."""
    return np.sqrt(np.clip(np.array(points["kl"], float), 0, None))


@contextmanager
def panels(path: Path, count: int, columns: int, height: float, title: str) -> Iterator[list[Any]]:
    """The axes of a figure under a title, which share their scales; one legend stands below them."""
    rows = -(-count // columns)
    with drawing(path, WIDTH, height * rows + 0.6) as figure:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        axes = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
        for extra in axes[count:]:
            extra.remove()
        for place, axis in enumerate(axes[:count]):
            last = place >= count - columns
            axis.tick_params(labelsize=SMALL, labelbottom=last)
            axis.set_xlabel(DISTANCE if last else "", fontsize=SMALL)
        yield axes[:count]
        legend_below(figure, axes[:count])


def legend_below(figure: Any, axes: Sequence[Any]) -> None:
    """Each label of the panels once, under all of them."""
    found: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(
        list(found.values()), list(found), loc="outside lower center", ncols=4, fontsize=SMALL + 0.5
    )


# --- the law --------------------------------------------------------------------------------------


def draw_law(numbers: Numbers, docs: Path) -> None:
    """A panel per cell: GRPO's gold by distance, the learned reward, and best of n."""
    law, settings = numbers["law"], numbers["settings"]
    sizes, counts = settings["sizes"], settings["labels"]
    runs = [cell for cell in law["cells"] if cell["engine"] == "grpo"]
    title = "Gold rises, turns and falls, while the learned reward goes on rising"
    names = [(size, labels) for size in sizes for labels in counts]
    path = docs / "overoptimisation_law.png"
    with panels(path, len(names), len(counts), 1.45, title) as axes:
        for axis, (size, labels) in zip(axes, names, strict=True):
            if cells := [c for c in runs if (c["size"], c["labels"]) == (size, labels)]:
                draw_cell(axis, cells)
            if size == sizes[0]:
                axis.set_title(f"{labels:,} labels", fontsize=SMALL + 0.5)
            if labels == counts[0]:
                axis.set_ylabel(f"reward model\n{size}", fontsize=SMALL + 0.5)
        axes[0].set_xlim(-0.2, FARTHEST)
    with drawing(docs / "overoptimisation.png", WIDTH, 3.3) as figure:
        draw_price(numbers, figure)


def draw_cell(axis: Any, cells: Sequence[Numbers]) -> None:
    """Gold of all starts, the learned reward moved onto gold's scale, and best of n."""
    for cell in cells:
        axis.plot(root_kl(cell["points"]), cell["points"]["gold"], **START)
    d, gold = median_curve(cells)
    axis.plot(d, gold, label="gold, median of the starts", **GOLD)
    d, proxy = median_curve(cells, "proxy")
    rise = max(
        float(proxy.max() - proxy[0]), 1e-6
    )  # from gold's start to 1: its shape, not its size
    axis.plot(
        d, gold[0] + (proxy - proxy[0]) / rise * (1 - gold[0]), label="learned reward, rescaled", **PROXY
    )  # fmt: skip
    if banks := [cell for cell in cells if "best_of_n" in cell]:
        values = np.mean([moved_bank(cell) for cell in banks], 0)
        axis.plot(root_kl(banks[0]["best_of_n"]), values, label="gold, best of n", **OTHER)


def moved_bank(cell: Numbers) -> Array:
    """Gold of best of n, which has prompts of its own, moved so that it begins where the run does."""
    gold = np.array(cell["best_of_n"]["gold"])
    return gold - gold[0] + cell["points"]["gold"][0]


def draw_price(numbers: Numbers, figure: Any) -> None:
    """Gold by distance for the largest reward model; the peak by labels and size; best of n beside it."""
    law, settings = numbers["law"], numbers["settings"]
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.15, 1, 1))
    runs = [cell for cell in law["cells"] if cell["engine"] == "grpo"]
    sizes, counts = settings["sizes"], settings["labels"]
    for labels, shade, style in zip(counts, ramp(len(counts)), LINES, strict=False):
        if cells := [c for c in runs if (c["size"], c["labels"]) == (sizes[-1], labels)]:
            left.plot(*median_curve(cells), label=f"{labels:,}", color=shade, linestyle=style)
    for size, shade, marker in zip(sizes, ramp(len(sizes)), MARKERS, strict=False):
        peaks = [peak_of(runs, size, labels) for labels in counts]
        middle.plot(counts, peaks, label=size, color=shade, marker=marker, markersize=5)
    banks = [cell for cell in runs if "best_of_n" in cell]
    xs = [cell["points"]["gold"][cell["best"]] for cell in banks]
    ys = [moved_bank(cell)[-1] for cell in banks]
    right.plot(xs, ys, "o", color=COLOURS["gold"], markersize=5, alpha=0.6)
    right.plot([0.45, 0.95], [0.45, 0.95], color=COLOURS["exact"], linewidth=1, linestyle=":")
    left.set(xlabel=DISTANCE, ylabel="gold reward", ylim=(0.1, 0.95))
    left.set_title(f"Gold rises, then it falls\n(reward model of {sizes[-1]})", fontsize=10)
    middle.set(
        xlabel="labels that it has seen", ylabel="gold at its peak", xscale="log", ylim=(0.4, 0.95)
    )
    middle.set_xticks(counts[::2], [f"{count:,}" for count in counts[::2]])
    middle.minorticks_off()
    middle.set_title("More labels go with\na higher peak", fontsize=10)
    n = max(settings["best_of"])
    right.set(xlabel="gold at the peak of training", ylabel=f"gold, best of {n}")
    right.set_title(f"Best of {n} is higher\nthan most peaks", fontsize=10)
    small: Style = dict(fontsize=SMALL, title_fontsize=SMALL)
    left.legend(title="labels", loc="lower left", ncols=2, **small)
    middle.legend(title="reward model", loc="lower right", **small)
    for axis in (left, middle, right):
        axis.tick_params(labelsize=SMALL)
        axis.xaxis.label.set_size(9.5)
        axis.yaxis.label.set_size(9.5)


def median_curve(cells: Sequence[Numbers], of: str = "gold") -> tuple[Array, Array]:
    """Gold where each run first is so far away, the median, as far as more than half of them go.

    A median, because one answer of hundreds of nats can throw a run's mean KL far out for a moment.
    """
    runs = [[np.array(cell["points"][name], float) for name in ("kl", of)] for cell in cells]
    farthest = sorted(root_kl(cell["points"]).max() for cell in cells)
    grid = np.linspace(0, farthest[(len(cells) - 1) // 2], 80)
    medians = []
    for d in grid:
        found = [at_distance(kl, values[:, None], d**2) for kl, values in runs]
        medians.append(np.median([values[0] for values in found if values is not None]))
    return grid, np.array(medians)


def peak_of(cells: Sequence[Numbers], size: str, labels: int) -> float:
    """GRPO's peak gold, the mean over the starts; NaN without runs."""
    own = [c for c in cells if (c["size"], c["labels"]) == (size, labels)]
    peaks = [c["points"]["gold"][c["best"]] for c in own]
    return float(np.mean(peaks)) if peaks else float("nan")


# --- the cures ------------------------------------------------------------------------------------


def draw_cures(numbers: Numbers, docs: Path) -> None:
    """A panel per cure: its gold by distance, beside the median of the uncured runs.

    Marked in the uncured run: where the doctor, who sees no gold, would have stopped it.
    """
    rows = numbers["cures"]["runs"]
    names = list(dict.fromkeys(row["cure"] for row in rows))
    uncured = [row for row in rows if row["cure"] == "baseline"]
    title = (
        "Most remedies' curves lie near that of no remedy, and five starts cannot tell them apart"
    )
    with panels(docs / "overoptimisation_cures.png", len(names), 3, 1.9, title) as axes:
        for place, (axis, name) in enumerate(zip(axes, names, strict=True)):
            own = [row for row in rows if row["cure"] == name]
            for row in own:
                axis.plot(root_kl(row["points"]), row["points"]["gold"], **START)
            axis.plot(*median_curve(own), label="gold, median of the starts", **GOLD)
            if name == "baseline":
                seen = [row for row in numbers["cures"]["alarms"] if row["step"] is not None]
                d = [max(row["kl"], 0) ** 0.5 for row in seen]
                axis.plot(d, [row["gold"] for row in seen], label="the doctor's alarm", **ALARM)
            else:
                axis.plot(*median_curve(uncured), label="the median without a remedy", **OTHER)
            axis.set_title(CURES[name], fontsize=10)
            if place % 3 == 0:
                axis.set_ylabel("gold reward", fontsize=9.5)


def draw(numbers: Numbers, docs: Path) -> None:
    """The figures of the parts that are there."""
    for part, figure in (("law", draw_law), ("cures", draw_cures)):
        if part in numbers:
            figure(numbers, docs)
