"""Pre-training: the loss by hand, accumulation, resuming bit for bit, and that it learns."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from toys import GLASSBOX as TOKENIZER
from toys import Crash, flat_gradient, randomized, weights

from data.collate import ResponseBatch, collate_responses
from data.sources import default_folder
from gpt import pretraining
from gpt.checkpoint import load_gpt
from gpt.corpus import TextCorpus
from gpt.model import GPT, GPTConfig
from gpt.pretraining import (
    PretrainingConfig,
    held_out_loss,
    language_model_loss,
    main,
    steps_of,
    train,
)
from gpt.teacher import teacher_folder
from harness.errors import UserError
from harness.files import read_jsonl
from harness.metric_log import MetricLog

SHAPE = GPTConfig(vocab_size=7, context=12, n_layer=2, n_head=2, n_embd=8)
PROMPTS = [[3, 1], [5], [2, 2, 6, 1], [4, 4]]
RESPONSES = [[1, 5, 0], [6, 6, 2, 4], [0], [1, 1]]
BATCH = collate_responses(PROMPTS, RESPONSES, eos_id=0)
PARTS = [BATCH.rows(torch.tensor([0, 1, 2])), BATCH.rows(torch.tensor([3]))]
CONFIG = PretrainingConfig(steps=1, warmup_steps=0, lr=0.01, device="cpu")


def random_gpt(seed: int = 0, dropout: float = 0.0) -> GPT:
    return randomized(GPT(replace(SHAPE, dropout=dropout)).double(), seed)


class ListCorpus:
    """Batches by number from a list."""

    description = "a list of batches"

    def __init__(self, batches: list[ResponseBatch]) -> None:
        self.batches = batches
        tokens = [int(batch.response_mask.sum()) for batch in batches or [BATCH]]
        self.tokens_per_batch = sum(tokens) / len(tokens)

    def batch(self, index: int) -> ResponseBatch:
        return self.batches[index]

    def held_out_batches(self) -> list[ResponseBatch]:
        return [BATCH]


def test_epochs_are_counted_in_a_files_tokens_and_a_world_has_none():
    corpus = TextCorpus(["ab cd " * 200], TOKENIZER, 2, 16, 0)
    config = PretrainingConfig(epochs=2, steps=10_000, accumulation=3)
    passed = steps_of(config, corpus) * 3 * 2 * 15 - 2 * corpus.split
    assert 0 <= passed < 90 and steps_of(replace(config, steps=3), corpus) == 3
    assert steps_of(replace(config, epochs=None), ListCorpus([])) == 10_000
    with pytest.raises(UserError, match="--epochs.*--epochs None"):
        steps_of(config, ListCorpus([]))


def slow_loss(model: GPT) -> float:
    """The mean of -log p over all response tokens of BATCH, from one unpadded row each."""
    terms = []
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        log_probs = model(torch.tensor([prompt + response]))[0].log_softmax(-1).detach()
        terms += [-float(log_probs[len(prompt) - 1 + t, y]) for t, y in enumerate(response)]
    assert len(terms) == 10
    return sum(terms) / 10


def test_loss_is_the_mean_over_predicted_tokens():
    model = random_gpt().eval()
    assert language_model_loss(model, BATCH).item() == pytest.approx(slow_loss(model), abs=1e-9)
    halved = language_model_loss(model, BATCH, denominator=20).item()
    assert halved == pytest.approx(slow_loss(model) / 2, abs=1e-9)


def test_held_out_loss_weighs_tokens_not_batches():
    """3 rows with 8 tokens and 1 row with 2: the mean of the two means would be another number."""
    model = random_gpt(dropout=0.5).train()
    expected = slow_loss(random_gpt().eval())
    assert held_out_loss(model, PARTS) == pytest.approx(expected, abs=1e-6)
    assert model.training  # dropout was off for the measurement only
    model.eval()
    held_out_loss(model, PARTS)
    assert not model.training


def test_accumulated_gradients_equal_the_batch():
    """The parts hold 8 and 2 tokens: averaging their means would weigh them wrongly."""
    once, twice = random_gpt(), random_gpt()
    [row] = train(CONFIG, once, ListCorpus([BATCH]), MetricLog(1))
    [accumulated] = train(replace(CONFIG, accumulation=2), twice, ListCorpus(PARTS), MetricLog(1))
    for key in ("loss", "grad_norm", "held_out_loss"):
        assert accumulated[key] == pytest.approx(row[key], abs=1e-6), key
    torch.testing.assert_close(flat_gradient(twice), flat_gradient(once), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(weights(twice), weights(once), rtol=1e-6, atol=1e-9)
    assert row["loss"] == pytest.approx(slow_loss(random_gpt().eval()), abs=1e-6)


def test_the_logged_loss_is_a_mean_over_the_tokens_of_its_step():
    """Eight of them, where the mean of the corpus by which the gradient is divided is five."""
    model = random_gpt()
    expected = float(language_model_loss(model, PARTS[0]).detach())
    (row,) = train(CONFIG, model, ListCorpus(PARTS), MetricLog(1))
    assert row["loss"] == pytest.approx(expected)


def test_no_batch_is_read_twice(monkeypatch):
    corpus, read = ListCorpus([BATCH]), list[int]()
    monkeypatch.setattr(corpus, "batch", lambda index: read.append(index) or BATCH)
    train(replace(CONFIG, steps=3, accumulation=2), random_gpt(), corpus, MetricLog(3))
    assert read == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("patience", "steps", "kept"), [(2, 5, [1, 3]), (9, 6, [1, 3, 6])])
def test_training_ends_after_so_many_losses_without_a_new_best(monkeypatch, patience, steps, kept):
    """Best at steps 1, 3 and 6; each new best is kept. A resumed run stays at its end."""
    losses = iter([3.0, 3.5, 2.0, 2.5, 2.1, 1.0])
    monkeypatch.setattr(pretraining, "held_out_loss", lambda *_: next(losses))
    log, best = MetricLog(6), []
    config = replace(CONFIG, steps=6, eval_every=1, patience=patience)
    corpus = ListCorpus([BATCH] * 6)
    rows = train(
        config, random_gpt(), corpus, log, keep_best=lambda: best.append(log.rows[-1]["step"])
    )
    assert len(rows) == steps and best == kept


def test_every_step_drops_units_of_its_own():
    """And the same ones whatever the process has drawn before; the held-out loss drops none."""
    runs = []
    for drawn in (1, 2):
        torch.manual_seed(drawn)
        config, model = replace(CONFIG, lr=0.0, steps=3, eval_every=1), random_gpt(dropout=0.3)
        rows = train(config, model, ListCorpus([BATCH] * 3), MetricLog(3))
        assert len({row["loss"] for row in rows}) == 3
        assert len({row["held_out_loss"] for row in rows}) == 1
        runs.append([row["loss"] for row in rows])
    assert runs[0] == runs[1]


class CrashingCorpus(TextCorpus):
    """Fails when the fifth batch is asked for."""

    def batch(self, index: int) -> ResponseBatch:
        if index == 4:
            raise Crash
        return super().batch(index)


TEXT = "The quick brown fox jumps over the lazy dog. 0123456789\n" * 30


def test_the_seed_draws_the_weights(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    config = PretrainingConfig(
        data=str(tmp_path / "text.txt"), steps=1, batch_size=2, lr=0.0, device="cpu"
    )
    drawn = []
    for number, seed in enumerate((1, 1, 2)):
        folder = main(replace(config, seed=seed, out=tmp_path / str(number)))
        drawn.append(weights(load_gpt(folder)[0]))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, monkeypatch, dropout):
    """Crash in step 5, after the state of step 3: weights and metrics come out bit for bit."""
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    config = PretrainingConfig(
        data=str(path), steps=6, batch_size=2, warmup_steps=2, dropout=dropout, eval_every=2,
        save_every=3, device="cpu", out=tmp_path / "whole",
    )  # fmt: skip
    main(config)

    torch.rand(5)  # the global generator has moved on, as in any other process
    broken = replace(config, out=tmp_path / "broken")
    with monkeypatch.context() as patch:
        patch.setattr("gpt.corpus.TextCorpus", CrashingCorpus)
        with pytest.raises(Crash):
            main(broken)
    assert (broken.out / "state.pt").exists() and not (broken.out / "model.safetensors").exists()
    main(replace(broken, resume=True))

    assert torch.equal(weights(load_gpt(broken.out)[0]), weights(load_gpt(config.out)[0]))
    rows = [read_jsonl(folder / "metrics.jsonl") for folder in (config.out, broken.out)]
    for row in (*rows[0], *rows[1]):
        del row["tokens_per_second"]
    assert rows[0] == rows[1] and [row["step"] for row in rows[0]] == [1, 2, 3, 4, 5, 6]
    files = {file.name for file in broken.out.iterdir()}
    page = {"report.html", "tokens.jsonl"}
    assert files == page | {"config.json", "metrics.jsonl", "model.safetensors"}
    whole, resumed = ((folder / "tokens.jsonl").read_text() for folder in (config.out, broken.out))
    assert whole == resumed and whole


def test_every_file_has_a_folder_of_its_own(tmp_path, monkeypatch):
    """By its content and by its ending, which says how it is read; where it lies does not count."""
    monkeypatch.chdir(tmp_path)
    assert default_folder("grpo", "reviews", "tiny").name == "grpo-reviews-tiny"
    names = ("a/t.json", "b/t.json", "a/t.csv", "a/t.json.gz", "a/reviews.json", "a/t.v1.json")
    for name in (*names, "texts/1.txt", "texts/2.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("b" if name == "b/t.json" else "a")
    folders = [default_folder("grpo", name, "own") for name in (*names, "texts")]
    assert len(set(folders)) == len(folders) and folders[0].name.startswith("grpo-t-")
    assert default_folder("grpo", str(tmp_path / "b" / ".." / names[0]), "own") == folders[0]
    for name in ("a/t.json", "texts/2.txt"):
        (tmp_path / name).write_text("A")  # as long as before
    assert default_folder("grpo", names[0], "own") != folders[0]
    assert default_folder("grpo", "texts", "own") != folders[-1]
    assert teacher_folder("a/reviews.json").name.startswith("teacher-reviews-")
