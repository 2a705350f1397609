"""Outcome reward models: pieces of texts, training, the report, and the script."""

import dataclasses
import json
import random

import pytest
import torch

from data.labelled import LabelledText
from gpt.checkpoint import save_gpt
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import load_tokenizer
from harness.metric_log import MetricLog
from harness.seeds import make_generator
from reward_model import outcome_training
from reward_model.outcome_training import OutcomeConfig, add_texts, open_texts, train
from reward_model.outcomes import (
    LabelledTokens,
    cut_piece,
    encode_labelled,
    log_odds_report,
    ngram_accuracy,
    piece_batch,
    score_beginnings,
)
from reward_model.scalar_head import RewardModel, load_reward_model

TOKENIZER = load_tokenizer("glassbox")
SHAPE = GPTConfig(TOKENIZER.n_vocab, context=32, n_layer=1, n_head=1, n_embd=32)


def texts_of(count, seed=0):
    """Good ones hold a "good", bad ones a "bad", among other words."""
    rng = random.Random(seed)
    others = ["the", "a", "cup", "was", "red", "and", "old", "new"]
    records = []
    for index in range(count):
        words = [rng.choice(others) for _ in range(rng.randint(6, 14))]
        words[rng.randrange(4)] = "good" if index % 2 else "bad"
        records.append(LabelledText(" ".join(words), bool(index % 2)))
    return records


def model_of(seed=0, pooling="mean_score"):
    trunk = GPT(SHAPE).initialize(make_generator(seed, "weights"))
    return RewardModel.from_policy(trunk, pooling, make_generator(seed, "head"))


def test_pieces_are_neighbouring_tokens_of_every_length_half_from_the_start():
    rng, tokens = random.Random(0), list(range(100))
    pieces = [cut_piece(tokens, 4, 32, rng) for _ in range(2000)]
    assert {len(piece) for piece in pieces} == set(range(4, 33))
    assert all(piece == list(range(piece[0], piece[-1] + 1)) for piece in pieces)
    from_start = sum(piece[0] == 0 for piece in pieces) / len(pieces)
    assert from_start == pytest.approx(0.5, abs=0.05)
    assert max(piece[-1] for piece in pieces) == 99
    short = sum(len(piece) < 12 for piece in pieces) / len(pieces)  # log-uniform: half below 11.3
    assert short == pytest.approx(0.5, abs=0.06)


def test_a_batch_gives_the_first_token_and_scores_the_rest():
    texts = [LabelledTokens([5, 6, 7], True), LabelledTokens([8, 9], False)]
    batch, labels = piece_batch(texts, 4, 8, random.Random(0))
    assert batch.prompt_lengths.tolist() == [1, 1] and batch.lengths.tolist() == [2, 1]
    assert batch.tokens.tolist() == [[5, 6, 7], [8, 9, 0]] and labels.tolist() == [1, 0]


def test_micro_batches_change_no_gradient():
    texts = encode_labelled(texts_of(7), TOKENIZER)
    gradients = []
    for size in (2, 100):
        model = model_of()
        config = OutcomeConfig(micro_batch_size=size, shortest=4)
        numbers = add_texts(model, texts, config, 16, random.Random(1))
        gradients.append((numbers["loss"], model.head.weight.grad, model.gpt.wte.weight.grad))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_loss_and_accuracy_of_a_step_by_hand(monkeypatch):
    """Log-odds .3 of a good text, -.2 and 2 of bad ones: two are right, at .554, .598 and 2.127."""
    texts = [LabelledTokens([4, 5, 6], label) for label in (True, False, False)]
    model, scores = model_of(), torch.tensor([0.3, -0.2, 2.0], requires_grad=True)
    monkeypatch.setattr(model, "raw_scores", lambda batch: scores)
    numbers = add_texts(model, texts, OutcomeConfig(shortest=4), 16, random.Random(0))
    assert numbers["accuracy"] == pytest.approx(2 / 3)
    assert numbers["loss"] == pytest.approx((0.554355 + 0.598139 + 2.126928) / 3, abs=1e-6)


