"""Training batches of worlds and files: what is in them, what must never be, and in which order."""

from __future__ import annotations

import json
import re
import zlib

import pytest
import torch
from toys import GLASSBOX as TOKENIZER
from toys import split_by_question, write_pairs

from data.collate import ResponseBatch
from data.sources import file_source
from data.worlds import reviews
from gpt.corpus import POOL, TextCorpus, WorldCorpus, open_corpus

EOS = TOKENIZER.eos_id


def same(one: ResponseBatch, other: ResponseBatch) -> bool:
    return all(torch.equal(value, vars(other)[name]) for name, value in vars(one).items())


def texts(batches: list[ResponseBatch]) -> list[tuple[str, str]]:
    """(prompt, response) of every row, read back from the stored tokens."""
    found = []
    for batch in batches:
        for row, start, length in zip(
            batch.tokens, batch.prompt_lengths, batch.lengths, strict=True
        ):
            prompt, response = row[:start].tolist(), row[start : start + length].tolist()
            assert response[-1] == EOS and response.count(EOS) == 1
            found.append((TOKENIZER.decode(prompt), TOKENIZER.decode(response)))
    return found


def bucket(key: str) -> str:
    number = zlib.crc32(key.encode()) % 100
    return "test" if number < 10 else "validation" if number < 20 else "train"


def split_key(world: str, prompt: str) -> str:
    """What the worlds' splits are made by: the sum itself, or name|adjective|item."""
    if world == "sums":
        assert re.fullmatch(r"\d{3}\+\d{3}=", prompt)
        return prompt
    words = set(re.findall(r"\w+", prompt))
    return "|".join(
        next(word for word in choices if word in words)
        for choices in (reviews.NAMES, reviews.ADJECTIVES, reviews.ITEMS)
    )


@pytest.fixture(scope="module")
def pools() -> dict[str, list[ResponseBatch]]:
    """The first pool of either world."""
    found = {}
    for name in ("reviews", "sums"):
        corpus = WorldCorpus(name, TOKENIZER, batch_size=4, seed=0)
        found[name] = [corpus.batch(index) for index in range(POOL)]
    return found


@pytest.mark.parametrize("world", ["reviews", "sums"])
def test_only_train_prompts_are_trained_on(pools, world):
    rows = texts(pools[world])
    assert len(rows) == 4 * POOL
    assert {bucket(split_key(world, prompt)) for prompt, _ in rows} == {"train"}


@pytest.mark.parametrize("world", ["reviews", "sums"])
def test_a_worlds_usual_count_of_tokens_is_the_mean_of_its_first_pool(pools, world):
    corpus = WorldCorpus(world, TOKENIZER, batch_size=4, seed=0)
    tokens = sum(int(batch.response_mask.sum()) for batch in pools[world])
    assert corpus.tokens_per_batch == tokens / POOL


@pytest.mark.parametrize("world", ["reviews", "sums"])
def test_only_validation_prompts_are_held_out(world):
    batches = WorldCorpus(world, TOKENIZER, batch_size=30, seed=0).held_out_batches()
    rows = texts(batches)
    assert len(rows) == 256 and max(len(batch) for batch in batches) == 30
    assert {bucket(split_key(world, prompt)) for prompt, _ in rows} == {"validation"}
    if world == "reviews":
        items = {split_key(world, prompt).split("|")[2] for prompt, _ in rows}
        assert not items & set(reviews.HELD_OUT_ITEMS)
        later = WorldCorpus(world, TOKENIZER, batch_size=30, seed=0)
        later.batch(POOL)  # of the second pool: what was read before changes nothing
        again = later.held_out_batches()
        assert all(same(one, other) for one, other in zip(batches, again, strict=True))


@pytest.mark.parametrize("world", ["reviews", "sums"])
def test_a_batch_depends_on_its_number_and_the_seed_alone(world):
    """Whatever was read before: a resumed run starts in the middle."""
    corpus = WorldCorpus(world, TOKENIZER, batch_size=4, seed=1)
    in_order = {index: corpus.batch(index) for index in (0, 1, POOL + 3)}
    for index in (POOL + 3, 1, 0):
        fresh = WorldCorpus(world, TOKENIZER, batch_size=4, seed=1)
        assert same(fresh.batch(index), in_order[index])
        assert same(corpus.batch(index), in_order[index])
    assert not same(in_order[0], in_order[1])
    assert not same(corpus.batch(POOL), corpus.batch(0))  # the next pool is fresh
    assert not same(WorldCorpus(world, TOKENIZER, batch_size=4, seed=2).batch(0), in_order[0])


