"""MaxRL keeps pass@k: at equal pass@1 it solves more prompts in 32 tries than GRPO does."""

from __future__ import annotations

from claim.figures import curves
from claim.rules import Claim, Control, Rule, ahead_at_equal_accuracy, instead, last, points

CLAIM = Claim(
    title="MaxRL keeps pass@k",
    arms=("grpo", "grpo-twin", "maxrl"),
    rule=Rule("pass@32 ahead of GRPO", 0.0, ahead_at_equal_accuracy("pass@32", "maxrl")),
    control=Control("GRPO with another seed instead of MaxRL", instead(maxrl="grpo-twin")),
    draw=curves(
        {"grpo": "GRPO", "maxrl": "MaxRL"},
        key="pass@32",
        against="accuracy",
        xlabel="pass@1",
        ylabel="pass@32",
    ),
    also={
        "pass@8 ahead of GRPO": ahead_at_equal_accuracy("pass@8", "maxrl"),
        "pass@1 at the end, MaxRL": last("maxrl"),
        "pass@1 at the end, GRPO": last("grpo"),
        "pass@32 at the end, MaxRL": last("maxrl", "pass@32"),
        "pass@32 at the end, GRPO": last("grpo", "pass@32"),
        "pass@32 of the start": lambda runs: points(runs["grpo"], "pass@32")[0],
    },
)
