"""A tokenizer in another program's files: ids equal to ours, there and back."""

from __future__ import annotations

import random
from contextlib import nullcontext
from pathlib import Path

import pytest
import toys

from gpt.folder import open_model
from gpt.huggingface import save_hf
from gpt.model import GPTConfig
from gpt.tokenizer import GPT2_PATTERN, Tokenizer, build_tokenizer, load_tokenizer
from gpt.tokenizer_files import BYTES, read_tokenizer, write_tokenizer
from harness.errors import UserError
from harness.files import read_object, write_json

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


SPACES_ALONE = [
    {"type": "Split", "pattern": {"Regex": r"\s+"}, "behavior": "Isolated"},
    {"type": "ByteLevel", "use_regex": False},
]


def changed(folder: Path, change: dict, **model) -> None:
    """tokenizer.json with other parts, and with other parts of its model."""
    form = read_object(folder / "tokenizer.json") | change
    write_json(folder / "tokenizer.json", form | {"model": form["model"] | model})


def of(vocabulary, merges=()) -> dict:
    """Nothing but this vocabulary."""
    return {"model": {"vocab": vocabulary, "merges": [*merges]}, "added_tokens": []}


@pytest.mark.parametrize(
    "change, model, size",
    [
        (of(LETTERS | {"th": 257, "he": 256, END: 258}, ["t h", "h e"]), {}, 259),  # another order
        (of({"t": 0, END: 1}), {}, 2),  # no single bytes
        (of(LETTERS | {END: 256}), {}, 200),  # more ids than the model has
        (of(LETTERS), {}, 256),  # no end of text
        ({"normalizer": {"type": "Lowercase"}}, {}, 624),
        ({"pre_tokenizer": {"type": "Whitespace"}}, {}, 624),
        ({"model": {"type": "WordPiece", "vocab": {}, "merges": []}}, {}, 624),
        ({"post_processor": {"type": "TemplateProcessing"}}, {}, 624),
        ({"pre_tokenizer": {"pretokenizers": SPACES_ALONE}}, {}, 624),
        ({}, {"merges": []}, 624),
        ({}, {"end_of_word_suffix": "</w>"}, 624),
    ],
)
def test_files_that_mean_something_else_are_refused(change, model, size, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, load_tokenizer("glassbox"), context=64)
    assert read_tokenizer(tmp_path, 624) is not None
    changed(tmp_path, change, **model)
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(UserError):
        read_tokenizer(tmp_path, size)


# --- what a folder says beside ranks and pattern --------------------------------------------------


def thinking(**more) -> Tokenizer:
    """GPT-2's pattern, and added tokens: longer ones that begin as shorter ones do, and a word."""
    like = gpt2_like()
    specials = {"<|end|>": 0, "<think>": 264, "<think>\n": 265, "</think>": 266, "<|turn|>": 267}
    added = ["<think>", "<think>\n", "</think>", "the"]
    return build_tokenizer(
        "thinking", like.encoding._mergeable_ranks, GPT2_PATTERN, specials, "<|end|>", "<|end|>",
        **{"added": added} | more,
    )  # fmt: skip


def test_added_tokens_stand_whole_in_a_text_and_special_ones_do_not(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, thinking(), context=64)
    back = read_tokenizer(tmp_path, 268)
    assert (
        back is not None and back.fingerprint == thinking().fingerprint != gpt2_like().fingerprint
    )
    for tokenizer in (thinking(), back):
        assert tokenizer.encode("<think>x</think><think>\n") == [264, 1 + ord("x"), 266, 265]
        assert tokenizer.encode(" the") == [1 + ord(" "), tokenizer.encode("the")[0]]  # not " the"
        text = "a <|turn|> of <think> the </think>"
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert not {0, 267} & set(tokenizer.encode(text))


