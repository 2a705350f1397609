"""MiniLLM: its loss is the gradient of the KL of whole responses, exactly; a toy teacher is reached."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from engines import NOISY_TEACHER as TEACHER
from engines import engine_named, small_gpt
from slow import after, assert_gradient, flat_gradient, tiny_gpt, tokens_of
from toys import LETTERS, PROMPTS, language
from watched import HALVES, calls_of, flip, given_halves

from gpt.generate import SamplingParams
from gpt.log_probs import token_log_probs, token_scores_and_kl
from gpt.model import GPT
from rl import loop, minillm_engine
from rl.batches.rollout import Rollout
from rl.minillm_engine import WeightedUpdate, minillm_loss
from rl.run.evaluation import evaluate

MINILLM = engine_named("minillm")
CONFIG = MINILLM.config


def run(policy: GPT, teacher: GPT = TEACHER, **changes):
    """Train against a teacher; keyword arguments change CONFIG."""
    return replace(MINILLM, teacher=teacher).run(policy, **changes)


# Over every response of a tiny language


def test_single_plus_long_is_the_gradient_of_the_kl_of_responses():
    """To 1e-12 of the loss's expectation over the student; with returns of Eq. 3, not divided."""
    student, other, teacher, batch = tiny_gpt(0), tiny_gpt(0), tiny_gpt(1), language(3)
    log_q = token_log_probs(student, batch)
    with torch.no_grad():
        log_p = token_log_probs(teacher, batch)
    assert log_q.sum(1).exp().sum().item() == pytest.approx(1, abs=1e-12)
    (log_q.sum(1).exp() * (log_q - log_p).sum(1)).sum().backward()
    old = log_q.detach()
    chance = old.sum(1).exp()[:, None].expand_as(old)  # the weight of every token of a response
    returns = after(log_p - old, batch.response_mask)
    scores, token_kl = token_scores_and_kl(other, teacher, batch)
    given = WeightedUpdate(old, None, returns, batch.response_mask, chance)
    loss = minillm_loss(CONFIG, scores.log_probs, token_kl, given, tokens=1)
    loss.backward()
    exact = flat_gradient(student)
    torch.testing.assert_close(flat_gradient(other), exact, rtol=0, atol=1e-12)
    assert float(exact.abs().max()) > 0.05


# The first step


def first_gradient(policy: GPT, rollout: Rollout, share: float) -> torch.Tensor:
    """1/tokens sum (w KL - w R grad log q) of the first minibatch, row by row, by loops over tokens."""
    policy = copy.deepcopy(policy)
    total = torch.zeros(())
    for i in HALVES[0]:
        prompt, response = tokens_of(rollout, i)
        row, L = torch.tensor([prompt + response]), len(response)
        logits = (model(row)[0, len(prompt) - 1 : -1] for model in (policy, TEACHER))
        log_q, log_p = (given.log_softmax(-1) for given in logits)
        chosen_q = [log_q[t, response[t]] for t in range(L)]
        r = [float(log_p[t, response[t]]) - float(chosen_q[t].detach()) for t in range(L)]
        for t in range(L):
            w = 1 / (share * math.exp(r[t]) + 1 - share)
            later = sum(r[t + 1 :]) / (L - t - 1) if t + 1 < L else 0.0
            kl = (log_q[t].exp() * (log_q[t] - log_p[t])).sum()
            total = total + w * kl - w * later * chosen_q[t]
    (total / int(rollout.lengths[HALVES[0]].sum())).backward()
    return flat_gradient(policy)


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_the_first_gradient_by_loops(monkeypatch, gradients, share):
    start, sampled = small_gpt(), calls_of(monkeypatch, loop, "sample_rollout")
    given_halves(monkeypatch)
    run(copy.deepcopy(start), steps=1, teacher_share=share)
    rollout = sampled[0].result
    assert len(set(rollout.lengths.tolist())) > 2
    assert_gradient(gradients[0], first_gradient(start, rollout, share))


# Learning


def distance(policy: GPT) -> float:
    params = SamplingParams(max_new_tokens=6)
    reward = minillm_engine.teacher_reward(CONFIG, TEACHER)
    measured = evaluate(policy, LETTERS, PROMPTS * 16, params, reward)
    return float(measured.reverse_kl_full.mean())


def test_the_student_reaches_the_teacher_and_flees_with_the_sign_flipped(monkeypatch):
    policy, start, share = small_gpt(), distance(small_gpt()), 0.3
    rows = run(policy, teacher_share=share, prompts_per_step=32, updates_per_batch=2)
    assert distance(policy) < 0.35 * start and start > 0.5
    assert rows[-1]["single_step_kl"] < 0.5 * rows[0]["single_step_kl"]
    assert rows[-1]["reward"] > rows[0]["reward"]
    flip(monkeypatch, minillm_engine, "minillm_loss")
    policy = small_gpt()
    run(policy, teacher_share=share, steps=6)
    assert distance(policy) > 1.2 * start
