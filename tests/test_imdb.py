"""scripts/imdb.py: reading the raw files, the measures, the table; all of it where the data is at hand."""

import json
import math

import pytest
import torch

from data.records import PromptRecord
from gpt.generate import SamplingParams
from gpt.log_probs import token_log_probs
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import load_tokenizer
from harness.files import read_jsonl
from harness.seeds import make_generator
from rl.batches.rollout import sample_rollout
from scripts import imdb
from scripts.imdb import IMDBConfig

TOKENIZER = load_tokenizer("glassbox")


def write(folder, name, rows):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def raw_folder(tmp_path):
    """A small aclImdb, in which some texts stand twice."""
    train, test = ([f"{name} {i}" for i in range(n)] for name, n in (("train", 40), ("test", 6)))
    unsup = [f"a review, number {i}" for i in range(30)]
    folders = {
        "train/pos": [*train[::2], train[0]], "train/neg": train[1::2],
        "test/pos": test[::2], "test/neg": [*test[1::2], train[3]],
        "train/unsup": [*unsup, train[1], unsup[2], test[5]],
    }  # fmt: skip
    for name, texts in folders.items():
        (tmp_path / "raw" / name).mkdir(parents=True)
        for i, text in enumerate(texts):
            (tmp_path / "raw" / name / f"{i}.txt").write_text(text)
    return tmp_path / "raw"


def test_no_text_is_in_two_of_the_prepared_files(tmp_path):
    folder = tmp_path / "data"
    imdb.prepare(IMDBConfig(data=raw_folder(tmp_path)), folder)
    names = ("a", "b", "test", "texts")
    found = {name: [row["text"] for row in read_jsonl(folder / f"{name}.jsonl")] for name in names}
    every = [text for texts in found.values() for text in texts]
    assert len(every) == len(set(every)) == 40 + 6 + 30
    assert len(found["a"]) + len(found["b"]) == 40 and min(map(len, found.values())) >= 6
    assert set(found["test"]) == {f"test {i}" for i in range(6)}


def test_prompts_are_beginnings_of_two_to_eight_tokens_each_once(tmp_path):
    texts = [f"the red cup {i} was new and good" for i in range(30)] * 2 + [
        "\nline",
        "a\nb c d e f",
    ]
    write(tmp_path, "texts.jsonl", [{"text": text} for text in texts])
    imdb.write_prompts(tmp_path, TOKENIZER)
    prompts = [row["prompt"] for row in read_jsonl(tmp_path / "prompts.jsonl")]
    assert prompts and len(prompts) == len(set(prompts)) and not any("\n" in p for p in prompts)
    assert all(any(text.startswith(prompt) for text in texts) for prompt in prompts)
    assert {len(TOKENIZER.encode(prompt)) for prompt in prompts} <= set(range(2, 9))


def judges_of(folder, favourite):
    """Stand-ins for the classifiers: A counts a token, B and the n-grams say no and yes."""
    base = GPT(GPTConfig(TOKENIZER.n_vocab, 64, 1, 1, 16)).initialize(make_generator(0, "weights"))
    judges = object.__new__(imdb.Judges)
    judges.folder, judges.device, judges.base, judges.tokenizer = folder, "cpu", base, TOKENIZER
    judges.a = lambda rollout: (rollout.response_tokens == favourite).sum(1).float() - 0.5
    judges.b = lambda rollout: -torch.ones(len(rollout))
    judges.__dict__["ngrams"] = lambda texts: torch.ones(len(texts))
    judges.prompts = [PromptRecord(f"a cup {i}") for i in range(12)]
    return judges


def test_a_row_by_hand(tmp_path):
    """Answers of 10 and of 32 tokens: the mean surprise is over tokens, a third is above 0."""
    judges = judges_of(tmp_path, favourite=5)
    rollout = judges.answers(judges.base)
    rollout.sequences.response_mask[:6, 10:] = False
    del rollout.sequences.__dict__["sizes"]  # of the mask as it was
    judges.answers = lambda policy: rollout
    judges.b = lambda rollout: torch.tensor([0.25, -0.25, -3.0] * 4)
    row = judges.measure(judges.base)
    assert row["tokens"] == 21
    assert (row["positive_b"], row["score_b"]) == pytest.approx((1 / 3, -1))
    log_probs = token_log_probs(judges.base, rollout.sequences).detach()
    surprise = -float(log_probs[rollout.response_mask].mean())
    assert row["perplexity"] == pytest.approx(math.exp(surprise), rel=1e-4)


def test_reward_and_judges_learn_from_different_labels(tmp_path, monkeypatch):
    """A from its half on the language model's trunk, B and the n-grams from the other half."""
    stages = {}
    monkeypatch.setattr(
        imdb, "run_stage", lambda config, folder, module, flags: stages.update({folder.name: flags})
    )
    imdb.train_classifiers(IMDBConfig(), tmp_path)
    for name, half in (("classifier_a", "a.jsonl"), ("classifier_b", "b.jsonl")):
        flags = stages[name]
        assert flags["data"] == tmp_path / "data" / half
        assert flags["held_out"] == tmp_path / "data" / "test.jsonl"
        assert ("base" in flags) == (name == "classifier_a")
    rows = [{"text": f"good {i}", "label": True} for i in range(9)]
    rows += [{"text": f"bad {i}", "label": False} for i in range(9)]
    write(tmp_path / "data", "b.jsonl", rows)
    write(tmp_path / "data", "a.jsonl", [row | {"label": not row["label"]} for row in rows])
    judges = object.__new__(imdb.Judges)
    judges.folder = tmp_path
    good, bad = judges.ngrams(["good", "bad"])
    assert good > 0 > bad


def test_a_pair_is_the_best_and_the_worst_answer_token_by_token(tmp_path):
    judges = judges_of(tmp_path, favourite=5)
    rollout = sample_rollout(
        judges.base, TOKENIZER, judges.prompts, SamplingParams(max_new_tokens=40), 4,
        make_generator(0, "pairs"),
    )  # fmt: skip
    rows = imdb.pairs_of(rollout, judges, judges.prompts)
    assert rows
    for row in rows:
        chosen, rejected = (row[f"{side}_tokens"].count(5) for side in ("chosen", "rejected"))
        assert chosen - rejected == row["margin"] >= 0
        assert TOKENIZER.decode(row["chosen_tokens"]) == row["chosen"]


def test_distinct_counts_over_all_answers_and_never_across_two():
    assert imdb.distinct(["a b a b"], 2) == pytest.approx(2 / 3)  # ab, ba, ab
    assert imdb.distinct(["a b", "a b"], 2) == 0.5
    assert imdb.distinct(["a b", "c d"], 1) == 1
    assert imdb.distinct([""], 2) == 0
