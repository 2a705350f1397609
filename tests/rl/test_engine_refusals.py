"""Flags that no run can mean and flags that cannot work together: refused when a config is made."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engines import engine_named

from gpt.finetuning import FinetuningConfig
from gpt.pretraining import PretrainingConfig
from reward_model.reward_model_training import RewardModelConfig
from rl.grpo_variants_engine import OF_SEQUENCES
from rl.run.config import EngineConfig
from scripts.demo import DemoConfig

NAN = float("nan")


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (EngineConfig, dict(steps=0)), (EngineConfig, dict(lr=-1.0)), (EngineConfig, dict(lr=NAN)),
        (EngineConfig, dict(temperature=0.0)), (EngineConfig, dict(stop_kl=-math.inf)),
        (EngineConfig, dict(stop_kl=0.0)), (EngineConfig, dict(kl_coef=math.inf)),
        (RewardModelConfig, dict(borrowed_responses=5, repeated_responses=3)),
        (DemoConfig, dict(seeds=0)),
    ],
)  # fmt: skip
def test_what_no_run_can_mean(config, changes):
    with pytest.raises(ValueError):
        config(**changes)


def test_the_edges_are_allowed():
    config = EngineConfig(
        steps=1, lr=0.0, warmup_steps=0, eval_prompts=0, test_prompts=0, max_grad_norm=1e-9
    )
    assert config.stop_kl == 6.0 and EngineConfig(stop_kl=None).stop_kl is None
    assert EngineConfig(stop_kl=math.inf, max_grad_norm=math.inf).max_grad_norm == math.inf
    assert FinetuningConfig().steps is None and PretrainingConfig(dropout=0.0).dropout == 0


ONE, TWO = (Path("a"),), (Path("a"), Path("b"))
# Of engines that learn from a teacher alone.
OF_REWARDS = (dict(kl_coef=0.1), dict(stop_kl=8.0), dict(missing_eos_penalty=1.0))
REFUSED: dict[str, list[dict[str, Any]]] = {
    "grpo": [
        dict(kl_target=6.0, kl_coef=0.0),
        dict(kl_estimator="k1"),  # as a loss it regularises nothing
        dict(reward_model=(Path("a"), Path("b/../a"))),
        dict(ensemble="min", reward_model=ONE),
        dict(group_size=1),
        dict(missing_eos_penalty=-1.0),
    ],
    "dpo": [
        dict(label_smoothing=0.5),
        dict(loss="ipo", label_smoothing=0.1),
        dict(micro_batch_size=1),
    ],
    "grpo_iterative": [
        dict(steps=7, iterations=3),
        dict(reward_model=TWO, iterations=2),
        dict(replay_fraction=1.0),
    ],
    "grpo_process": [dict(missing_eos_penalty=1.0)],
    "grpo_single_model": [dict(stop_kl=8.0)],
    "grpo_variants": [
        *(dict(surrogate=name, reducer="token_mean") for name in OF_SEQUENCES),
        dict(dual_clip=3.0, surrogate="cispo"),
        dict(dual_clip=1.1),
        dict(missing_eos_penalty=1.0),
        dict(overlong_buffer=9),
        dict(reward_scale="mean", sampling_filter="dynamic", group_size=1),
    ],
    "kd_grpo": [
        dict(policy_loss="reinforce", updates_per_batch=2),
        dict(teacher_reward="sum", per_token=True),
        dict(reward="gold"),
        dict(reward_model=ONE),
    ],
    "kd_ppo": [dict(reward="model"), dict(kl_loss_coef=0.1), dict(missing_eos_penalty=1.0)],
    "minillm": [*OF_REWARDS, dict(reward="gold")],
    "on_policy_distillation": [
        *OF_REWARDS,
        dict(reward="gold"),
        dict(teacher="self"),
        dict(lesson="{prompt}"),
        dict(lesson="{answer}{a}{prompt}"),
    ],
    "pg_grpo": [dict(label_smoothing=0.1, preference_loss="ipo")],
    "ppo": [dict(kl_loss_coef=0.1)],
    "rloo": [dict(updates_per_batch=2)],
    "reinforce_pp": [dict(variant="baseline"), dict(prompts_per_step=1)],
}


@pytest.mark.parametrize("engine", REFUSED)
def test_what_cannot_work_is_refused(engine):
    for changes in REFUSED[engine]:
        with pytest.raises(ValueError):
            replace(engine_named(engine).config, **changes)


@pytest.mark.parametrize(
    ("engine", "changes"),
    [
        ("rloo", dict(minibatches=4)),  # new samples, disjoint rows
        ("rloo", dict(updates_per_batch=2, loss="clipped")),
        ("rloo", dict(updates_per_batch=2, loss="token")),
    ],
)
def test_what_can_work_beside_it_is_accepted(engine, changes):
    config = replace(engine_named(engine).config, **changes)
    assert vars(config).items() >= changes.items()
