"""GRPO: which engines it is in, and its limit. Its gradients: test_first_gradient.py and tests/nano."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engines import DIVERSE, TOY, LetterSteps, engine_named, small_gpt
from toys import LETTERS, PROMPTS, weights
from watched import numbers

from rl import grpo_engine
from rl.grpo_engine import GRPOConfig
from rl.loop import Run
from rl.rewards.step_rewards import OutcomeSteps
from rl.run.config import warmed_up

# What is left of other engines where everything of their own is off

SEVERAL = dict(steps=2, minibatches=2, updates_per_batch=2, micro_batch_size=3, kl_coef=0.1)
PAIRS = dict(preference_coef=0.0, micro_batch_size=6)  # a group of four in one forward
# Engine, what is shared with GRPO, what turns its own off, and what turns it on again.
TURNED_OFF: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "variants": ("grpo_variants", {}, {}, dict(reducer="token_mean")),
    "variants, stopped": (
        "grpo_variants", dict(stop_kl=1.0, steps=12), {}, {},
    ),
    "variants, adaptive": (
        "grpo_variants",
        dict(kl_target=0.1, precision="bfloat16"), {}, {},
    ),
    "process, one step": (
        "grpo_process", {}, dict(step_reward_fn=OutcomeSteps()), dict(step_reward_fn=LetterSteps()),
    ),
    "one iteration": ("grpo_iterative", {}, dict(iterations=1), dict(iterations=2)),
    "single model": ("grpo_single_model", dict(kl_coef=0.0), {}, dict(kl_coef=1.0)),
    **{
        f"pairs: {name}": ("pg_grpo", PAIRS, dict(pairs=name), dict(preference_coef=1.0))
        for name in ("best_worst", "offline")
    },
    "teacher, k2": ("kd_grpo", dict(kl_estimator="k2"), {}, dict(policy_loss="reinforce")),
}  # fmt: skip


@pytest.mark.parametrize("case", TURNED_OFF)
def test_with_its_own_turned_off_an_engine_is_grpo_bit_for_bit(case):
    """Weights and metrics, given the same reward object, a teacher's too; with it on they differ."""
    name, shared, off, on = TURNED_OFF[case]
    engine, ends, logs = engine_named(name), [], []
    own = {key for key in shared if key not in GRPOConfig.__dataclass_fields__}
    settings = SEVERAL | shared
    config = GRPOConfig(**(TOY | {k: v for k, v in settings.items() if k not in own}))
    reward = engine.taught_by(engine.config, engine.teacher) if engine.taught_by else DIVERSE
    policy = small_gpt()
    rows = grpo_engine.train(Run(config, policy, LETTERS, reward, PROMPTS))
    for changes in (off, *([on] if on else [])):
        other = small_gpt()
        if changes.get("policy_loss") == "reinforce":
            changes = changes | dict(updates_per_batch=1)
        logs.append(numbers(engine.run(other, reward, **(settings | changes))))
        ends.append(weights(other))
    assert torch.equal(ends[0], weights(policy)) and not torch.equal(ends[0], weights(small_gpt()))
    shared_keys = rows[0].keys() | {"kept_step"}
    assert [{k: v for k, v in row.items() if k in shared_keys} for row in logs[0]] == numbers(rows)
    assert name != "grpo_variants" or logs[0][0].keys() == numbers(rows)[0].keys()
    assert ("stop_kl" in shared) == (len(rows) < config.steps)
    assert not on or not torch.equal(ends[1], ends[0])


def test_a_limit_of_a_kl_that_is_not_measured_is_refused(monkeypatch):
    """Without it the last policy inside would be the start, and all of the training lost."""
    run = Run(GRPOConfig(**TOY | dict(stop_kl=6.0)), small_gpt(), LETTERS, DIVERSE, PROMPTS)
    monkeypatch.setattr(run, "ref_log_probs", lambda *args: None)
    with pytest.raises(ValueError):
        grpo_engine.train(run)
    assert run.log.rows == []


def test_a_run_that_has_ended_trains_nobody_again():
    run = Run(GRPOConfig(**TOY | dict(steps=1)), small_gpt(), LETTERS, DIVERSE, PROMPTS)
    grpo_engine.train(run)
    with pytest.raises(RuntimeError):
        grpo_engine.train(run)


