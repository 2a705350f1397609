"""Both tokenizers, and the training that the committed rank file comes from."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter

import pytest
from toys import GLASSBOX, seeded

from data.worlds import reviews, sums
from gpt import tokenizer_training
from gpt.checkpoint import load_gpt, save_gpt
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import (
    DIGITS_PATTERN,
    GPT2_PATTERN,
    PATTERN,
    RANKS_FILE,
    build_tokenizer,
)
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


@pytest.mark.parametrize("pattern", [PATTERN, GPT2_PATTERN, DIGITS_PATTERN])
def test_long_blanks_are_cut_as_short_ones(pattern, monkeypatch):
    """With the bound at two characters, so that what tiktoken makes of the whole can be had."""
    merged = [b"  ", b"    ", b"   ", b"\n\n", b" \n", b" a", b"\t\t", b"\xc2\xa0 "]
    spelled = [*(bytes([value]) for value in range(256)), *merged]
    tokenizer = build_tokenizer("x", {token: id for id, token in enumerate(spelled)}, pattern)
    rng = random.Random(0)
    signs = ["\n", "\t", "\xa0", "\x1c", "\x85", "a", "7", "½", "'s", ".", "漢", *[" "] * 8]
    texts = ["".join(rng.choices(signs, k=rng.randint(0, 14))) for _ in range(1500)]
    whole = [tokenizer.encode(text) for text in texts]
    monkeypatch.setattr("gpt.tokenizer.LONG_BLANK", 2)
    assert (
        [tokenizer.encode(text) for text in texts]
        == whole
        == [tokenizer.encoding.encode_ordinary(text) for text in texts]
    )


def test_a_million_blanks_are_read():
    ids = GLASSBOX.encode("a" + " " * 1_200_000 + "b\n")
    assert len(ids) == 1_200_002 and GLASSBOX.decode(ids[-2:]) == " b\n"
    other = build_tokenizer("x", dict(GLASSBOX.encoding._mergeable_ranks), r"\s+(?!\S)|\s|\S+")
    with pytest.raises(UserError):
        other.encode(" " * 1_200_000)


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