@pytest.mark.parametrize("pooling", ["mean_score", "last_token"])
def test_it_learns_a_word(pooling):
    texts = encode_labelled(texts_of(200), TOKENIZER)
    config = OutcomeConfig(batch_size=16, lr=5e-3, shortest=12, warmup=5)
    model, log = model_of(pooling=pooling), MetricLog(60)
    rows = train(model, texts[:160], config, log)
    assert len(rows) == 60 and rows[-1]["loss"] < 0.2 < 0.5 < rows[0]["loss"]
    scores = score_beginnings(model, texts[160:], 32)
    labels = torch.tensor([text.label for text in texts[160:]])
    assert ((scores > 0) == labels).float().mean() > 0.9


def test_report_reads_scores_in_their_confident_direction():
    scores = torch.tensor([2.0, -2.0, 2.0, 0.5])
    labels = torch.tensor([True, False, False, True])
    report = log_odds_report(scores, labels, torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert report["accuracy"] == 0.75 and report["majority_accuracy"] == 0.5
    sure, unsure = torch.sigmoid(torch.tensor([2.0, 0.5])).tolist()
    error = (abs(sure - 2 / 3) * 3 + abs(unsure - 1)) / 4
    assert report["calibration_error"] == pytest.approx(error)


def test_the_rival_learns_from_the_training_texts_alone():
    """Held-out labels that say the opposite are all missed."""
    train = encode_labelled(texts_of(40), TOKENIZER)
    turned = [LabelledTokens(text.tokens, not text.label) for text in train]
    assert ngram_accuracy(train, train, TOKENIZER, 16) == 1
    assert ngram_accuracy(train, turned, TOKENIZER, 16) == 0


def write_texts(path, records):
    path.write_text("".join(json.dumps(vars(r)) + "\n" for r in records), encoding="utf-8")
    return str(path)


def test_no_text_that_is_reported_on_is_trained_on(tmp_path):
    """Neither of the data's own tenth nor of a source that repeats training texts."""
    data = write_texts(tmp_path / "train.jsonl", texts_of(200))
    train, held_out = open_texts(OutcomeConfig(data=data), TOKENIZER)
    assert not {tuple(t.tokens) for t in train} & {tuple(t.tokens) for t in held_out}
    assert len(train) > 6 * len(held_out) > 40
    other = write_texts(tmp_path / "test.jsonl", [*texts_of(5), *texts_of(9, seed=1)])
    train, held_out = open_texts(OutcomeConfig(data=data, held_out=other), TOKENIZER)
    assert (len(train), len(held_out)) == (200, 9)
    assert not {tuple(t.tokens) for t in train} & {tuple(t.tokens) for t in held_out}


def test_the_script_trains_reports_and_writes_a_reward_model(tmp_path, capsys):
    data = write_texts(tmp_path / "train.jsonl", texts_of(60))
    held_out = write_texts(tmp_path / "test.jsonl", [*texts_of(20, seed=1), *texts_of(3)])
    trunk = GPT(SHAPE).initialize(make_generator(0, "weights"))
    save_gpt(tmp_path / "base" / "model.safetensors", trunk, TOKENIZER)
    config = OutcomeConfig(
        data=data, held_out=held_out, base=tmp_path / "base", steps=3, batch_size=4, shortest=4,
        held_out_texts=15, device="cpu", ranks=1, out=tmp_path / "run",
    )  # fmt: skip
    folder = outcome_training.main(config)
    assert "outcome reward model on 60 texts for 3 steps" in capsys.readouterr().out
    report = json.loads((folder / "report.json").read_text())
    assert list(report) == ["4", "8", "32"] and report["32"]["texts"] == 15
    assert (folder / "report.png").exists() and not (folder / "state.pt").exists()
    model, _ = load_reward_model(folder)
    assert (float(model.mean), float(model.std)) == (0, 1)  # the score is the log-odds itself
    fresh = dataclasses.replace(config, base=None, layers=2, width=32, context=16)
    model, _ = load_reward_model(outcome_training.main(dataclasses.replace(fresh, resume=False)))
    assert (model.gpt.config.n_layer, model.gpt.config.context) == (2, 16)
