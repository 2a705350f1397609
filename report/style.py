"""How figures look, on pages of the course, in docs and in reports: a colour has one meaning everywhere."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

# The eight colours of Okabe and Ito, then three of Paul Tol's muted scheme. Both sets are chosen so
# that every common kind of colour blindness can tell them apart.
COLOURS: dict[str, str] = {
    "policy": "#0072B2",  # what is trained; a student, too
    "reference": "#7F7F7F",  # the frozen copy; the model before training
    "proxy": "#E69F00",  # the learned reward: a reward model's score
    "gold": "#009E73",  # the reward that is meant; what is good
    "critic": "#CC79A7",  # values, returns, TD errors
    "teacher": "#56B4E9",
    "exact": "#000000",  # the true number: enumerated, or a bound
    "bad": "#D55E00",  # a trap, a planted bug, what should not happen
    "k1": "#882255",
    "k2": "#999933",
    "k3": "#44AA99",
}
# For what has no meaning of its own, such as seeds and settings of a sweep: purples, from dark to light,
# which no meaning uses. Lines and markers tell them apart where the shades do not.
SERIES = ("#2B1B4D", "#6A4FA3", "#9E8BC9", "#463C57", "#8574A8", "#B9AED6")

RC: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "axes.axisbelow": True,
    "axes.titlesize": "medium",
    "axes.titlelocation": "left",
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "font.size": 11,
    "legend.framealpha": 0.85,
    "legend.edgecolor": "none",
    "lines.linewidth": 2,
}


def styled() -> AbstractContextManager[None]:
    """Inside, matplotlib draws in this style: `with styled(): ...`."""
    import matplotlib as mpl

    return mpl.rc_context(RC)
