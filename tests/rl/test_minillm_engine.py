"""MiniLLM: its loss is the gradient of the KL of whole responses, exactly; a toy teacher is reached."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from engines import NOISY_TEACHER as TEACHER
from engines import engine_named, small_gpt
from slow import after, flat_gradient, tiny_gpt
from toys import LETTERS, PROMPTS, language
from watched import flip

from gpt.generate import SamplingParams
from gpt.log_probs import token_log_probs, token_scores_and_kl
from gpt.model import GPT
from rl import minillm_engine
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
