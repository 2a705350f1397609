"""What pages and figures call metrics, numbers of report.json and engines; docs/metrics.md has the keys."""

from __future__ import annotations

import re

WORDS = {
    "approx_kl": "KL of one update (nats a token)",
    "clip_high_fraction": "share of tokens at the upper clip",
    "clip_low_fraction": "share of tokens at the lower clip",
    "correct_rate": "share of right answers",
    "critic_grad_norm": "gradient norm of the critic",
    "distinct_responses": "share of answers that differ",
    "entropy": "entropy (nats a token)",
    "eos_rate": "share of answers that ended",
    "gold_change": "gold, after minus before",
    "grad_norm": "gradient norm",
    "kl": "KL (nats an answer)",
    "kl_coef": "weight of the KL",
    "kl_from_start": "KL from the start (nats an answer)",
    "kl_k3": "KL by k3 (nats an answer)",
    "kl_new_old": "KL, updated from sampling policy (nats an answer)",
    "kl_old_new": "KL, sampling from updated policy (nats an answer)",
    "kl_per_token": "KL (nats a token)",
    "lr": "learning rate",
    "policy_tokens": "share of tokens in the policy loss",
    "prompts": "test prompts",
    "ratio_error_at_start": "error of the ratio at the start",
    "response_length": "tokens of an answer",
    "reverse_kl": "KL from the teacher (nats an answer)",
    "reverse_kl_full": "KL from the teacher, whole vocabulary (nats an answer)",
    "reward_change": "reward, after minus before",
    "reward_std": "standard deviation of the rewards",
    "single_step_kl": "KL of one step (nats a token)",
    "solve_rate": "share of prompts solved",
    "solve_rate_all": "share of prompts solved by all answers",
    "steps_per_response": "steps of an answer",
    "token_kl": "KL of a token (nats)",
    "unanswered": "share of answers that cannot be read",
    "value_clip_fraction": "share of tokens at the value clip",
    "win_rate": "share of prompts where it beats the start",
    "zero_spread_groups": "share of groups of equal rewards",
    "zero_spread_steps": "share of groups of equal step rewards",
}
# Commands that train, and presets of them.
ENGINES = {
    "cispo": "CISPO", "cispo_5": "CISPO, bound 5", "dapo": "DAPO", "dpo": "DPO",
    "dr_grpo": "Dr. GRPO", "grpo": "GRPO", "grpo_iterative": "iterative GRPO",
    "grpo_process": "process GRPO", "grpo_single_model": "single-model GRPO",
    "grpo_variants": "a variant of GRPO", "gspo": "GSPO", "kd_grpo": "KD-GRPO",
    "kd_ppo": "KD-PPO", "minillm": "MiniLLM", "on_policy_distillation": "on-policy distillation",
    "pg_grpo": "PG-GRPO", "ppo": "PPO", "pretraining": "pre-training",
    "reinforce_pp": "REINFORCE++", "reinforce_pp_baseline": "REINFORCE++, group mean",
    "rloo": "RLOO", "sapo": "SAPO",
}  # fmt: skip
MEASURED = {"validation/": "validation", "held_out_": "held out"}  # on what is not trained on


def base_of(key: str) -> str:
    """The key of a metric, whatever it is measured on."""
    for prefix in MEASURED:
        key = key.removeprefix(prefix)
    return key


def in_words(key: str) -> str:
    """A key as a reader would say it: fresh_accuracy/before is "fresh accuracy, before"."""
    return WORDS.get(key, key.replace("/", ", ").replace("_", " "))


def engine_in_words(script: str) -> str:
    """A module or file that trains, without its folder: rl.kd_ppo_engine is "KD-PPO"."""
    name = re.split(r"[./]", script.removesuffix(".py"))[-1].removesuffix("_engine")
    return ENGINES.get(name, name.replace("_", " "))
