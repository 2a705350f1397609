"""Figures of a run: learning curves, and iterations side by side. Loaded when one is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from harness.files import save_figure


def running_mean(values: Sequence[float], width: int) -> list[float]:
    """Mean over the last `width` values at each position."""
    return [
        sum(values[max(0, i + 1 - width) : i + 1]) / min(i + 1, width) for i in range(len(values))
    ]


CURVES = (
    ("reward", "reward"),
    ("kl", "KL (nats per response)"),
    ("reverse_kl_full", "KL to the teacher (nats per response)"),
    ("response_length", "response length (tokens)"),
    ("entropy", "entropy (nats per token)"),
    ("accuracy", "training pairs in order (share)"),
)


def plot_learning_curves(
    rows: Sequence[Mapping[str, Any]], path: Path, title: str, gold_name: str = "gold reward",
    start: float | None = None,
) -> None:  # fmt: skip
    """Reward, validation gold, KL, length and entropy against the step; thin raw, bold mean.

    What an engine does not measure in training is drawn from its validations, as dots. `start` is
    the gold before training, on test prompts: a ring at step 0.
    """
    logged = {key for row in rows for key in row}
    sources = [(key if key in logged else f"validation/{key}", label) for key, label in CURVES]
    curves = [(key, label) for key, label in sources if key in logged]
    gold = [(row["step"], row["validation/gold"]) for row in rows if "validation/gold" in row]
    panels = len(curves) + bool(gold)
    figure = Figure(figsize=(3.4 * panels, 3.2), layout="constrained")
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    for axis, (key, label) in zip(axes, curves, strict=False):
        points = [(row["step"], row[key]) for row in rows if key in row]
        steps, values = zip(*points, strict=True)
        axis.set(xlabel="step", ylabel=label)
        if key.startswith("validation/"):
            axis.plot(steps, values, color="tab:blue", marker="o", linewidth=2)
            continue
        axis.plot(steps, values, color="tab:blue", alpha=0.3, linewidth=1)
        dot = "o" if len(steps) == 1 else None  # a line of one point is invisible
        axis.plot(steps, running_mean(values, 5), color="tab:blue", linewidth=2, marker=dot)
    if gold:
        steps, values = zip(*gold, strict=True)
        axes[-1].plot(steps, values, color="tab:green", marker="o", linewidth=2)
        if start is not None:
            axes[-1].plot([0], [start], "o", color="tab:green", fillstyle="none")
            axes[-1].annotate("before, on test prompts", (0, start), (6, -3), fontsize=7,
                              textcoords="offset points")  # fmt: skip
        axes[-1].set(xlabel="step", ylabel=f"{gold_name}, validation prompts")
    figure.suptitle(title)
    save_figure(figure, path)


ITERATION_CURVES = (
    ("validation/gold", "true objective, validation"),
    ("reward", "reward, by the model of the step"),
    ("kl", "KL from the reference (nats)"),
    ("validation/kl", "KL from the start (nats)"),
)


def draw_iterations(axes: Sequence[Any], runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Gold, reward and both KLs of named runs against the step; dashed where an iteration begins.

    For a run with iterations, or one that refreshes its reward model beside one that does not. The
    rewards of two models, so of two iterations, are on different scales; gold is on one. Needs an
    axis for each of ITERATION_CURVES that was logged.
    """
    for axis, (key, label) in zip(axes, _iteration_curves(runs), strict=True):
        for number, (name, rows) in enumerate(runs.items()):
            points = [(row["step"], row[key]) for row in rows if key in row]
            marker = "o" if key.startswith("validation/") else None
            axis.plot(*zip(*points, strict=True), color=f"C{number}", marker=marker, label=name)
        for begin in iteration_starts(next(iter(runs.values()))):
            axis.axvline(begin - 0.5, color="grey", linestyle="--", linewidth=0.8)
        axis.set(xlabel="step", ylabel=label)
    if len(runs) > 1:
        axes[0].legend()


def plot_iterations(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], path: Path, title: str
) -> None:
    """`draw_iterations` as a figure in a file."""
    panels = len(_iteration_curves(runs))
    figure = Figure(figsize=(3.6 * panels, 3.4), layout="constrained")
    draw_iterations(list(figure.subplots(1, panels, squeeze=False)[0]), runs)
    figure.suptitle(title)
    save_figure(figure, path)


def _iteration_curves(
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[tuple[str, str]]:
    logged = {key for rows in runs.values() for row in rows for key in row}
    return [(key, label) for key, label in ITERATION_CURVES if key in logged]


def iteration_starts(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """The steps at which a new iteration begins, without the first."""
    return [
        int(row["step"])
        for earlier, row in zip(rows, rows[1:], strict=False)
        if row.get("iteration") != earlier.get("iteration")
    ]
