"""The KL limit where the reference moves: it bounds the distance from the start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from engines import DIVERSE, Engine, engine_named, small_gpt
from toys import LETTERS, weights
from watched import Noted, Validations, numbers

from gpt.recipes import Start, resolved
from rl.batches.rollout import rollout_log_probs
from rl.equations.kl import k1
from rl.grpo_engine import GRPOConfig
from rl.loop import Run
from rl.run.kl_limit import KLLimit

STEPS = 9
OPTIONS: dict[str, Any] = dict(lr=2e-2, kl_coef=0.0, updates_per_batch=1, steps=STEPS)
MOVING = {"grpo_iterative": dict(iterations=3), "kd_grpo": dict(renew_reference=3)}
MOVING["kd_ppo"] = MOVING["kd_grpo"]


def moving(name: str) -> tuple[Engine, dict[str, Any]]:
    engine = engine_named(name)
    own = MOVING[name] | OPTIONS | (dict(reward_fn=DIVERSE) if engine.rule else {})
    return engine, own


@pytest.mark.parametrize("name", MOVING)
def test_a_limit_bounds_the_distance_from_the_start_and_not_from_a_reference_that_moves(
    tmp_path, name
):
    """It ends the run where kl_from_start passes it, though each kl stays far below; resumed, too."""
    engine, options = moving(name)
    free = engine.run(small_gpt(), stop_kl=1e9, **options)
    near, far = ([row[key] for row in free] for key in ("kl", "kl_from_start"))
    assert far[:3] == pytest.approx(near[:3], abs=1e-6)  # before the reference moves they are one
    assert near[3] == pytest.approx(0, abs=1e-5) and far[3] > 0.01
    outside = next(i for i in range(4, STEPS) if far[i] > 1.05 * max(*far[:i], *near))
    limit = (max(*far[:outside], *near) + far[outside]) / 2
    policy, seen = small_gpt(), Validations()
    rows = engine.run(policy, stop_kl=limit, validate=seen, **options)
    assert rows[-1].pop("kept_step") == outside - 1
    assert numbers(rows) == numbers(free[: outside + 1]) and seen.steps == [outside + 1]
    assert torch.equal(weights(seen.references[-1]), weights(small_gpt()))  # the start

    resumed, cut = small_gpt(), options | dict(folder=tmp_path, stop_kl=limit)
    with pytest.raises(KeyboardInterrupt):  # behind the reference's first move
        stopping = Interrupting(outside - 1)
        engine.run(small_gpt(), validate=stopping, eval_every=1, save_every=1, **cut)
    torch.nn.init.normal_(resumed.wte.weight)  # everything comes from the file
    rows = engine.run(resumed, resume=True, **cut)
    assert rows[-1]["kept_step"] == outside - 1
    assert torch.equal(weights(resumed), weights(policy))


def test_the_start_that_a_run_is_given_is_the_one_that_the_limit_measures_from():
    start, given = small_gpt(1), engine_named("kd_grpo").config
    """It is not saved: whoever resumes gives it again. One that the run has made itself is."""
    limited = replace(given, stop_kl=6.0)
    for moves, own in ((True, {"start", "reference"}), (False, {"reference"})):
        run = Run(limited, small_gpt(), LETTERS, start=start)
        assert (run.freeze_reference(moves=moves) is start) != moves and run.start is start
        assert {"start", "reference"} & run.parts.keys() == ({"reference"} if moves else set())
        run = Run(limited, small_gpt(), LETTERS)
        run.freeze_reference(moves=moves)
        assert {"start", "reference"} & run.parts.keys() == own


class Interrupting(Validations):
    """Ends the run at a step."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def __call__(self, policy, reference, step):
        if step == self.at:
            raise KeyboardInterrupt
        return {}


def test_kl_from_start_is_the_mean_over_responses_of_k1_from_the_start():
    """By another forward of the start; without a limit it is not measured."""
    engine, options = moving("grpo_iterative")
    options["reward_fn"] = noted = Noted(DIVERSE)
    rows = engine.run(small_gpt(), stop_kl=1e9, **options)
    for row, rollout in zip(rows, noted.rollouts, strict=True):
        ref = rollout_log_probs(small_gpt(), rollout, engine.config)
        kl = torch.where(rollout.response_mask, k1(rollout.log_probs, ref), 0.0).sum(1).mean()
        assert row["kl_from_start"] == pytest.approx(float(kl), abs=1e-5)
    assert "kl_from_start" not in engine.run(small_gpt(), **options)[0]


def test_one_set_of_weights_is_kept_and_only_of_policies_inside():
    policy = small_gpt()
    limit = KLLimit(policy, limit=6.0)
    places = {name: tensor.data_ptr() for name, tensor in limit.inside.items()}
    for steps, kl in enumerate([0.0, 1.0, 9.0]):
        torch.nn.init.constant_(policy.wte.weight, steps)
        limit.before_update(kl, 0.0, steps)
        assert {name: tensor.data_ptr() for name, tensor in limit.inside.items()} == places
        assert limit.after_step() == ({} if kl < 6 else {"kept_step": 1})
    assert policy.wte.weight.unique().tolist() == [1.0]


@pytest.mark.parametrize("name", ["grpo", "kd_grpo"])
def test_a_limit_per_token_undoes_the_update_that_leaves_it(name):
    """Though no response is far away; kl_per_token is the KL of all responses over all their tokens.

    Where the reference moves it is of the KL from the start.
    """
    engine = engine_named(name)
    own = MOVING[name] if name in MOVING else {}
    options = OPTIONS | own | (dict(reward_fn=DIVERSE) if engine.rule else {})
    free = engine.run(small_gpt(), stop_kl=1e9, **options)
    key = "kl_from_start" if own else "kl"
    far = [row[key] / row["response_length"] for row in free]
    assert own or [row["kl_per_token"] for row in free] == pytest.approx(far)
    near = [row["kl_per_token"] for row in free] if own else [0.0]
    outside = next(i for i in range(4, STEPS) if far[i] > 1.05 * max(*far[:i], *near))
    policy, shorter = small_gpt(), small_gpt()
    limit = (max(*far[:outside], *near) + far[outside]) / 2
    rows = engine.run(policy, stop_kl_per_token=limit, **options)
    assert rows[-1].pop("kept_step") == outside - 1 and len(rows) == outside + 1
    engine.run(shorter, stop_kl=1e9, **options | dict(steps=outside - 1))
    assert torch.equal(weights(policy), weights(shorter))


def test_the_last_validation_is_held_to_the_limit_per_token():
    found = iter([{"validation/kl": 1.0, "validation/kl_per_token": 0.3}, {"validation/kl": 0.1}])
    options = OPTIONS | dict(steps=2, stop_kl=6.0, stop_kl_per_token=0.25, lr=1e-4)
    rows = engine_named("grpo").run(small_gpt(), validate=lambda *_: next(found), **options)
    assert rows[-1]["kept_step"] == 1


@pytest.mark.parametrize(
    ("data", "start", "limit"),
    [
        ("pairs.jsonl", {"chat", "larger"}, 0.25),
        ("instructions", {"chat", "larger"}, None),  # whose answers are short
        ("reviews", {"fresh", "tiny"}, None),
    ],
)
def test_the_limit_per_token_is_for_free_answers_of_models_that_write_well(data, start, limit):
    found = resolved(GRPOConfig, Start(frozenset(start), int(1.3e8), "tiny"), data, False)
    assert found.get("stop_kl_per_token", (None,))[0] == limit
