"""What a run of a study is: a script of this project and its flags, by a name.

The one list of engines that studies know by hand. A study takes the names that are its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from data import reviews, sums
from data.records import PromptRecord

BOTH = ("reviews", "sums")
LONGEST = {"reviews": 48, "sums": 40}  # tokens of an answer


def prompts_of(world: str, split: str, count: int) -> list[PromptRecord]:
    """The first prompts of a split."""
    if world == "sums":
        return sums.prompts(split, count=count)
    return reviews.prompts(split)[:count]


@dataclass(frozen=True)
class Recipe:
    """How a run is made, beside its preset, its start and its seed."""

    module: str
    flags: Mapping[str, Any] = field(default_factory=dict)
    worlds: tuple[str, ...] = BOTH


def words(flags: Mapping[str, Any]) -> list[str]:
    """Flags as a command line has them: --name value, and --name or --no-name of a switch."""
    line: list[str] = []
    for name, value in flags.items():
        name = name.replace("_", "-")
        if isinstance(value, bool):
            line.append(f"--{name}" if value else f"--no-{name}")
        else:
            line += [f"--{name}", str(value)]
    return line


ITERATIVE, KD_GRPO, KD_PPO = "rl.grpo_iterative_engine", "rl.kd_grpo_engine", "rl.kd_ppo_engine"
MINILLM, REINFORCE = "rl.minillm_engine", "rl.reinforce_pp_engine"
ON_POLICY = "rl.on_policy_distillation_engine"
VARIANTS, DISTILLATION = "rl.grpo_variants_engine", "gpt.distillation"

ENGINES = {  # that learn from a reward
    "grpo": Recipe("rl.grpo_engine"),
    "ppo": Recipe("rl.ppo_engine"),
    "rloo": Recipe("rl.rloo_engine"),
    "reinforce_pp": Recipe(REINFORCE),
    "reinforce_pp_baseline": Recipe(
        REINFORCE, dict(variant="baseline", prompts_per_step=16, group_size=8)
    ),
    "grpo_single_model": Recipe("rl.grpo_single_model_engine"),
    "dapo": Recipe(VARIANTS, dict(variant="dapo")),
    "dr_grpo": Recipe(VARIANTS, dict(variant="dr_grpo")),
    "gspo": Recipe(VARIANTS, dict(variant="gspo")),
    "cispo": Recipe(VARIANTS, dict(variant="cispo")),
    "sapo": Recipe(VARIANTS, dict(variant="sapo")),
    "grpo_process": Recipe("rl.grpo_process_engine", worlds=("sums",)),
    "grpo_iterative": Recipe(ITERATIVE, worlds=("reviews",)),
    "grpo_iterative_frozen": Recipe(
        ITERATIVE, dict(refresh_reward_model=False), worlds=("reviews",)
    ),
}
ALONE: dict[str, Any] = dict(kl_coef=0, pretraining_coef=0)  # nothing else that holds back
STUDENTS = {  # that learn from a teacher
    "forward_kl": Recipe(DISTILLATION),
    "reverse_kl": Recipe(DISTILLATION, dict(loss="reverse_kl")),
    "topk_ce": Recipe(DISTILLATION, dict(loss="topk_ce")),
    "kd_grpo": Recipe(KD_GRPO),
    "kd_ppo": Recipe(KD_PPO),
    "minillm": Recipe(MINILLM),
    "on_policy_distillation": Recipe(ON_POLICY),
    "on_policy_distillation_full": Recipe(ON_POLICY, dict(divergence="full")),
    "kd_grpo_per_token": Recipe(KD_GRPO, dict(per_token=True)),
    # Without the student's log-probs: what collapses.
    "kd_grpo_sum": Recipe(KD_GRPO, dict(teacher_reward="sum") | ALONE),
    "kd_grpo_mean": Recipe(KD_GRPO, dict(teacher_reward="mean") | ALONE),
    "kd_grpo_reverse_kl": Recipe(KD_GRPO, ALONE),
    # The weight of the text, and the notes' bonus in its place.
    "kd_grpo_text_0": Recipe(KD_GRPO, dict(pretraining_coef=0)),
    "kd_grpo_text_1": Recipe(KD_GRPO, dict(pretraining_coef=1)),
    "minillm_text_0": Recipe(MINILLM, dict(pretraining_coef=0)),
    "kd_ppo_text_0": Recipe(KD_PPO, dict(pretraining_coef=0)),
    "kd_ppo_bonus_1": Recipe(KD_PPO, dict(pt_mode="reward_bonus", pretraining_coef=1)),
}
PAIRS = {  # that learn from pairs
    "dpo": Recipe("rl.dpo_engine"),
    "dpo_long": Recipe("rl.dpo_engine", dict(steps=600)),
    **{
        f"pg_grpo_{mode}_{weight}": Recipe(
            "rl.pg_grpo_engine", dict(pairs=mode, preference_coef=weight)
        )
        for mode in ("best_worst", "all", "offline", "both")
        for weight in (0.1, 1, 10)
    },
}
RECIPES = ENGINES | STUDENTS | PAIRS
