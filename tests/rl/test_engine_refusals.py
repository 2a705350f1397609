"""Flags that cannot work together are refused: by each engine's config, before anything is opened."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engines import BASELINE, engine_named

from rl.grpo_variants_engine import OF_SEQUENCES

WRONG = ("{prompt}", "{{answer}}{prompt}", "{answer}{a}{prompt}", "{answer.b}{prompt}")
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "dpo": [
        (dict(beta=0.0), "beta must be above 0"),
        (dict(label_smoothing=0.5), "label_smoothing.*below 0.5"),
        (dict(label_smoothing=-0.1), "label_smoothing.*at least 0"),
        (dict(loss="ipo", label_smoothing=0.1), "label_smoothing and the loss cdpo"),
        (dict(label_smoothing=0.1), "label_smoothing and the loss cdpo"),
        (dict(loss="cdpo"), "label_smoothing and the loss cdpo"),
        (dict(simpo_beta=0.0), "simpo_beta must be above 0"),
        (dict(target_margin=-0.1), "target_margin must not be negative"),
        (dict(micro_batch_size=1), "micro_batch_size must be at least 2"),
    ],
    "grpo_iterative": [
        (dict(steps=7, iterations=3), "7 steps cannot be divided into 3"),
        (dict(iterations=0), "iterations must be at least 1"),
        (dict(reward_model=(Path("a"), Path("b")), iterations=2), "2 reward models cannot be"),
        (dict(responses_per_prompt=1), "responses_per_prompt must be at least 2"),
        (dict(new_pairs=0), "new_pairs must be at least 1"),
        (dict(replay_fraction=-0.1), "at least 0 and below 1"),
        (dict(replay_fraction=1.0), "at least 0 and below 1"),
    ],
    "grpo_single_model": [
        (dict(stop_kl=8.0), "stop_kl 8.0 needs the KL from the start"),
        (dict(penalty="k1"), "penalty must be k3 or rho_minus_log: got 'k1'"),
    ],
    "grpo_variants": [
        *(
            (dict(surrogate=name, reducer="token_mean"), "token_mean would weigh")
            for name in OF_SEQUENCES
        ),
        (dict(dual_clip=3.0, surrogate="cispo"), "cispo has none"),
        (dict(dual_clip=1.1), "dual_clip must exceed"),
        (dict(overlong_buffer=0), "overlong_buffer must be in 1.."),
        (dict(overlong_buffer=9), "max_new_tokens = 8: got 9"),
        (dict(entropy_coef=-1.0), "must not be negative"),
        (dict(reward_scale="mean", sampling_filter="dynamic", group_size=1), "at least 2"),
    ],
    "kd_grpo": [
        ({"policy_loss": "reinforce", "updates_per_batch": 2}, "updates_per_batch must be 1"),
        ({"teacher_reward": "sum", "per_token": True}, "per_token belongs to reverse_kl"),
        ({"reference_update": "mix", "kl_coef": 0.0}, "give a kl_coef above 0"),
        ({"reference_mix": 0.0}, "reference_mix is a share"),
        ({"reference_every": 0}, "reference_every must be at least 1"),
        ({"own_text_coef": -0.1}, "own_text_coef must not be negative"),
        ({"reward": "gold"}, "the teacher is the reward"),
        ({"reward_model": (Path("x"),)}, "the teacher is the reward"),
    ],
    "kd_ppo": [
        (dict(reward="model"), "the teacher is the reward"),
        (dict(reward_model=(Path("x"),)), "the teacher is the reward"),
        (dict(kl_loss_coef=0.1), "would count the same KL twice"),
        (dict(reference_update="mix", kl_coef=0.0), "reference_update moves"),
        (dict(reference_every=0), "reference_every must be at least 1"),
        (dict(reference_mix=0.0), "reference_mix is a share, above 0 and at most 1"),
    ],
    "minillm": [
        (dict(teacher_share=1.0), "teacher_share must be in .0, 1."),
        (dict(teacher_share=-0.1), "teacher_share must be in .0, 1."),
        (dict(kl_coef=0.1), "leave --kl-coef and --stop-kl out"),
        (dict(stop_kl=8.0), "MiniLLM has no reference model"),
        (dict(reward="gold"), "the teacher is the reward"),
    ],
    "on_policy_distillation": [
        (dict(kl_coef=0.1), "leave --kl-coef and --stop-kl out"),
        (dict(stop_kl=8.0), "on-policy distillation has no reference model"),
        (dict(reward="gold"), "the teacher is the reward"),
        (dict(teacher=Path("self")), "add --group-size 8 --prompts-per-step 2"),
        *(
            (dict(lesson=lesson), "lesson must hold {answer}, end with {prompt}")
            for lesson in WRONG
        ),
    ],
    "pg_grpo": [
        (dict(preference_coef=-0.1), "preference_coef must not be negative"),
        (dict(margin=-1.0), "margin must not be negative"),
        (dict(dpo_beta=0.0), "dpo_beta must be above 0"),
        (dict(ratio_power=0.0), "ratio_power must be above 0"),
        (dict(label_smoothing=0.5), "label_smoothing.*below 0.5"),
        (dict(label_smoothing=0.1), "label_smoothing and the loss cdpo"),
        (dict(preference_loss=("cdpo",)), "label_smoothing and the loss cdpo"),
        (dict(preference_loss=("dpo", "ipo")), "one positive weight for each"),
        (dict(preference_weights=(0.0,)), "one positive weight for each"),
        (dict(preference_loss=(), preference_weights=()), "must name a loss"),
    ],
    "ppo": [
        (dict(gamma=1.5), "gamma must be in 0..1"),
        (dict(gae_lambda=-0.1), "gae_lambda must be in 0..1"),
        (dict(missing_eos="subtract"), "give a positive number, not -1.0"),
        (dict(value_clip=0.0), "value_clip must be above 0"),
        (dict(target_kl=0.0), "target_kl must be above 0"),
        (dict(kl_loss_coef=0.1), "would count the same KL twice"),
        (dict(kl_loss_coef=-0.1, kl_coef=0.0), "kl_loss_coef must not be negative"),
    ],
    "rloo": [
        (dict(updates_per_batch=2), "updates_per_batch must.*--loss"),
    ],
    "reinforce_pp": [
        (dict(variant="baseline"), "--group-size 8 --prompts-per-step 2,"),
        (dict(variant="baseline", prompts_per_step=128), "--group-size 8 --prompts-per-step 16"),
        (dict(prompts_per_step=1), "one response has no spread"),
        (dict(gamma=0.0), "gamma is a share, above 0 and at most 1"),
        (dict(gamma=1.5), "gamma is a share, above 0 and at most 1"),
        (dict(BASELINE, gamma=0.9), "gamma 0.9 has no meaning"),
    ],
}


@pytest.mark.parametrize(
    ("engine", "changes", "message"),
    [(engine, *row) for engine, rows in REFUSED.items() for row in rows],
)
def test_what_cannot_work_is_refused(engine, changes, message):
    with pytest.raises(ValueError, match=message):
        replace(engine_named(engine).config, **changes)


@pytest.mark.parametrize(
    ("engine", "changes"),
    [
        # A KL to hold on to.
        ("kd_ppo", dict(reference_update="mix", kl_coef=0.0, kl_loss_coef=0.1)),
        ("rloo", dict(minibatches=4)),  # new samples, disjoint rows
        ("rloo", dict(updates_per_batch=2, loss="clipped")),
        ("rloo", dict(updates_per_batch=2, loss="token")),
    ],
)
def test_what_can_work_beside_it_is_accepted(engine, changes):
    config = replace(engine_named(engine).config, **changes)
    assert vars(config).items() >= changes.items()