def test_the_seed_orders_the_prompts_of_a_run():
    """Four of eight at a step; each once in two steps."""
    orders = []
    for seed in (1, 1, 2):
        run = Run(GRPOConfig(**TOY | dict(seed=seed)), small_gpt(), LETTERS, DIVERSE, PROMPTS)
        orders.append([record.prompt for step in (0, 1) for record in run.prompts(step)])
        assert sorted(orders[-1]) == sorted(record.prompt for record in PROMPTS)
    assert orders[0] == orders[1] != orders[2]


def test_a_reference_is_not_frozen_once_a_run_has_begun():
    """It would be a copy of a policy that may have moved."""
    run = Run(GRPOConfig(**TOY), small_gpt(), LETTERS, DIVERSE, PROMPTS)
    run.restored()
    with pytest.raises(RuntimeError):
        run.freeze_reference()


# The limit of the KL

LOOSE = dict(lr=3e-2, kl_coef=0.0, updates_per_batch=1)


def test_a_resumed_run_undoes_what_leaves_the_kl_limit(tmp_path):
    """What was inside, and what the next step measures, are resumed, after whichever step it was cut.

    And the end is an end: resumed once more, with more steps too, the run trains nobody.
    """
    run = engine_named("grpo").run
    kls = [row["kl"] for row in run(small_gpt(), steps=6, stop_kl=1e9, **LOOSE)]
    outside = next(i for i in range(2, 6) if kls[i] > 1.2 * max(kls[:i]))
    options = LOOSE | dict(stop_kl=(max(kls[:outside]) + kls[outside]) / 2)
    whole = small_gpt()
    rows = run(whole, steps=6, **options)
    assert len(rows) == outside + 1 and rows[-1]["kept_step"] == outside - 1
    for cut in range(1, outside + 2):
        folder, resumed = tmp_path / str(cut), small_gpt()
        folder.mkdir()
        first = run(small_gpt(), steps=cut, folder=folder, **options)
        assert numbers(first[:outside]) == numbers(rows[: min(cut, outside)])
        torch.nn.init.normal_(resumed.wte.weight)  # everything comes from the file
        more = run(resumed, steps=6, folder=folder, resume=True, **options)
        assert numbers(more) == numbers(rows[cut:])
        assert torch.equal(weights(resumed), weights(whole))
        again = small_gpt()
        assert run(again, steps=9, folder=folder, resume=True, **options) == []
        assert torch.equal(weights(again), weights(whole))


def test_a_last_update_that_leaves_the_kl_limit_is_undone():
    """No rollout follows it: the validation measures it, and then what is kept."""
    kept, shorter, measured = small_gpt(), small_gpt(), iter([9.0, 0.5])
    options = LOOSE | dict(stop_kl=6.0)
    validate = lambda *_: {"validation/kl": next(measured)}  # noqa: E731
    rows = engine_named("grpo").run(kept, steps=2, validate=validate, **options)
    assert rows[-1]["kept_step"] == 1 and rows[-1]["validation/kl"] == 0.5
    engine_named("grpo").run(shorter, steps=1, **options)
    assert torch.equal(weights(kept), weights(shorter))


def test_only_the_last_validation_undoes_anything():
    """An earlier one is followed by a step, which measures its own rollout."""
    free, watched = small_gpt(), small_gpt()
    kls = iter([9.0, 9.0, 0.5])
    validate = lambda *_: {"validation/kl": next(kls)}  # noqa: E731
    options = LOOSE | dict(stop_kl=6.0, steps=3)
    rows = engine_named("grpo").run(free, **options)
    seen = engine_named("grpo").run(watched, validate=validate, eval_every=1, **options)
    assert [row.pop("validation/kl") for row in seen] == [9.0, 9.0, 0.5]
    assert numbers(seen) == numbers(rows) and torch.equal(weights(watched), weights(free))


@pytest.mark.parametrize(("warmup_steps", "told"), [(17, False), (18, True)])
def test_a_run_that_ends_within_its_warm_up_says_so(warmup_steps, told, capsys):
    config = GRPOConfig(steps=17, warmup_steps=warmup_steps)
    assert warmed_up(config, 8) == pytest.approx(9 / warmup_steps)
    assert ("--warmup-steps" in capsys.readouterr().out) == told
