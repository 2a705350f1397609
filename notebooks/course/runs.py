"""What pages with a training run share: the truth beside a learned reward, and the curves of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from torch import Tensor

from course import plots
from rl.batches.rollout import Rollout
from rl.rewards.reward import RewardFn

Rows = Sequence[Mapping[str, Any]]

# Of each metric the meaning that gives a single run its colour, and the label of its axis.
METRICS: dict[str, tuple[str, str]] = {
    "reward": ("proxy", "reward model's\nscore (std)"),
    "gold": ("gold", "gold reward (0 to 1)"),
    "kl": ("policy", "KL from the reference\n(nats per response)"),
    "response_length": ("policy", "length (tokens)"),
    "entropy": ("policy", "entropy (nats per token)"),
    "clipped": ("policy", "clipped tokens (share)"),
    "value_loss": ("critic", "value loss"),
    "explained_variance": ("critic", "explained variance"),
}
SIGNED = ("reward", "explained_variance")  # all others begin at 0


class WithGold:
    """A learned reward to train on; the gold reward of the same responses goes to the log alone."""

    name = "reward model, gold beside it"

    def __init__(self, learned: RewardFn, gold: RewardFn) -> None:
        self.learned, self.gold = learned, gold

    def __call__(self, rollout: Rollout) -> Tensor:
        return self.learned(rollout)

    def with_metrics(self, rollout: Rollout) -> tuple[Tensor, dict[str, float]]:
        """The learned rewards (N,), and the mean gold reward for the log."""
        return self.learned(rollout), {"gold": float(self.gold(rollout).mean())}


def metric(row: Mapping[str, Any], key: str) -> float:
    """A number of a metrics row; "clipped" adds the clip's two sides up.

    NaN where it was not measured, such as the KL of a run with a coefficient of 0.
    """
    if key == "clipped":
        return row["clip_low_fraction"] + row["clip_high_fraction"]
    return row.get(key, math.nan)


def curves(
    runs: Mapping[str, Rows],
    keys: Sequence[str],
    *,
    columns: int = 3,
    smooth: int = 1,
    title: str = "",
) -> None:
    """One panel per metric, one line per run; `smooth` draws the mean of so many steps over them.

    An axis begins at 0 where the metric cannot be negative, or a small change would look large.
    """
    lines = -(-len(keys) // columns)
    figure, axes = plt.subplots(
        lines,
        columns,
        figsize=(10, 2.2 * lines + (0.8 if len(runs) > 1 else 0.2)),
        sharex=True,
        squeeze=False,
    )
    for axis, key in zip(axes.flat, keys, strict=True):
        meaning, label = METRICS[key]
        series = {
            name: ([row["step"] for row in rows], [metric(row, key) for row in rows])
            for name, rows in runs.items()
        }
        styles = dict.fromkeys(runs, meaning) if len(runs) == 1 else {}
        plots.curves(series, axis=axis, smooth=smooth, styles=styles, ylabel=label)
        if key not in SIGNED:
            axis.set_ylim(0, None)
        axis.get_legend().remove()
    for axis in axes[-1]:
        axis.set_xlabel("step (rollout batch)")
    if len(runs) > 1:
        handles = axes.flat[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside upper center", ncols=len(runs))
    if title:
        figure.suptitle(title, fontsize="medium", x=0.01, ha="left")
    plt.show()
