"""KD-GRPO end to end on a GPT of two layers, with a teacher whose language differs from it."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from engines import SHARP_TEACHER as TEACHER
from engines import engine_named, small_gpt, some_rollout
from slow import tokens_of
from toys import weights

from rl.batches.rollout import rollout_log_probs
from rl.equations.token_rewards import own_text_penalty
from rl.kd_grpo_engine import moved_reference, scores_and_penalty

KD_GRPO = engine_named("kd_grpo")
CONFIG, run = KD_GRPO.config, KD_GRPO.run


# The loss


def test_the_kl_is_the_one_that_was_asked_for():
    """k2 and k3 of the samples; full over the vocabulary, by loops over unpadded rows."""
    policy, reference = small_gpt(sharpness=6.0), small_gpt(seed=2, sharpness=6.0)
    rollout = some_rollout(policy, group_size=2)
    batch = rollout.sequences
    ref = rollout_log_probs(reference, rollout, CONFIG)
    got = {}
    for name in ("k2", "k3", "full"):
        config = replace(CONFIG, kl_estimator=name)
        scores, got[name] = scores_and_penalty(config, policy, reference, batch, ref)
        torch.testing.assert_close(scores.log_probs, rollout.log_probs, rtol=0, atol=1e-5)
        scores, penalty = scores_and_penalty(config, policy, reference, batch, None)
        assert scores.log_probs.requires_grad and penalty is None
    assert got["full"].requires_grad and got["full"][rollout.response_mask].min() > 0
    for i in range(len(rollout)):
        prompt, response = tokens_of(rollout, i)
        tokens = torch.tensor([prompt + response])
        p, r = (model(tokens)[0].log_softmax(-1).detach() for model in (policy, reference))
        for t, token in enumerate(response):
            at = len(prompt) - 1 + t
            gap = float(r[at, token] - p[at, token])
            full = float((p[at].exp() * (p[at] - r[at])).sum())
            assert got["full"][i, t].item() == pytest.approx(full, rel=1e-4)
            for name, value in (("k2", gap**2 / 2), ("k3", math.expm1(gap) - gap)):
                assert got[name][i, t].item() == pytest.approx(value, rel=1e-3, abs=1e-5)


# Learning

LEARNING = dict(prompts_per_step=8, group_size=8, minibatches=2, steps=34, lr=3e-3, kl_coef=0.0)


def test_it_learns_the_teacher_its_entropy_included():
    itself = run(copy.deepcopy(TEACHER).requires_grad_(True), **(LEARNING | dict(steps=1)))[0]
    assert itself["reverse_kl"] == pytest.approx(0, abs=1e-4) and itself["entropy"] > 1.4
    start, *_, end = run(small_gpt(), **LEARNING)
    assert start["reverse_kl"] > 2.5 and end["reverse_kl"] < 0.6
    assert end["reward"] > start["reward"] + 0.3
    assert end["teacher_log_prob"] > start["teacher_log_prob"] + 0.8
    assert end["entropy"] == pytest.approx(itself["entropy"], abs=0.25)


# The reference


def test_the_reference_moves_when_it_is_due():
    policy, start = small_gpt(seed=4), small_gpt()
    for every, step, moves in [(3, 6, True), (3, 5, False), (3, 3, True), (None, 3, False)]:
        reference = copy.deepcopy(start)
        moved_reference(every, step, reference, policy)
        assert torch.equal(weights(reference), weights(policy if moves else start))


# The loss on its own text in the reward


def test_the_own_text_penalty_by_hand():
    """log p/q = -.2, .5, -.9 and log q = -.8, -1, -1.5; half of it off: -.6, 0, -1.65."""
    rewards, q = torch.tensor([[-0.2, 0.5, -0.9, 9]]), torch.tensor([[-0.8, -1.0, -1.5, 99]])
    mask = torch.tensor([[True, True, True, False]])
    penalised = own_text_penalty(rewards, q, mask, 0.5)
    torch.testing.assert_close(penalised, torch.tensor([[-0.6, 0.0, -1.65, 0.0]]))
