"""Distillation losses against loops, limits and every response of a tiny language; the loop learns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import toys
from toys import LETTERS, Crash, CrashingLog, close, documented, flat_gradient, seeded
from toys import PROMPTS as RECORDS

from data.collate import collate_responses
from gpt import distillation
from gpt.checkpoint import load_gpt
from gpt.distillation import (
    DistillationConfig,
    distillation_loss,
    forward_kl,
    main,
    measure,
    train,
)
from gpt.log_probs import full_kl, token_log_probs
from gpt.model import GPT, GPTConfig
from harness.files import read_jsonl
from harness.metric_log import MetricLog
from harness.training_state import saved_step

V, EOS, T = 7, 0, 4
PROMPTS = [[3, 1], [5], [2, 2, 6, 1], [4, 0, 1]]
RESPONSES = [[1, 5, 0], [6, 6, 2, 4], [], [0]]
BATCH = collate_responses(PROMPTS, RESPONSES, EOS)
CONFIG = DistillationConfig(
    steps=20, batch_size=16, lr=1e-2, warmup=1, max_new_tokens=6, eval_every=100, max_norm=1e9,
    checkpoint_every=1000,
)  # fmt: skip


def random_gpt(seed: int, vocab_size: int = V, scale: float = 0.5) -> GPT:
    return toys.random_gpt(vocab_size, 12, seed=seed, scale=scale, dtype=torch.float64)


TEACHER = random_gpt(1).requires_grad_(False)


@pytest.mark.parametrize("loss", ["forward_kl", "reverse_kl"])
def test_the_loss_is_the_mean_over_tokens(loss):
    """Eight tokens in four rows, one of them empty."""
    student = random_gpt(0)
    per_token = {"forward_kl": forward_kl, "reverse_kl": full_kl}[loss](student, TEACHER, BATCH)
    found = distillation_loss(replace(CONFIG, loss=loss), student, TEACHER, BATCH, 8)
    close(found, sum(per_token[BATCH.response_mask].tolist()) / torch.tensor(8.0).double())


def test_forward_kl_on_the_teachers_text_is_the_kl_of_responses_and_so_is_its_gradient():
    student, other, teacher = random_gpt(0, 3), random_gpt(0, 3), random_gpt(1, 3)
    batch = toys.language()
    with torch.no_grad():
        log_p = token_log_probs(teacher, batch).sum(1)
    assert float(log_p.exp().sum()) == pytest.approx(1, abs=1e-12)
    exact = (log_p.exp() * (log_p - token_log_probs(student, batch).sum(1))).sum()
    exact.backward()
    estimate = (log_p.exp() * forward_kl(other, teacher, batch).sum(1)).sum()
    estimate.backward()
    close(estimate, exact)
    close(flat_gradient(other), flat_gradient(student))
    assert exact.item() > 0.1


# Training


def letters_gpt(seed: int, layers: int = 2) -> GPT:
    shape = GPTConfig(LETTERS.n_vocab, 16, n_layer=layers, n_head=2, n_embd=32)
    return GPT(shape).initialize(seeded(seed)).eval()


@pytest.fixture(scope="module")
def teacher() -> GPT:
    """It answers with the letters of its prompt's first half, more often than not."""
    model = letters_gpt(1, layers=3)
    generator = seeded(2)
    for parameter in model.parameters():
        parameter.data += torch.randn(parameter.shape, generator=generator) * 0.12
    return model.requires_grad_(False)


def run(student: GPT, teacher: GPT, log: MetricLog | None = None, **changes):
    options = {name: changes.pop(name) for name in ("validate", "folder") if name in changes}
    config = replace(CONFIG, **changes)
    log = log or MetricLog(config.steps)
    return train(config, student, teacher, LETTERS, RECORDS, log, **options)


def distance(student: GPT, teacher: GPT) -> float:
    numbers, _ = measure(student, teacher, LETTERS, RECORDS * 8, 6)
    return numbers["reverse_kl_full"]


@pytest.mark.parametrize("loss", ["forward_kl", "reverse_kl"])
def test_the_student_comes_nearer_and_does_not_with_the_sign_flipped(monkeypatch, teacher, loss):
    student, start = letters_gpt(0), distance(letters_gpt(0), teacher)
    before = toys.weights(teacher).clone()
    rows = run(student, teacher, loss=loss)
    assert distance(student, teacher) < 0.35 * start
    assert start > 0.5
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert torch.equal(toys.weights(teacher), before)
    real = distillation.distillation_loss
    monkeypatch.setattr(distillation, "distillation_loss", lambda *a, **k: -real(*a, **k))
    student = letters_gpt(0)
    run(student, teacher, loss=loss, steps=6)
    assert distance(student, teacher) > 1.2 * start


@pytest.mark.parametrize("loss", ["forward_kl", "reverse_kl"])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, teacher, loss):
    whole, halves = letters_gpt(0), letters_gpt(0)
    rows = run(whole, teacher, loss=loss, steps=6)

    options = dict(loss=loss, steps=6, checkpoint_every=3, folder=tmp_path)
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(Crash):
        run(halves, teacher, CrashingLog(6, path=path), **options)
    log = MetricLog(6, path=path, start=saved_step(tmp_path))
    resumed = run(letters_gpt(0), teacher, log, resume=True, **options)
    assert [row["step"] for row in resumed] == [1, 2, 3, 4, 5, 6]
    for key in ("loss", "grad_norm", "lr"):
        assert [row[key] for row in resumed] == [row[key] for row in rows]


# The script


@pytest.fixture
def folders(tmp_path) -> dict[str, Path]:
    """A student and a teacher of one layer that share a tokenizer."""
    for name, seed in (("base", 0), ("teacher", 1)):
        toys.saved_gpt(tmp_path / name, seed, context=128)
    return {name: tmp_path / name for name in ("base", "teacher")}


@pytest.mark.parametrize("memory", [{}, dict(lora_rank=2, checkpoint_blocks=True)])
def test_main_writes_what_it_measured(tmp_path, folders, memory):
    out = tmp_path / "out"
    config = DistillationConfig(
        steps=4, batch_size=4, eval_every=2, eval_prompts=8, test_prompts=8,
        max_new_tokens=8, device="cpu", out=out, **folders, **memory,
    )  # fmt: skip
    assert main(config) == out
    rows = read_jsonl(out / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    measured = {"gold", "gold_error", "reverse_kl", "reverse_kl_full"}
    assert {f"validation/{name}" for name in measured} <= set(rows[1])
    assert "validation/gold" not in rows[0]
    assert len(read_jsonl(out / "samples.jsonl")) == 16
    report = (out / "report.json").read_text()
    assert all(f'"{name}"' in report for name in ("before", "after", "teacher", *measured))
    student, _ = load_gpt(out)
    start, _ = load_gpt(folders["base"])
    assert not torch.equal(toys.weights(student), toys.weights(start))
    assert torch.equal(student.wte.weight, start.wte.weight) == bool(memory)
    assert not (out / "state.pt").exists()


def test_logged_keys_are_those_documented(teacher):
    def validate(student: GPT, step: int) -> dict[str, float]:
        numbers, _ = measure(student, teacher, LETTERS, RECORDS, 6, lambda *_: 0.5)
        return {f"validation/{name}": value for name, value in numbers.items()}

    (row,) = run(letters_gpt(0), teacher, steps=1, eval_every=1, validate=validate)
    headings = ("Every stage without sampling", "With a teacher", "Distillation")
    assert set(row) == set().union(*map(documented, headings))
