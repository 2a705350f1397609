"""PG-GRPO end to end on a GPT of two layers: the pairs and the two losses."""

from __future__ import annotations

import copy
import math
import statistics
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engines import DIVERSE, SHARE_OF_A, engine_named, small_gpt
from slow import log_prob, tokens_of
from toys import GLASSBOX, glassbox_gpt, split_by_question, weights
from watched import Noted, Validations

from harness.errors import UserError
from harness.files import append_jsonl
from rl.batches.preferences import Compared
from rl.equations.advantages import best_worst_pairs
from rl.pg_grpo_engine import preference_loss, recorded_pairs
from rl.rewards.reward import RuleReward

PG_GRPO = engine_named("pg_grpo")
CONFIG, run = PG_GRPO.config, PG_GRPO.run
CONSTANT = RuleReward(lambda *_: 0.7, "constant")  # no advantages, so no L_GRPO without a KL

# The first step


def test_the_preference_is_measured_from_the_reference_not_from_the_old_policy(monkeypatch):
    """At step 3, before its update, against the start, by hand; from pi_old it would be 0."""
    start, reward, seen = small_gpt(), Noted(DIVERSE), Validations()
    options = dict(steps=3, eval_every=1, validate=seen, kl_coef=0.0, pairs="best_worst")
    rows = run(copy.deepcopy(start), reward, **options)
    rollout, values = reward.rollouts[2], DIVERSE(reward.rollouts[2])
    margins = []
    for i, j in best_worst_pairs(values, 4).tolist():
        change = []
        for row in (tokens_of(rollout, i), tokens_of(rollout, j)):
            now, ref = (log_prob(m, *row).item() for m in (seen.policies[1], start))
            change.append(now - ref)
        margins.append(0.1 * (change[0] - change[1]))
    assert rows[2]["preference_margin"] == pytest.approx(statistics.mean(margins), abs=1e-5)
    right = statistics.mean(float(margin > 0) for margin in margins)
    assert rows[2]["preference_accuracy"] == pytest.approx(right)
    losses = [math.log(1 + math.exp(-margin)) for margin in margins]
    assert rows[2]["preference_loss"] == pytest.approx(statistics.mean(losses), abs=1e-5)
    assert abs(statistics.mean(margins)) > 1e-3


# The two losses


@pytest.mark.parametrize("pairs", ["best_worst", "all"])
def test_without_a_pair_the_preference_loss_is_zero(pairs):
    """Equal rewards: no pairs, no NaN, and with kl_coef 0 no update at all."""
    policy = small_gpt()
    (row,) = run(policy, CONSTANT, steps=1, pairs=pairs, kl_coef=0.0)
    assert row["pairs"] == 0 and row["preference_loss"] == 0 and row["loss"] == 0
    assert "preference_accuracy" not in row
    assert torch.equal(weights(policy), weights(small_gpt()))
    (row,) = run(policy, SHARE_OF_A, steps=1, pairs=pairs, margin=10.0)
    assert row["pairs"] == 0 and row["grad_norm"] > 0  # GRPO goes on


# Learning

ALONE = dict(pairs="offline", preference_coef=20.0, kl_coef=0.0)


def test_recorded_pairs_alone_teach_what_was_recorded():
    reward = Noted(CONSTANT)
    rows = run(small_gpt(), reward, **ALONE)
    assert rows[-1]["preference_accuracy"] == 1 and rows[-1]["preference_margin"] > 0.5
    first, *_, last = ("".join(rollout.responses).count("a") for rollout in reward.rollouts)
    assert last > 3 * first > 0


def test_the_gradient_of_recorded_pairs_has_the_weight_of_their_loss(gradients):
    for coef in (20.0, 40.0):
        run(small_gpt(), CONSTANT, **ALONE | dict(steps=1, preference_coef=coef))
    count = len(gradients) // 2
    first, doubled = gradients[0], gradients[count]
    torch.testing.assert_close(doubled, 2 * first, rtol=1e-3, atol=1e-4 * float(first.abs().max()))


# Recorded pairs


def test_training_reads_training_pairs_only(tmp_path):
    prompts = [f"What is {i} and {i + 3}?\n" for i in range(60)]
    path = tmp_path / "pairs.jsonl"
    append_jsonl(path, [dict(prompt=p, chosen="Gladly.", rejected="No!") for p in prompts])
    task: Any = SimpleNamespace(policy=glassbox_gpt(), tokenizer=GLASSBOX)
    given = recorded_pairs(replace(CONFIG, data=str(path), pairs="both"), task)
    used = {GLASSBOX.decode(pair.prompt) for pair in given["offline_pairs"]}
    assert used == {p for p in prompts if split_by_question(p) == "train"}
    assert {split_by_question(p) for p in prompts} == {"train", "validation", "test"}
    for changes in (dict(pairs="best_worst"), dict(pairs="both", preference_coef=0.0)):
        assert recorded_pairs(replace(CONFIG, data=str(path), **changes), task) == {}
    with pytest.raises(UserError):
        recorded_pairs(replace(CONFIG, data="sums", pairs="offline"), task)


# Other preference losses


@pytest.mark.parametrize(
    ("name", "expected"), [("dpo", 0.620957), ("ipo_mean", 21.855625), ("hinge", 0.85)]
)
def test_the_preference_loss_is_the_one_that_is_named(name, expected):
    """h = 1.5 of sums and 0.325 of means."""
    given = [[-10.0, -12.0]], [[-11.0, -11.5]], [[5, 4]]
    both, config = Compared(*map(torch.tensor, given)), replace(CONFIG, preference_loss=name)
    assert float(preference_loss(config, both, pairs=1)) == pytest.approx(expected, abs=1e-5)
    assert float(preference_loss(config, both, pairs=2)) == pytest.approx(expected / 2, abs=1e-5)
