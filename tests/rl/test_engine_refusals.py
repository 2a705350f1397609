"""Flags that cannot work together are refused: by each engine's config, before anything is opened.

The range of a flag by itself is part of its type: tests/harness/test_flags.py.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engines import engine_named

from rl.grpo_variants_engine import OF_SEQUENCES

ONE, TWO = (Path("a"),), (Path("a"), Path("b"))
REFUSED: dict[str, list[dict[str, Any]]] = {
    "grpo": [
        dict(kl_target=6.0, kl_coef=0.0),
        dict(kl_estimator="k1"),  # as a loss it regularises nothing
        dict(reward_model=(Path("a"), Path("b/../a"))),
        dict(ensemble="min", reward_model=ONE),
        dict(group_size=1),
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
    "grpo_single_model": [dict(stop_kl=8.0)],
    "grpo_variants": [
        *(dict(surrogate=name, reducer="token_mean") for name in OF_SEQUENCES),
        dict(dual_clip=3.0, surrogate="cispo"),
        dict(dual_clip=1.1),
        dict(overlong_buffer=9),
        dict(reward_scale="mean", sampling_filter="dynamic", group_size=1),
    ],
    "kd_grpo": [
        dict(policy_loss="reinforce", updates_per_batch=2),
        dict(teacher_reward="sum", per_token=True),
        dict(reward="gold"),
        dict(reward_model=ONE),
    ],
    "kd_ppo": [
        dict(reward="model"),
        dict(kl_loss_coef=0.1),
    ],
    "minillm": [dict(kl_coef=0.1), dict(stop_kl=8.0), dict(reward="gold")],
    "on_policy_distillation": [
        dict(kl_coef=0.1),
        dict(stop_kl=8.0),
        dict(reward="gold"),
        dict(teacher=Path("self")),
        dict(lesson="{prompt}"),
        dict(lesson="{answer}{a}{prompt}"),
    ],
    "pg_grpo": [
        dict(label_smoothing=0.1, preference_loss="ipo"),
    ],
    "ppo": [dict(missing_eos_penalty=-1.0), dict(kl_loss_coef=0.1)],
    "rloo": [dict(updates_per_batch=2)],
    "reinforce_pp": [
        dict(variant="baseline"),
        dict(prompts_per_step=1),
    ],
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
