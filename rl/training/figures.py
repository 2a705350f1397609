"""The learning curves of a run. Loaded when they are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from harness.files import save_figure


def running_mean(values: Sequence[float], width: int) -> list[float]:
    """Mean over the `width` values around each position, of fewer at both ends."""
    before, after = width // 2, width - width // 2
    windows = [values[max(0, i - before) : i + after] for i in range(len(values))]
    return [sum(window) / len(window) for window in windows]


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
    the gold before training, on test prompts: a ring at step 0. Dashed: an iteration begins.
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
    for earlier, row in zip(rows, rows[1:], strict=False):
        for axis in axes if row.get("iteration") != earlier.get("iteration") else ():
            axis.axvline(row["step"] - 0.5, color="grey", linestyle="--", linewidth=0.8)
    figure.suptitle(title)
    save_figure(figure, path)
