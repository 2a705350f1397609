"""RL's Razor: at equal accuracy reinforcement moves the policy less than fine-tuning does."""

from __future__ import annotations

from claim.figures import curves
from claim.rules import Claim, Control, Rule, Weakest, instead, log_ratio_at_equal_accuracy

OWN = "fine-tuned on its own right answers"


CLAIM = Claim(
    title="At equal accuracy RL moves less than fine-tuning",
    arms=("grpo", "grpo-twin", "sft-oracle", "sft-own"),
    rule=Weakest(
        (
            Rule(
                "log ratio of KL(start || policy)",
                0.1,
                log_ratio_at_equal_accuracy("kl_back", "sft-oracle"),
            ),
            Rule(
                "log ratio of KL(policy || start)",
                0.1,
                log_ratio_at_equal_accuracy("kl", "sft-oracle"),
            ),
        )
    ),
    control=Control("GRPO against GRPO with another seed", instead(sft_oracle="grpo-twin")),
    draw=curves(
        {"grpo": "GRPO", "sft-oracle": "fine-tuned on worked answers", "sft-own": OWN},
        key="kl_back",
        against="accuracy",
        xlabel="accuracy",
        ylabel="KL(start || policy),\nnats an answer",
    ),
    also={
        f"log ratio of KL(start || policy), {OWN}": log_ratio_at_equal_accuracy(
            "kl_back", "sft-own"
        ),
        f"log ratio of KL(policy || start), {OWN}": log_ratio_at_equal_accuracy("kl", "sft-own"),
    },
)
