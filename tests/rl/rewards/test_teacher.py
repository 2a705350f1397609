"""The teacher: its log-probs by loops, the distance to it, and which answers one is made of."""

from __future__ import annotations

import itertools

import make_teacher
import pytest
import torch
import toys
from toys import LETTERS, language, seeded
from toys import PROMPTS as RECORDS

from gpt.generate import SamplingParams
from gpt.log_probs import token_log_probs
from gpt.model import GPT
from gpt.teacher import open_teacher, reverse_kl
from harness.errors import UserError
from harness.metric_log import MetricLog
from rl.batches.rollout import Rollout, sample_rollout
from rl.rewards.reward import RuleReward
from rl.rewards.teacher_reward import LOG_PROB_FLOOR, TeacherReward, teacher_log_probs
from rl.run.config import EngineConfig

CONFIG = EngineConfig(temperature=0.8, micro_batch_size=3)
PARAMS = SamplingParams(0.8, max_new_tokens=6)


def random_gpt(seed: int, vocab_size: int = LETTERS.n_vocab, scale: float = 0.3) -> GPT:
    model = toys.random_gpt(vocab_size, 16, seed=seed, scale=scale, n_embd=16)
    return model.requires_grad_(False)


POLICY, TEACHER = random_gpt(0), random_gpt(1)


@pytest.fixture(scope="module")
def rollout() -> Rollout:
    return sample_rollout(POLICY, LETTERS, RECORDS, PARAMS, 2, seeded(0))


def by_hand(model: GPT, rollout: Rollout) -> list[list[float]]:
    """log-probs of each response token at temperature 0.8, one unpadded row at a time."""
    rows = []
    for i, record in enumerate(rollout.records):
        prompt = LETTERS.encode(record.prompt)
        response = rollout.response_tokens[i][rollout.response_mask[i]].tolist()
        logits = model(torch.tensor([prompt + response]))[0].double() / 0.8
        scores = logits.log_softmax(-1)
        rows.append([float(scores[len(prompt) - 1 + t, v]) for t, v in enumerate(response)])
    return rows


# The reward


def test_teacher_log_probs_by_hand_and_above_the_floor(rollout):
    found = teacher_log_probs(TEACHER, rollout, CONFIG)
    assert found.shape == rollout.response_mask.shape and not found.requires_grad
    for i, row in enumerate(by_hand(TEACHER, rollout)):
        assert found[i, : len(row)].tolist() == pytest.approx(row, abs=1e-5)
    assert not found[~rollout.response_mask].any()
    certain = random_gpt(2, scale=3.0)  # it gives most letters less than exp(-20)
    floored = teacher_log_probs(certain, rollout, CONFIG)
    exact = torch.tensor(list(itertools.chain(*by_hand(certain, rollout))))
    torch.testing.assert_close(
        floored[rollout.response_mask], exact.clamp(min=-20.0), rtol=1e-4, atol=1e-4
    )
    assert LOG_PROB_FLOOR == -20.0 and (exact < -21).any() and (exact > -19).any()


# The distance


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_both_estimates_have_the_kl_of_responses_as_their_mean(temperature):
    """Every response of a tiny language, weighted by the student's probability; micro-batches of 4."""
    student, teacher = random_gpt(0, 3).double(), random_gpt(1, 3).double()
    batch = language()
    log_q, log_p = (
        token_log_probs(model, batch, temperature).sum(1) for model in (student, teacher)
    )
    assert float(log_q.exp().sum()) == pytest.approx(1, abs=1e-12)
    exact = float((log_q.exp() * (log_q - log_p)).sum())
    forward = float((log_p.exp() * (log_p - log_q)).sum())
    sampled, full = reverse_kl(student, teacher, batch, temperature, micro_batch_size=4)
    assert float(log_q.exp() @ sampled) == pytest.approx(exact, abs=1e-9)
    assert float(log_q.exp() @ full) == pytest.approx(exact, abs=1e-9)
    assert abs(exact - forward) > 0.01
    assert (full > 0).all() and (sampled < 0).any()


def test_a_rewards_distance_is_that_of_the_policy_from_the_teacher(rollout):
    """By its own log-probs at 0.8; full, so that a policy that is the teacher is 0 away."""
    reward = TeacherReward(TEACHER, CONFIG)
    found, none = (reward.distance(model, rollout, 0.8, 5) for model in (POLICY, TEACHER))
    own, theirs = by_hand(POLICY, rollout), by_hand(TEACHER, rollout)
    expected = [sum(q) - sum(p) for q, p in zip(own, theirs, strict=True)]
    assert found[0].tolist() == pytest.approx(expected, abs=1e-4)
    assert not none[0].any() and not none[1].any() and abs(sum(expected)) > 1


def test_a_teacher_is_frozen_and_reads_the_students_tokens(tmp_path):
    toys.saved_gpt(tmp_path / "teacher")
    teacher = open_teacher(tmp_path / "teacher", toys.GLASSBOX, torch.device("cpu"))
    assert not teacher.training and not any(p.requires_grad for p in teacher.parameters())
    with pytest.raises(UserError):
        open_teacher(tmp_path / "teacher", LETTERS, torch.device("cpu"))


# Making a teacher


def test_the_best_answer_that_ended_is_kept(monkeypatch):
    """Longer is better here, and the longest ones, cut off, would be best of all."""
    reward = RuleReward(lambda record, text, ended: len(text), "length")
    records = RECORDS * 4
    config = make_teacher.TeacherConfig(data="letters", responses=6, seed=3)
    monkeypatch.setattr(make_teacher, "TOGETHER", 5)
    monkeypatch.setattr(make_teacher, "MAX_NEW_TOKENS", 5)

    def best(reward):
        log = MetricLog(len(records))
        return make_teacher.best_answers(config, POLICY, LETTERS, records, reward, log)

    kept = best(reward)
    prompts = [tuple(LETTERS.encode(record.prompt)) for record in records]
    assert 16 < len(kept) <= 32 and {tuple(prompt) for prompt, _ in kept} <= set(prompts)
    assert all(answer[-1] == LETTERS.eos_id and len(answer) <= 5 for _, answer in kept)
    shorter = RuleReward(lambda record, text, ended: -len(text), "shortness")
    short = best(shorter)
    assert [prompt for prompt, _ in short] == [prompt for prompt, _ in kept]
    gaps = [len(a) - len(b) for (_, a), (_, b) in zip(kept, short, strict=True)]
    assert min(gaps) == 0 and sum(gaps) > 10
    monkeypatch.setitem(make_teacher.LEAST_REWARD, "letters", 3)
    longest = best(reward)
    assert longest == [(p, answer) for p, answer in kept if len(answer) > 3] != kept
