"""RL's Razor: at equal accuracy reinforcement moves the policy less than fine-tuning does."""

from __future__ import annotations

from claim.figures import curves
from claim.rules import Claim, Control, Rule, Weakest, instead, log_ratio_at_equal_accuracy

OWN = "fine-tuned on its own right answers"


CLAIM = Claim(
    title="At equal accuracy RL moves less than fine-tuning",
    source="2509.04259",
    says="Among the policies that solve a new task, on-policy RL finds one near to where it began, by "
    "KL(start || policy) on the task's prompts; fine-tuning on given answers may end anywhere, and so "
    "forgets more.",
    counts="Where both have four fifths of the smaller gain in accuracy, fine-tuning on an oracle's worked "
    "answers has moved further than GRPO, by more than a tenth and in both directions of the KL.",
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