def numbered_corpus(count: int = 1000, **options) -> TextCorpus:
    """A corpus whose token at place n is n: `count` tokens, the last of them EOS."""
    corpus = TextCorpus(["x" * (count - 1)], OneLetter(), **options)
    assert len(corpus.tokens) == count
    corpus.tokens = torch.arange(count)
    return corpus


class OneLetter:
    """A tokenizer that gives every letter a token."""

    eos_id = 0

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    encode_prompt = encode


def test_windows_are_contiguous_and_reach_all_but_the_held_out_tenth():
    corpus = numbered_corpus(batch_size=16, context=32, seed=0)
    batches = [corpus.batch(index) for index in range(60)]
    for batch in batches:
        assert batch.tokens.shape == (16, 32)
        assert torch.equal(batch.tokens, batch.tokens[:, :1] + torch.arange(32))
        assert batch.prompt_lengths.tolist() == [1] * 16
        assert batch.response_mask.all() and batch.response_mask.shape == (16, 31)
    starts = {row[0] for batch in batches for row in batch.tokens.tolist()}
    assert len(starts) > 500 and min(starts) < 20 and 850 < max(starts) + 31 < 900
    assert corpus.tokens_per_batch == 16 * 31


def test_windows_depend_on_their_number_and_the_seed_alone():
    first, again, other = (
        numbered_corpus(batch_size=4, context=32, seed=seed) for seed in (0, 0, 1)
    )
    in_order = [first.batch(index) for index in range(3)]
    assert all(same(again.batch(index), in_order[index]) for index in (2, 0, 1))
    assert len({tuple(batch.tokens[:, 0].tolist()) for batch in in_order}) == 3
    assert not same(other.batch(0), in_order[0])


def test_the_last_tenth_is_held_out_in_windows_that_do_not_overlap():
    batches = numbered_corpus(batch_size=2, context=32, seed=0).held_out_batches()
    starts = [row[0] for batch in batches for row in batch.tokens.tolist()]
    assert starts == [900, 932, 964]
    assert [len(batch) for batch in batches] == [2, 1]
    assert batches[1].tokens.tolist() == [list(range(964, 996))]


def test_texts_are_joined_by_eos_and_short_texts_get_short_windows():
    corpus = TextCorpus(["ab" * 50, "c" * 99], OneLetter(), batch_size=1, context=64, seed=0)
    expected = [*map(ord, "ab" * 50), 0, *map(ord, "c" * 99), 0]
    assert corpus.tokens.tolist() == expected
    assert corpus.window == 201 // 20
    assert corpus.held_out_batches()[0].tokens.shape[1] == 10
    assert corpus.description == "201 tokens in windows of 10"


def test_corpus_of_a_text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("One line.\nAnother line.\n" * 40, encoding="utf-8")
    corpus = open_corpus(str(path), TOKENIZER, batch_size=2, context=16, seed=0)
    assert TOKENIZER.decode(corpus.tokens.tolist()) == path.read_text()
    assert corpus.tokens[-1] == EOS and int((corpus.tokens == EOS).sum()) == 1
    assert isinstance(open_corpus("sums", TOKENIZER, batch_size=2, context=9, seed=0), WorldCorpus)


@pytest.mark.parametrize("name", ["pairs.json", "pairs.jsonl", "PAIRS.JSON"])
def test_corpus_of_a_preference_file(tmp_path, name, capsys):
    """Chosen answers of the training prompts only."""
    path = tmp_path / name
    rows = write_pairs(path, 100)
    if name.endswith("l"):
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    documents = file_source(path, None).documents()
    learned = [row for row in rows if split_by_question(row["prompt"]) == "train"]
    expected = [row["prompt"] + row["chosen"] for row in learned]
    assert documents == expected and 60 < len(documents) < 95
    assert "100 of 100 rows kept" in capsys.readouterr().out
    corpus = open_corpus(str(path), TOKENIZER, batch_size=2, context=16, seed=0)
    assert int((corpus.tokens == EOS).sum()) == len(expected)
    assert "No." not in TOKENIZER.decode(corpus.tokens.tolist())
