"""Figures of the over-optimisation study, drawn from its JSON alone.

Small multiples: one question per panel, the comparison in grey behind it, the same axes everywhere.
Colours are Okabe and Ito's, and every line also has a style of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from studies.bootstrap import Array, at_distance
from studies.overoptimisation.results import FORMS

Numbers = Mapping[str, Any]
Style = dict[str, Any]
GREY: Style = dict(color="0.65", linewidth=1.6)
GOLD: Style = dict(color="#0072B2", linewidth=1.8)
PPO: Style = GOLD | dict(color="#CC79A7", linestyle="-.")
PROXY: Style = dict(color="#D55E00", linewidth=1.2, linestyle="--")
BEST_OF_N: Style = dict(color="#009E73", linewidth=1.4, linestyle="-", marker="o", markersize=3)
FITTED: Style = dict(color="black", linewidth=1.0, linestyle=":")
ALARM: Style = dict(color="#D55E00", marker="X", linestyle="", markersize=8)
# d at the right edge of the law's panels: few runs go on, and they would squeeze the rest.
FARTHEST = 8.0
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
SIZES = ("#E69F00", "#56B4E9", "#009E73", "#D55E00")
MARKERS = ("o", "s", "^", "D")
DISTANCE = "d = sqrt(KL in nats)"


def root_kl(points: Mapping[str, Sequence[float]]) -> Array:
    """d = sqrt(KL); a mean estimate a little below 0 counts as 0."""
    return np.sqrt(np.clip(np.array(points["kl"], float), 0, None))


def panels(count: int, columns: int, size: tuple[float, float]) -> tuple[Any, list[Any]]:
    """A grid of axes that share their scales; those that are left over are removed."""
    from matplotlib.figure import Figure

    rows = -(-count // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    for extra in axes[count:]:
        extra.remove()
    for axis in axes[:count]:
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    for place, axis in enumerate(axes[:count]):
        if place % columns == 0:
            axis.set_ylabel("gold reward", fontsize=8)
        if place >= count - columns:
            axis.tick_params(labelbottom=True)
            axis.set_xlabel(DISTANCE, fontsize=8)
    return figure, axes[:count]


# --- the law --------------------------------------------------------------------------------------


def draw_law(numbers: Numbers, docs: Path) -> None:
    """A panel per cell: gold of every start against d, best-of-n, the fitted form, a proxy."""
    law, settings = numbers["law"], numbers["settings"]
    names = [(size, labels) for size in settings["sizes"] for labels in settings["labels"]]
    figure, axes = panels(len(names), len(settings["labels"]), (2.5, 2.1))
    legend: dict[str, Any] = {}
    for axis, (size, labels) in zip(axes, names, strict=True):
        cells = [c for c in law["cells"] if (c["size"], c["labels"]) == (size, labels)]
        axis.set_title(f"{size}, {labels:,} labels", fontsize=9)
        for cell in cells:
            draw_cell(axis, cell, first=cell is cells[0])
        for fit in law["fits"]:
            if (fit["size"], fit["labels"], fit["kind"]) == (size, labels, "grpo") and cells:
                draw_fit(axis, fit, [cell for cell in cells if cell["engine"] == "grpo"])
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            legend.setdefault(label, handle)
    axes[0].set_xlim(-0.2, FARTHEST)
    figure.legend(
        list(legend.values()), list(legend), loc="outside lower center", ncols=6, fontsize=8
    )
    figure.savefig(docs / "overoptimisation_law.png", dpi=110)
    draw_price(numbers, docs / "overoptimisation.png")


def draw_cell(axis: Any, cell: Numbers, *, first: bool) -> None:
    """One start's run: gold, the proxy moved onto gold's scale, and best-of-n."""
    d, points = root_kl(cell["points"]), cell["points"]
    start = points["gold"][0]
    if cell["engine"] == "ppo":
        axis.plot(d, points["gold"], label="gold, PPO", **PPO)
        return
    axis.plot(d, points["gold"], label="gold, GRPO" if first else None, **GOLD)
    if first:  # the proxy's start is gold's and its end is 1: shape, not size
        proxy = np.array(points["proxy"], float)
        rise = max(float(proxy.max() - proxy[0]), 1e-6)
        scaled = start + (proxy - proxy[0]) / rise * (1 - start)
        axis.plot(d, scaled, label="proxy of the first start (scaled)", **PROXY)
    if "best_of_n" in cell:
        bank = cell["best_of_n"]
        gold = np.array(bank["gold"]) - bank["gold"][0] + start
        axis.plot(root_kl(bank), gold, label="gold, best of n" if first else None, **BEST_OF_N)


def draw_fit(axis: Any, fit: Numbers, cells: Sequence[Numbers]) -> None:
    """d (alpha - beta log d) over the range of the points."""
    farthest = max(float(root_kl(cell["points"]).max()) for cell in cells)
    start = float(np.mean([cell["points"]["gold"][0] for cell in cells]))
    d = np.linspace(0.2, max(farthest, 0.3), 100)
    curve = FORMS["RL"](d) @ np.array([fit["alpha"], fit["beta"]])
    axis.plot(d, start + curve, label="fitted form", **FITTED)


def draw_price(numbers: Numbers, path: Path) -> None:
    """For the front page: gold against d for the largest reward model, and its best by labels and size."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    law, settings = numbers["law"], numbers["settings"]
    figure = Figure(figsize=(9.2, 3.3), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    runs = [cell for cell in law["cells"] if cell["engine"] == "grpo"]
    size, blues = settings["sizes"][-1], colormaps["cividis_r"]
    shades = np.linspace(0.25, 0.95, len(settings["labels"]))
    for labels, shade, style in zip(settings["labels"], shades, LINES, strict=False):
        if cells := [c for c in runs if (c["size"], c["labels"]) == (size, labels)]:
            line: Style = dict(linestyle=style, color=blues(shade), linewidth=1.8)
            left.plot(*median_curve(cells), label=f"{labels:,} labels", **line)
    for name, color, marker in zip(settings["sizes"], SIZES, MARKERS, strict=False):
        pairs = [best_of_cells(runs, name, labels) for labels in settings["labels"]]
        drawn: Style = dict(color=color, marker=marker, linewidth=1.5, markersize=5)
        on_the_way, by_choice = zip(*pairs, strict=True)
        right.plot(settings["labels"], on_the_way, label=name, **drawn)
        right.plot(settings["labels"], by_choice, linestyle="--", **drawn | {"linewidth": 1.0})
    left.set(xlabel=DISTANCE, ylabel="gold reward")
    left.set_title(f"GRPO against a reward model of {size}")
    right.set(xlabel="labels that the reward model has seen", xscale="log")
    right.set_title("its best gold; dashed: best of n")
    for axis, title in ((left, ""), (right, "reward model")):
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(fontsize=8, frameon=False, title=title, title_fontsize=8)
    figure.savefig(path, dpi=110)


def median_curve(cells: Sequence[Numbers]) -> tuple[Array, Array]:
    """Gold where each run first is so far away, the median, as far as more than half of them go.

    A median, because one answer of hundreds of nats can throw a run's mean KL far out for a moment.
    """
    runs = [[np.array(cell["points"][name], float) for name in ("kl", "gold")] for cell in cells]
    farthest = sorted(root_kl(cell["points"]).max() for cell in cells)
    grid = np.linspace(0, farthest[(len(cells) - 1) // 2], 80)
    medians = []
    for d in grid:
        found = [at_distance(kl, gold[:, None], d**2) for kl, gold in runs]
        medians.append(np.median([gold[0] for gold in found if gold is not None]))
    return grid, np.array(medians)


def best_of_cells(cells: Sequence[Numbers], size: str, labels: int) -> tuple[float, float]:
    """GRPO's peak gold and the gold of the largest best-of-n, means over the starts; NaN without runs."""
    own = [c for c in cells if (c["size"], c["labels"]) == (size, labels)]
    best = [c["points"]["gold"][c["best"]] for c in own]
    chosen = [c["best_of_n"]["gold"][-1] for c in own if "best_of_n" in c]
    means = [float(np.mean(values)) if values else float("nan") for values in (best, chosen)]
    return means[0], means[1]


# --- the cures ------------------------------------------------------------------------------------


def draw_cures(numbers: Numbers, docs: Path) -> None:
    """A panel per cure: its gold against d, every start a line, the uncured run's runs in grey behind.

    Marked in the uncured run: where the doctor, who sees no gold, would have stopped it.
    """
    rows = numbers["cures"]["runs"]
    names = list(dict.fromkeys(row["cure"] for row in rows))
    figure, axes = panels(len(names), 3, (3.2, 2.4))
    for axis, name in zip(axes, names, strict=True):
        for cure, style in (("baseline", GREY), (name, GOLD)):
            for row in rows:
                if row["cure"] == cure and (cure, style) != ("baseline", GOLD):
                    axis.plot(root_kl(row["points"]), row["points"]["gold"], **style)
        if name == "baseline":
            seen = [row for row in numbers["cures"]["alarms"] if row["step"] is not None]
            d = [max(row["kl"], 0) ** 0.5 for row in seen]
            axis.plot(d, [row["gold"] for row in seen], label="the doctor's alarm", **ALARM)
            axis.legend(fontsize=7, frameon=False)
        axis.set_title(name.replace("_", " "), fontsize=9)
    figure.savefig(docs / "overoptimisation_cures.png", dpi=110)


DRAWN: dict[str, Callable[[Numbers, Path], None]] = {"law": draw_law, "cures": draw_cures}
