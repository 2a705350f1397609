"""Both tokenizers, and the training that the committed rank file comes from."""

from __future__ import annotations

import copy
import itertools
import random
import re
from collections import Counter
from dataclasses import replace

import pytest
from toys import GLASSBOX, seeded

from data.worlds import reviews, sums
from gpt import tokenizer_training
from gpt.checkpoint import load_gpt, save_gpt
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import RANKS_FILE, build_tokenizer
from harness.errors import UserError


@pytest.mark.parametrize(
    "text", ["", " a  b\n\n c", "347+588=9\t35:\r\n", "é½² e\u0301\u00a0\u2003_x's."]
)
def test_spaces_digits_and_signs_come_back(text):
    ids = GLASSBOX.encode(text)
    assert GLASSBOX.decode(ids) == text
    pieces = [GLASSBOX.decode([token]) for token in ids]
    assert all(len(piece) == 1 for piece in pieces if re.search(r"[0-9\n]", piece))


def test_vocabulary_layout():
    assert GLASSBOX.n_vocab == 624
    assert (GLASSBOX.eos_id, GLASSBOX.pad_id) == (622, 623)
    assert [GLASSBOX.encode(letter) for letter in "A0\n"] == [[65], [48], [10]]


def test_prompt_and_response_are_tokenized_alike_apart_and_together():
    for record in [*reviews.corpus(300, seed=9), *sums.corpus(300, seed=9)]:
        apart = GLASSBOX.encode(record.prompt) + GLASSBOX.encode(record.response)
        assert apart == GLASSBOX.encode(record.prompt + record.response)


@pytest.mark.parametrize("text", ["", "<|pad|", "|endoftext|> <|endoftext|>"])
def test_special_tokens_are_never_produced(text):
    ids = GLASSBOX.encode(f"<|endoftext|>{text}<|pad|>")
    assert not {GLASSBOX.eos_id, GLASSBOX.pad_id} & set(ids)
    assert GLASSBOX.decode(ids) == f"<|endoftext|>{text}<|pad|>"


def test_decode_drops_special_ids_and_survives_every_id():
    a, eos, pad = ord("a"), GLASSBOX.eos_id, GLASSBOX.pad_id
    assert GLASSBOX.decode([a, eos, pad, a, pad]) == "aa"
    assert GLASSBOX.decode([]) == ""
    assert GLASSBOX.decode([0xE2, 0x82]) == "\ufffd"  # the first two of the three bytes of a sign
    for token in range(GLASSBOX.n_vocab):
        assert isinstance(GLASSBOX.decode([token]), str)


def test_no_end_of_an_answer_is_in_its_text():
    """Rewards read the text: the mark of a chat's turn is none of it, by whichever end it stopped."""
    two_ends = replace(GLASSBOX, other_ends=[ord("!")])
    assert [two_ends.decode(GLASSBOX.encode(text)) for text in ("So!", "So?")] == ["So", "So?"]


def test_a_million_blanks_are_refused():
    """tiktoken's engine gives up at them, with an exception that is none of Python's."""
    text = "a" + " " * 200_000 + "b" + " " * 200_000
    assert GLASSBOX.decode(GLASSBOX.encode(text)) == text
    with pytest.raises(UserError):
        GLASSBOX.encode("a" + " " * 1_200_000 + "b")


def test_committed_rank_file_is_what_training_writes(tmp_path):
    out = tmp_path / "ranks.tiktoken"
    tokenizer_training.main(tokenizer_training.TokenizerTrainingConfig(out=out))
    assert out.read_bytes() == RANKS_FILE.read_bytes().replace(b"\r\n", b"\n")


def merges(texts, count):
    ranks = tokenizer_training.train_ranks(texts, 258 + count)
    assert list(ranks.values()) == list(range(len(ranks)))
    return list(ranks)[256:]


def merge(piece, pair):
    """Return `piece` with every occurrence of `pair` as one token, from left to right."""
    merged = []
    index = 0
    while index < len(piece):
        if piece[index : index + 2] == pair:
            merged.append(pair[0] + pair[1])
            index += 2
        else:
            merged.append(piece[index])
            index += 1
    return tuple(merged)


def merges_by_counting_everything(texts, count):
    """Byte-pair encoding as the paper's algorithm is written: every merge counts all pairs anew."""
    pieces, made = tokenizer_training.count_pieces(texts), {}
    while len(made) < count:
        pairs = Counter()
        for piece, times in pieces.items():
            for pair in itertools.pairwise(piece):
                pairs[pair] += times
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        made[best[0] + best[1]] = None
        pieces = Counter({merge(p, best): n for p, n in pieces.items()})
    return list(made)


def test_counting_what_changes_gives_the_merges_of_counting_everything():
    """Long runs of one sign, and random words, which make many ties."""
    rng = random.Random(0)
    words = ["".join(rng.choice("abcd") for _ in range(rng.randint(1, 9))) for _ in range(200)]
    texts = [
        " ".join(rng.choice(words) for _ in range(30)) + "." * rng.randint(0, 9) for _ in range(80)
    ]
    texts += ["!" * count for count in range(20)] + ["aaaa aaaaaaa éé日本日本"]
    for count in (1, 42, 262):
        assert merges(texts, count) == merges_by_counting_everything(texts, count)


def test_a_tokenizer_of_a_file_is_carried_by_its_models(tmp_path):
    texts = tmp_path / "words.txt"
    texts.write_text("the film was good, the film was bad\n" * 20, encoding="utf-8")
    tokenizer = tokenizer_training.own_tokenizer(str(texts))
    assert tokenizer.name.startswith("words-") and len(tokenizer.encode(" film")) == 1
    assert tokenizer.decode(tokenizer.encode("a film, bad!")) == "a film, bad!"
    model = GPT(GPTConfig(tokenizer.n_vocab, 16, 1, 1, 8)).initialize(seeded(0))
    save_gpt(tmp_path / "model.safetensors", model, tokenizer)
    assert load_gpt(tmp_path / "model.safetensors")[1].fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize("name", ["glassbox", "own"])
def test_a_model_does_not_open_with_other_tokens_than_it_was_trained_with(name, tmp_path):
    """A rank file that has changed since, or a header: its ids would mean other texts."""
    ranks = {bytes([97 + i]): i for i in range(8)}
    tokenizer = GLASSBOX if name == "glassbox" else build_tokenizer("own", ranks)
    changed = copy.copy(tokenizer)
    changed.__dict__["fingerprint"] = "0" * len(tokenizer.fingerprint)
    model = GPT(GPTConfig(tokenizer.n_vocab, 16, 1, 1, 8)).initialize(seeded(0))
    save_gpt(tmp_path / "model.safetensors", model, changed)
    with pytest.raises(UserError):
        load_gpt(tmp_path / "model.safetensors")
