"""Supervised fine-tuning: what the loss sees, which records it reads, and that a run resumes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from toys import GLASSBOX, Crash, CrashingLog, split_by_question, weights, write_pairs

from data.records import PreferenceRecord
from gpt.finetuning import FinetuningConfig, Work, plan, preferred_answers, read_examples, train
from gpt.lengths import Limits, check_fit
from gpt.model import GPT, GPTConfig
from harness.errors import UserError
from harness.metric_log import MetricLog
from harness.training_state import saved_step

V, EOS = 12, 0
# The answer to [x, 1] is [x, EOS], to [x, 2] it is [x, x, EOS].
EXAMPLES = [([x, k], [x] * k + [EOS]) for x in range(3, 12) for k in (1, 2)]
CONFIG = FinetuningConfig(batch_size=8, lr=1e-2, warmup_steps=2, eval_every=5, weight_decay=0.0)


def small_gpt(vocab_size: int = V, context: int = 32, dropout: float = 0.0) -> GPT:
    shape = GPTConfig(vocab_size, context, n_layer=1, n_head=2, n_embd=32, dropout=dropout)
    return GPT(shape).initialize(torch.Generator().manual_seed(0))


def test_the_loss_is_the_mean_over_response_tokens_alone():
    """By a loop over unpadded rows; the prompt and the padding predict nothing."""
    model, examples = small_gpt(), EXAMPLES[:3]
    total, count = 0.0, 0
    for prompt, response in examples:
        logits = model(torch.tensor([prompt + response]))[0].detach()
        for t, token in enumerate(response):
            total -= float(logits[len(prompt) - 1 + t].log_softmax(-1)[token])
            count += 1
    log = MetricLog(1)
    rows = train(replace(CONFIG, batch_size=3, lr=0.0), model, examples, examples, log, eos_id=EOS)
    assert count == 7
    assert rows[0]["loss"] == pytest.approx(total / count, abs=1e-5)
    assert rows[0]["held_out_loss"] == pytest.approx(total / count, abs=1e-5)


def test_micro_batches_and_padding_do_not_change_the_update():
    """Rows of 2 and 3 tokens: a mean of the forwards' means would weigh them wrongly."""
    ends = []
    for size in (None, 1, 3):
        model = small_gpt().double()
        config = replace(CONFIG, micro_batch_size=size)
        rows = train(config, model, EXAMPLES, (), MetricLog(2), eos_id=EOS)
        ends.append((weights(model), [(row["loss"], row["grad_norm"]) for row in rows]))
    for end, rows in ends[1:]:
        torch.testing.assert_close(end, ends[0][0], rtol=0, atol=1e-8)
        torch.testing.assert_close(torch.tensor(rows), torch.tensor(ends[0][1]))


def test_the_seed_orders_the_records():
    """At learning rate 0 a step's loss tells which records it reads."""
    first, again, other = (
        [row["loss"] for row in train(config, small_gpt(), EXAMPLES, (), MetricLog(2), eos_id=EOS)]
        for config in (replace(CONFIG, lr=0.0, seed=seed) for seed in (1, 1, 2))
    )
    assert first == again and not set(first) & set(other)


def test_a_pass_visits_every_record(tmp_path):
    """Three passes over 18 records, eight at a time: 6.75 steps, and the last one goes on."""
    work = Work(small_gpt(), GLASSBOX, EXAMPLES, [])
    assert plan(replace(CONFIG, epochs=3), work, tmp_path, 0).steps == 7
    assert plan(replace(CONFIG, epochs=3, steps=5), work, tmp_path, 0).steps == 5


def test_every_step_drops_units_of_its_own():
    """And the same ones whatever the process has drawn before; the held-out loss drops none."""
    runs = []
    for drawn in (1, 2):
        torch.manual_seed(drawn)
        config, model = replace(CONFIG, lr=0.0, eval_every=1), small_gpt(dropout=0.3)
        rows = train(config, model, EXAMPLES[:1], EXAMPLES, MetricLog(3), eos_id=EOS)
        assert len({row["loss"] for row in rows}) == 3
        assert len({row["held_out_loss"] for row in rows}) == 1 and not model.training
        runs.append([row["loss"] for row in rows])
    assert runs[0] == runs[1]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, dropout):
    config = replace(CONFIG, save_every=4)
    whole = small_gpt(dropout=dropout)
    rows = train(config, whole, EXAMPLES, EXAMPLES[:2], MetricLog(8), eos_id=EOS)
    with pytest.raises(Crash):
        log = CrashingLog(8)
        model = small_gpt(dropout=dropout)
        train(config, model, EXAMPLES, EXAMPLES[:2], log, eos_id=EOS, folder=tmp_path)
    assert saved_step(tmp_path) == 4
    resumed, log = small_gpt(dropout=dropout), MetricLog(8)
    torch.nn.init.ones_(resumed.wte.weight)  # everything comes from the file
    config = replace(config, resume=True)
    more = train(config, resumed, EXAMPLES, EXAMPLES[:2], log, eos_id=EOS, folder=tmp_path)
    assert [row["step"] for row in more] == [5, 6, 7, 8]
    assert [row["loss"] for row in more] == [row["loss"] for row in rows[4:]]
    assert torch.equal(weights(whole), weights(resumed))


def test_of_pairs_the_chosen_answers_are_read_and_split_by_prompt(tmp_path, capsys):
    rows = write_pairs(tmp_path / "pairs.json")
    config = FinetuningConfig(data=str(tmp_path / "pairs.json"))
    examples, held_out = read_examples(config, GLASSBOX, 128)
    for split, part in (("train", examples), ("validation", held_out)):
        assert {
            (GLASSBOX.decode(prompt), GLASSBOX.decode(response)) for prompt, response in part
        } == {(r["prompt"], r["chosen"]) for r in rows if split_by_question(r["prompt"]) == split}
        assert all(response[-1] == GLASSBOX.eos_id for _, response in part)
    assert "60 of 60 rows kept" in capsys.readouterr().out


def test_no_example_is_longer_than_the_models_context(tmp_path, capsys):
    """Both flags allow it, but 40 prompt tokens, 20 of the answer and its EOS are 61."""
    rows = write_pairs(tmp_path / "pairs.json", prompt=" lamp" * 40, chosen=" lamp" * 20)
    config = FinetuningConfig(data=str(tmp_path / "pairs.json"))
    for context in (60, 61):
        parts = read_examples(config, GLASSBOX, context)
        found = rows[0]["prompt"] in {GLASSBOX.decode(p) for part in parts for p, _ in part}
        assert found == (context == 61 and split_by_question(rows[0]["prompt"]) != "test")
    assert "(2%) do not fit: longer than the model's 60 positions 1" in capsys.readouterr().out


def test_the_preferred_answer_is_the_one_that_won_most_comparisons():
    rows = (("p", "a", "b"), ("p", "c", "a"), ("q", "x", "y"), ("p", "c", "b"))
    best = preferred_answers([PreferenceRecord(*row) for row in rows])
    assert [(r.prompt, r.response) for r in best] == [("p", "c"), ("q", "x")]


def test_a_file_most_of_whose_rows_do_not_fit_is_refused():
    rows = [(prompt, 20) for prompt in range(1, 101)]
    check_fit("hh.jsonl", rows, Limits(60, 60, 256), "pairs")
    with pytest.raises(UserError):
        check_fit("hh.jsonl", rows, Limits(49, 60, 256), "pairs")
