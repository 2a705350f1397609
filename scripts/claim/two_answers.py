"""Two answers a group suffice: as many answers in groups of two teach as much as in groups of sixteen."""

from __future__ import annotations

from claim.figures import curves
from claim.rules import Claim, Control, Rule, gap, stopped_early

MARGIN = 0.05  # of the accuracy: what the paper's own loss of 2.4% rounds up to, twice


CLAIM = Claim(
    title="Two answers a group suffice",
    arms=("grpo-g2", "grpo", "grpo-g16"),
    rule=Rule("accuracy, groups of 2 less groups of 16", -MARGIN, gap("grpo-g2", "grpo-g16")),
    control=Control(
        "groups of 16 after 10 of 60 steps against groups of 16",
        stopped_early("grpo-g2", "grpo-g16"),
    ),
    draw=curves(
        {"grpo-g2": "groups of 2", "grpo": "groups of 8", "grpo-g16": "groups of 16"},
    ),
    also={
        "accuracy, groups of 2 less groups of 8": gap("grpo-g2", "grpo"),
        "accuracy, groups of 8 less groups of 16": gap("grpo", "grpo-g16"),
    },
)
