"""The length bias is Dr. GRPO's to cure: without a division by its length a wrong answer does not grow."""

from __future__ import annotations

from claim.figures import curves
from claim.rules import Claim, Control, Effect, Rule, ahead_at_equal_accuracy, gap, instead

LEAST = 1.0  # token


def longer(key: str) -> Effect:
    """GRPO's average less Dr. GRPO's where both have made half of the smaller gain."""
    return ahead_at_equal_accuracy(key, "grpo", "grpo-constant", share=0.5)


CLAIM = Claim(
    title="The length bias is Dr. GRPO's to cure",
    arms=("grpo", "grpo-constant", "grpo-twin"),
    rule=Rule(
        "tokens, wrong answers, GRPO's average less Dr. GRPO's",
        LEAST,
        longer("length_wrong"),
    ),
    control=Control("GRPO's average twice, with other samples", instead(grpo_constant="grpo-twin")),
    draw=curves(
        {"grpo": "GRPO's average", "grpo-constant": "Dr. GRPO's average"},
        key="length_wrong",
        against="accuracy",
        xlabel="accuracy",
        ylabel="mean length of wrong answers (tokens)",
    ),
    also={
        "tokens, right answers at the same accuracy": longer("length_right"),
        "share of answers with steps at the same accuracy": longer("steps"),
        "tokens, wrong answers at the end": gap("grpo", "grpo-constant", "length_wrong"),
        "accuracy at the end": gap("grpo", "grpo-constant"),
    },
)
