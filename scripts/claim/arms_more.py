"""More runs: groups of other sizes, coins for rewards, adapters, Dr. GRPO's average, a student."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from claim import arms, worlds
from claim.arms import Arm, rl_arm, rl_run
from claim.rules import Run
from gpt.log_probs import token_log_probs
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from harness.frozen_copy import frozen_copy
from harness.seeds import make_generator
from rl import on_policy_distillation_engine as student
from rl.batches.rollout import Rollout

LAST = 2  # measured points whose mean is where a run ends: less noise than the last alone
UNCLIPPED = 1e9
LORA_LR = 5e-3  # the best of 1.5e-3, 5e-3, 1e-2 and 2e-2 on a seed of its own (900)
STUDENT_LR = 1.5e-4  # the best of 1.5e-4, 5e-4 and 1e-3 on that seed


def end(run: Run, key: str = "accuracy") -> float:
    """Where a run ends."""
    kept = [point[key] for point in run["points"][-LAST:]]
    return float(sum(kept) / len(kept))


def gap(arm: str, other: str, key: str = "accuracy") -> Callable[[Mapping[str, Run]], float]:
    """How much further one arm ends than another."""
    return lambda runs: end(runs[arm], key) - end(runs[other], key)


def gain(arm: str, key: str = "accuracy") -> Callable[[Mapping[str, Run]], float]:
    """How much further a run ends than it began."""
    return lambda runs: end(runs[arm], key) - runs[arm]["points"][0][key]


def stopped_early(runs: Mapping[int, Run], points: int = 2) -> dict[int, Run]:
    """The same runs as if they had ended at a measured point: known to have learned less."""
    return {seed: {**run, "points": run["points"][:points]} for seed, run in runs.items()}


# --- rewards that are coins -----------------------------------------------------------------------


class Coins:
    """1 or 0 for every answer, whatever it says."""

    name = "coins"

    def __init__(self, seed: int) -> None:
        self.generator = make_generator(seed, "coins")

    def __call__(self, rollout: Rollout) -> Tensor:
        return torch.randint(2, (len(rollout),), generator=self.generator).float()


def coins_arm(**flags: Any) -> Arm:
    """GRPO on coins; `preference` is how likely the start finds what a policy says, nats an answer."""

    def run(root: Path, seed: int) -> dict[str, Any]:
        start, _ = worlds.open_start(root, worlds.SHARE, seed)

        @torch.no_grad()
        def preference(policy: GPT, tokenizer: Tokenizer) -> dict[str, float]:
            found = {}
            for name, model in (("preference_before", start), ("preference", policy)):
                rollout = worlds.sampled(model, tokenizer)
                log_probs = token_log_probs(start, rollout.sequences)
                found[name] = float(log_probs.sum(1).mean())
            return found

        return rl_run(root, seed, steps=30, reward=Coins(seed), after=preference, **flags)

    return Arm(run)


# --- a student of its own later self --------------------------------------------------------------


def distilled(root: Path, seed: int) -> dict[str, Any]:
    """GRPO's policy of a seed teaches the start that it came from."""
    trained: list[GPT] = []

    def keep(policy: GPT, tokenizer: Tokenizer) -> dict[str, Any]:
        trained.append(frozen_copy(policy))
        return {}

    rl_run(root, seed, eval_every=arms.TRAINING["steps"], after=keep)
    flags: dict[str, Any] = dict(
        steps=24, eval_every=2, prompts_per_step=32, group_size=1, lr=STUDENT_LR, warmup=0
    )
    config = student.ENGINE.config(**arms.TRAINING | flags)
    teacher = student.teacher_reward(config, trained[0])
    return rl_run(root, seed, engine=student, reward=teacher, **flags)


ARMS: dict[str, Arm] = arms.ARMS | {
    "grpo-g2": rl_arm(prompts_per_step=16, group_size=2),
    "grpo-g16": rl_arm(prompts_per_step=2, group_size=16),
    "coins-clip": coins_arm(updates_per_batch=4),
    "coins-free": coins_arm(updates_per_batch=4, clip_low=UNCLIPPED, clip_high=UNCLIPPED),
    "coins-once": coins_arm(minibatches=1),
    "lora-1": rl_arm(lora_rank=1, lr=LORA_LR),
    "distilled": Arm(distilled),
    "grpo-constant": rl_arm(reducer="constant_length_mean"),
}
