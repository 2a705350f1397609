"""LoRA of rank 1 suffices for RL: it ends where training all weights does."""

from __future__ import annotations

from claim.figures import curves
from claim.rules import Claim, Control, Rule, gap, stopped_early

MARGIN = 0.05  # of the accuracy, as for two answers a group


CLAIM = Claim(
    title="LoRA of rank 1 suffices for RL",
    arms=("grpo", "lora-1"),
    rule=Rule("accuracy, rank 1 less all weights", -MARGIN, gap("lora-1", "grpo")),
    control=Control(
        "all weights after 10 of 60 steps against all 60", stopped_early("lora-1", "grpo")
    ),
    draw=curves({"grpo": "all weights", "lora-1": "LoRA, rank 1"}),
    also={
        "KL(policy || start), rank 1 less all weights, nats an answer": gap("lora-1", "grpo", "kl"),
    },
)