@pytest.mark.oracle
def test_ids_of_added_tokens_are_those_of_tokenizers(require, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, thinking(), context=64)
    theirs = require("tokenizers").Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    rng, ours = random.Random(0), thinking()
    for _ in range(1000):
        text = "".join(rng.choices([*PIECES, *ours.added, "<th", "ink>", ">"], k=12))
        assert ours.encode(text) == theirs.encode(text).ids, repr(text)


@pytest.mark.parametrize(
    "change",
    [
        {"lstrip": True}, {"rstrip": True}, {"single_word": True}, {"id": 5}, {"id": 268},
        {"content": ""}, {"normalized": True, "content": "x</think>"},
    ],
)  # fmt: skip
def test_added_tokens_that_cannot_be_followed_are_refused(change, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, thinking(), context=64)
    form = read_object(tmp_path / "tokenizer.json")
    at = [token["content"] for token in form["added_tokens"]].index("<think>")
    form["added_tokens"][at] |= change
    write_json(tmp_path / "tokenizer.json", form)
    with pytest.raises(UserError):
        read_tokenizer(tmp_path, 268)


def as_older_folder(folder: Path) -> None:
    """vocab.json and merges.txt instead of tokenizer.json."""
    model = read_object(folder / "tokenizer.json")["model"]
    (folder / "tokenizer.json").unlink()
    write_json(folder / "vocab.json", model["vocab"])
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *model["merges"], ""]), "utf-8")


def test_vocab_and_merges_are_read(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, gpt2_like(), context=64)
    as_older_folder(tmp_path)
    back = read_tokenizer(tmp_path, 264)
    assert back is not None and back.fingerprint == gpt2_like().fingerprint
    (tmp_path / "added_tokens.json").write_text('{"<think>": 264}')  # who knows if it is special
    with pytest.raises(UserError):
        read_tokenizer(tmp_path, 265)
    (tmp_path / "added_tokens.json").unlink()
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(UserError):
        read_tokenizer(tmp_path, 264)


@pytest.mark.parametrize("end, english", [(50256, True), (0, False), (None, False)])
def test_the_number_of_tokens_does_not_make_them_gpt2s(end, english, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("gpt.huggingface.load_tokenizer", lambda name: gpt2_like())  # no network
    save_hf(toys.random_gpt(GPTConfig.vocab_size, 8, n_embd=2), tmp_path)
    config = read_object(tmp_path / "config.json") | {"eos_token_id": end}
    write_json(tmp_path / "config.json", config)
    with nullcontext() if english else pytest.raises(UserError):
        open_model(tmp_path)


@pytest.mark.parametrize(
    "config, generation, named, end, others",
    [
        ({"eos_token_id": [265, 264]}, {}, None, 265, [264]),
        ({"eos_token_id": 264}, {"eos_token_id": [266, 264, 0]}, None, 264, [266, 0]),
        ({"eos_token_id": [265, 264]}, {"eos_token_id": 50256}, "<|end|>", 0, [265, 264]),
        ({}, {}, "<|end|>", 0, []),
    ],
)
def test_the_first_end_is_written_and_all_are_kept(
    config, generation, named, end, others, tmp_path: Path
) -> None:
    model = toys.random_gpt(268, 8, n_embd=4)
    save_hf(model, tmp_path, thinking(bos_id=267))
    settings = read_object(tmp_path / "tokenizer_config.json") | {"eos_token": named}
    write_json(tmp_path / "tokenizer_config.json", settings)
    hub = {k: v for k, v in read_object(tmp_path / "config.json").items() if k != "eos_token_id"}
    write_json(tmp_path / "config.json", hub | config)
    write_json(tmp_path / "generation_config.json", generation)
    again, back = open_model(tmp_path)
    assert (back.eos_id, list(back.other_ends), back.bos_id) == (end, others, 267)
    save_hf(again, tmp_path / "out", back)
    written = read_object(tmp_path / "out" / "config.json")
    assert written["eos_token_id"] == ([end, *others] if others else end)
    assert written["bos_token_id"] == 267
