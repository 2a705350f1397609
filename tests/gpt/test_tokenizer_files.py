"""A tokenizer in another program's files: ids equal to ours, there and back."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from gpt.tokenizer import Tokenizer, build_tokenizer, load_tokenizer
from gpt.tokenizer_files import BYTES, GPT2_PATTERN, read_tokenizer, write_tokenizer
from harness.errors import UserError

PIECES = [
    "a", "aa", " ", "  ", "\n", "the", "ing", "12", "é", "'s", "_", "--", "漢字", "Ⅳ", "\u200d", "Ⓐ",
    "🙂", "\t",
]  # fmt: skip
PAGES = sorted(Path(__file__).parents[2].glob("docs/*.md"))


def texts() -> list[str]:
    """Pages, every character up to U+2FFF in four positions, and random joins of awkward pieces."""
    rng = random.Random(0)
    mixed = ["".join(rng.choices(PIECES, k=12)) for _ in range(2000)]
    single = [f"a{c}1 {c}b{c}{c} \n{c} x" for c in map(chr, range(0x3000))]
    return [path.read_text(encoding="utf-8") for path in PAGES[:5]] + mixed + single


def gpt2_like() -> Tokenizer:
    """GPT-2's pattern, end of text as id 0, and merges behind: another order of ids than ours."""
    merged = [b"th", b"the", b" the", b"aa", b"aaa", b"in", b"ing"]
    tokens = [bytes([value]) for value in range(256)] + merged
    ranks = {token: 1 + id for id, token in enumerate(tokens)}
    return build_tokenizer("alike", ranks, GPT2_PATTERN, {"<|end|>": 0}, "<|end|>", "<|end|>")


@pytest.mark.oracle
@pytest.mark.parametrize("make", [lambda: load_tokenizer("glassbox"), gpt2_like])
def test_ids_are_ours_in_transformers_and_back(make, tmp_path: Path, require) -> None:
    ours = make()
    write_tokenizer(tmp_path, ours, context=64)
    theirs = require("transformers").AutoTokenizer.from_pretrained(tmp_path)
    assert (theirs.eos_token_id, theirs.pad_token_id) == (ours.eos_id, ours.pad_id)
    lines = texts()
    for line, ids in zip(lines, theirs(lines)["input_ids"], strict=True):
        assert ids == ours.encode(line), line[:80]
        if "\ufffd" not in line:
            assert theirs.decode(ids) == line
    back = read_tokenizer(tmp_path, ours.n_vocab)
    assert back is not None and back.fingerprint == ours.fingerprint
    assert (back.eos_id, back.pad_id) == (ours.eos_id, ours.pad_id)


LETTERS = {character: id for id, character in enumerate(BYTES)}
END = "<|endoftext|>"


@pytest.mark.parametrize(
    "vocabulary, merges, size",
    [
        (LETTERS | {"th": 257, "he": 256, END: 258}, ["t h", "h e"], 259),  # another order
        ({"t": 0, END: 1}, [], 2),  # no single bytes
        (LETTERS | {END: 256}, [], 200),  # more ids than the model has
        (LETTERS, [], 256),  # no end of text
    ],
)
def test_files_that_mean_something_else_are_refused(vocabulary, merges, size, tmp_path):
    write_tokenizer(tmp_path, load_tokenizer("glassbox"), context=64)
    path = tmp_path / "tokenizer.json"
    form = json.loads(path.read_text())
    form |= {"model": form["model"] | {"vocab": vocabulary, "merges": merges}, "added_tokens": []}
    path.write_text(json.dumps(form))
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(UserError):
        read_tokenizer(tmp_path, size)


SPACES_ALONE = [
    {"type": "Split", "pattern": {"Regex": r"\s+"}, "behavior": "Isolated"},
    {"type": "ByteLevel", "use_regex": False},
]


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"model": {"type": "WordPiece", "vocab": {}, "merges": []}},
        {"post_processor": {"type": "TemplateProcessing"}},
        {"pre_tokenizer": {"pretokenizers": SPACES_ALONE}},
    ],
)
def test_another_kind_of_tokenizer_is_refused(change, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, load_tokenizer("glassbox"), context=64)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError):
        read_tokenizer(tmp_path, 624)


def test_a_damaged_file_is_a_user_error_whatever_is_wrong(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, load_tokenizer("glassbox"), context=64)
    path = tmp_path / "tokenizer.json"
    whole = path.read_text()
    places = [("model",), ("model", "vocab"), ("model", "vocab", "a"), ("model", "merges"),
              ("model", "merges", 0), ("pre_tokenizer",), ("pre_tokenizer", "pretokenizers", 0),
              ("added_tokens",), ("added_tokens", 0), ("post_processor",)]  # fmt: skip
    opened = 0
    for place in places:
        for value in (None, [], {}, "x", 7, [1], {"a": 1}):
            form = json.loads(whole)
            part = form
            for key in place[:-1]:
                part = part[key]
            part[place[-1]] = value
            path.write_text(json.dumps(form))
            try:
                opened += read_tokenizer(tmp_path, 624) is not None
            except UserError:
                pass
    assert opened < 12  # what is left out there means the usual


@pytest.mark.parametrize("change", [{"merges": []}, {"end_of_word_suffix": "</w>"}])
def test_merges_of_few_tokens_or_with_endings_are_refused(change, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, load_tokenizer("glassbox"), context=64)
    path = tmp_path / "tokenizer.json"
    form = json.loads(path.read_text())
    form["model"] |= change
    path.write_text(json.dumps(form))
    with pytest.raises(UserError):
        read_tokenizer(tmp_path, 624)
