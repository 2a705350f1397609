"""A tokenizer in another program's files: ours there and back, and theirs as transformers reads them."""

from __future__ import annotations

import json
import random
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import toys
from toys import bytes_form, published_tokenizer, tokenizer_in

from gpt.checkpoint import checked_tokenizer, load_gpt, save_gpt
from gpt.folder import open_model
from gpt.huggingface import save_hf
from gpt.model import GPTConfig
from gpt.tokenizer import Tokenizer, build_tokenizer, load_tokenizer
from gpt.tokenizer_files import BYTE_LEVEL, BYTES, with_pad, write_tokenizer
from harness.errors import UserError
from harness.files import read_object, write_json

PIECES = [
    "a", "aa", " ", "  ", "\n", "the", "ing", "12", "é", "e\u0301", "'s", "_", "--", "漢字", "Ⅳ", "\u200d",
    "Ⓐ", "🙂", "👩\u200d🚀", "\t", "\u00a0", "각", "\u1100\u1161\u11a8",
]  # fmt: skip
PAGES = sorted(Path(__file__).parents[2].glob("docs/*.md"))
GPT2_PATTERN = (  # as tiktoken writes it
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
)
MERGES = ["t h", "th e", "Ġ the", "a a", "aa a", "i n", "in g"]
END = "<|endoftext|>"
MORE = [END, "<think>", "<think>\n", "<|turn|>", "<mask>"]  # 263 and so on
NFC, DIGITS = {"type": "NFC"}, {"type": "Digits", "individual_digits": True}
BEGIN = {
    "type": "TemplateProcessing", "pair": [],
    "single": [{"SpecialToken": {"id": "B", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {"B": {"id": "B", "ids": [266], "tokens": ["<|turn|>"]}},
}  # fmt: skip
BLANKS = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
PREPENDED = [{"type": "Prepend", "prepend": "\u2581"}, BLANKS]


def joined(count: int, *more: str) -> list[str]:
    rng = random.Random(0)
    return ["".join(rng.choices([*PIECES, *more], k=12)) for _ in range(count)]


def texts() -> list[str]:
    """Pages, every character up to U+2FFF in four positions, and random joins of awkward pieces."""
    single = [f"a{c}1 {c}b{c}{c} \n{c} x" for c in map(chr, range(0x3000))]
    return [path.read_text(encoding="utf-8") for path in PAGES[:5]] + joined(2000) + single


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
    theirs.save_pretrained(tmp_path / "again")  # another file, which is no longer ours
    again, lines = tokenizer_in(tmp_path / "again", ours.n_vocab), texts()
    assert again is not None
    for line, ids in zip(lines, theirs(lines)["input_ids"], strict=True):
        assert ids == ours.encode(line) == again.encode(line), line[:80]
        if "\ufffd" not in line:
            assert theirs.decode(ids) == line


def test_what_we_wrote_is_ours_again_and_needs_no_library(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    for ours in (load_tokenizer("glassbox"), gpt2_like()):
        write_tokenizer(tmp_path, ours, context=64)
        back = tokenizer_in(tmp_path, ours.n_vocab)
        assert back is not None and back.fingerprint == ours.fingerprint
        assert (back.eos_id, back.pad_id, back.n_vocab) == (ours.eos_id, ours.pad_id, ours.n_vocab)
    changed(tmp_path, {"normalizer": NFC})
    with pytest.raises(UserError, match="hub"):  # the extra that brings it
        tokenizer_in(tmp_path, 264)


# --- files of others ------------------------------------------------------------------------------


def whole(**parts: Any) -> dict[str, Any]:
    """A form with "<think>" not special, and "<mask>" that takes the blanks before it."""
    form = bytes_form(MORE, MERGES, **parts)
    for token in form["added_tokens"]:
        token["special"] = token["content"] in (END, "<|turn|>")
        token["lstrip"] = token["content"] == "<mask>"
    return form


def signs(*normalizers: dict[str, Any]) -> dict[str, Any]:
    """A vocabulary of signs, as sentencepiece makes: a blank is "▁", what is no token is its bytes."""
    single = [f"<0x{value:02X}>" for value in range(256)] + [*map(chr, range(33, 127)), "\u2581"]
    vocabulary = {text: id for id, text in enumerate([*single, "é", "th", "\u2581th", END])}
    normalizer = {"type": "Sequence", "normalizers": [*normalizers]}
    form = bytes_form([END], normalizer=normalizer, pre_tokenizer=None, decoder=None)
    form["added_tokens"][0]["id"] = vocabulary[END]
    form["model"] |= {"vocab": vocabulary, "merges": ["t h", "\u2581 th"], "byte_fallback": True}
    return form


@pytest.mark.oracle
@pytest.mark.parametrize(
    "form",
    [
        lambda: whole(),
        lambda: whole(normalizer=NFC),  # Qwen's
        lambda: whole(post_processor=BEGIN),  # Llama 3's
        lambda: whole(pre_tokenizer={"type": "Sequence", "pretokenizers": [DIGITS, BYTE_LEVEL]}),
        lambda: signs(BLANKS),  # Gemma's
    ],
)  # fmt: skip
def test_ids_are_those_of_transformers(form, tmp_path: Path, require) -> None:
    form = form()
    write_json(tmp_path / "tokenizer.json", form)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END}
    write_json(tmp_path / "tokenizer_config.json", settings)
    theirs = require("transformers").AutoTokenizer.from_pretrained(tmp_path)
    ours = tokenizer_in(tmp_path, 500)
    assert ours is not None
    known = [t["content"] for t in form["added_tokens"] if not t["special"]]
    for text in joined(1000, *known, "<th", "ink>"):
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"], repr(text)
        prompt = ours.encode_prompt(text)
        assert prompt == theirs(text)["input_ids"] == ours.encode_prompt(ours.text_of(prompt))


@pytest.mark.parametrize("form", [lambda: whole(), lambda: signs(BLANKS)])
def test_texts_come_back_and_special_tokens_in_them_are_spelled(form) -> None:
    form = form()
    ours = published_tokenizer(form, form["added_tokens"][0]["id"])
    special = {t["id"] for t in form["added_tokens"] if t["special"]}
    for text in joined(500, END, "<|turn|>"):
        ids = ours.encode(text)
        assert ours.decode(ids) == text and not special & set(ids)
        apart = [byte for id in ids for byte in ours.token_bytes(id)]
        assert bytes(apart) == text.encode()
    assert ours.decode([*ours.encode("é")[:1], ours.eos_id, ours.eos_id]) in ("\ufffd", "é")
    assert ours.decode(ours.encode("a\ud800b")) == "a\ufffdb"


def test_a_begin_of_text_is_written_once_and_by_a_chat_itself() -> None:
    turn = "{% for m in messages %}<|turn|>{{ m['content'] }}" + END + "{% endfor %}"
    plain = published_tokenizer(whole(post_processor=BEGIN), 263)
    chat = published_tokenizer(whole(post_processor=BEGIN), 263, chat_template=turn)
    assert plain.encode_prompt("the") == plain.encode_prompt("<|turn|>the") == [266, 257]
    assert plain.encode("the") == [257] and len(plain.encode("<|turn|>")) == 8
    assert chat.encode_prompt("<|turn|>the") == chat.encode("<|turn|>the") == [266, 257]
    assert chat.encode_prompt("the") == [266, 257]


def test_a_fingerprint_tells_what_begins_a_text() -> None:
    """A reward model that reads no first token would score other rows than the policy writes."""
    begun, again = (published_tokenizer(whole(post_processor=BEGIN), 263) for _ in range(2))
    bare = published_tokenizer(whole(), 263)
    assert begun.fingerprint == again.fingerprint != bare.fingerprint
    assert begun.encode("the") == bare.encode("the")


def test_padding_becomes_a_token_of_its_own() -> None:
    """transformers scores the last token that is no padding: that must be the end of the answer."""
    ends = published_tokenizer(whole(), 263)
    padded = with_pad(ends)
    assert (ends.pad_id, padded.pad_id, padded.eos_id) == (263, ends.n_vocab, 263)
    assert padded.encode("the <think>") == ends.encode("the <think>")
    assert padded.n_vocab == ends.n_vocab  # nobody samples it


def changed(folder: Path, change: dict, **model) -> None:
    """tokenizer.json with other parts, and with other parts of its model."""
    form = read_object(folder / "tokenizer.json") | change
    write_json(folder / "tokenizer.json", form | {"model": form["model"] | model})


LETTERS = {character: id for id, character in enumerate(BYTES)}
ADDED = {"id": 263, "content": END, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}  # fmt: skip


@pytest.mark.parametrize(
    "change, model, size",
    [
        ({}, {}, 200),  # more ids than the model has
        ({"added_tokens": []}, {}, 268),  # no end of text
        ({"added_tokens": [ADDED | {"id": 300, "content": "new"}, ADDED]}, {}, 301),  # not the next id
        ({"added_tokens": 3}, {}, 268),
        ({"normalizer": {"type": "Lowercase"}}, {}, 268),
        ({"normalizer": {"type": "Prepend", "prepend": "\u0120"}}, {}, 268),
        ({"pre_tokenizer": {"type": "Whitespace"}}, {}, 268),
        ({"pre_tokenizer": BYTE_LEVEL | {"add_prefix_space": True}}, {}, 268),
        ({"model": {"type": "WordPiece", "vocab": LETTERS, "unk_token": "a", "max_input_chars_per_word": 9,
                    "continuing_subword_prefix": ""}}, {}, 268),
        ({}, {"vocab": {"t": 0, END: 1}, "merges": []}, 268),  # no single bytes
        ({}, {"vocab": LETTERS | {END: 263}, "merges": ["t h"]}, 268),  # ids are left out
        ({}, {"end_of_word_suffix": "</w>"}, 268),
    ],
)  # fmt: skip
def test_files_that_mean_something_else_are_refused(change, model, size, tmp_path: Path) -> None:
    write_json(tmp_path / "tokenizer.json", bytes_form(MORE, MERGES))
    assert tokenizer_in(tmp_path, 268) is not None
    changed(tmp_path, change, **model)
    with pytest.raises(UserError):
        tokenizer_in(tmp_path, size)


def test_a_blank_before_every_text_is_refused(tmp_path: Path) -> None:
    """As Llama-2's: an answer would begin with a blank that its prompt does not end with."""
    write_json(tmp_path / "tokenizer.json", signs(*PREPENDED))
    with pytest.raises(UserError):
        tokenizer_in(tmp_path, 500)


def test_vocab_and_merges_are_read(tmp_path: Path) -> None:
    form = bytes_form([END], MERGES)
    write_json(tmp_path / "vocab.json", form["model"]["vocab"])
    lines = ["#version: 0.2", *MERGES, ""]
    (tmp_path / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    back, expected = tokenizer_in(tmp_path, 264), published_tokenizer(form, 263)
    assert back is not None and back.eos_id == 263
    assert all(back.encode(text) == expected.encode(text) for text in joined(300, END))
    decoder = {"264": {"content": "<think>", "special": False}}
    write_json(tmp_path / "tokenizer_config.json", {"added_tokens_decoder": decoder})
    more = tokenizer_in(tmp_path, 265)
    assert more is not None and more.encode("<think>the") == [264, 257]
    (tmp_path / "added_tokens.json").write_text('{"<think>": 264}')  # who knows if it is special
    with pytest.raises(UserError):
        tokenizer_in(tmp_path, 265)
    (tmp_path / "added_tokens.json").unlink()
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(UserError):
        tokenizer_in(tmp_path, 264)


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
        ({"eos_token_id": 264}, {"eos_token_id": [266, 264, 263]}, None, 264, [266, 263]),
        ({"eos_token_id": [265, 264]}, {"eos_token_id": 50256}, END, 263, [265, 264]),
        ({}, {}, END, 263, []),
    ],
)
def test_the_first_end_is_written_and_all_are_kept(
    config, generation, named, end, others, tmp_path: Path
) -> None:
    model = toys.random_gpt(268, 8, n_embd=4)
    save_hf(model, tmp_path, published_tokenizer(whole(), 263, bos_id=267))
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


# --- in a checkpoint, and beyond the vocabulary ---------------------------------------------------


def test_a_checkpoint_keeps_the_file_as_it_was(tmp_path: Path) -> None:
    ours = chat = toys.chat_tokenizer("llama-3")
    save_gpt(tmp_path / "model.safetensors", toys.random_gpt(chat.n_vocab, 8), chat)
    back = load_gpt(tmp_path)[1]
    assert back.fingerprint == ours.fingerprint and back.chat_template == ours.chat_template
    assert back.eos_id == ours.eos_id and back.encode("<|eot_id|>") == ours.encode("<|eot_id|>")
    write_tokenizer(tmp_path, back, 8)
    assert (tmp_path / "tokenizer.json").read_text("utf-8") == ours.source  # type: ignore[attr-defined]
    other = published_tokenizer(bytes_form(MORE, [*MERGES[:-1], "o n"]), 263)
    assert other.fingerprint != published_tokenizer(bytes_form(MORE, MERGES), 263).fingerprint


@pytest.mark.parametrize("name", ["gpt2", "glassbox"])
def test_a_folder_that_is_called_as_our_tokenizers_are_keeps_its_own(name, tmp_path: Path) -> None:
    own = published_tokenizer(bytes_form(MORE, MERGES), 263, name)
    save_gpt(tmp_path / "model.safetensors", toys.random_gpt(own.n_vocab, 8), own)
    back = load_gpt(tmp_path)[1]
    assert (back.name, back.fingerprint) == (name, own.fingerprint)
    assert back.encode("no one") == own.encode("no one")


def test_a_checkpoint_of_an_older_version_opens(require) -> None:
    """It held the ranks of a published tokenizer, and names of ids that were none of its tokens."""
    require("tokenizers")
    ranks = build_tokenizer("x", {bytes([value]): value for value in range(256)}).parts
    template = toys.TEMPLATES["smollm2"]["template"]
    specials = {"<|im_start|>": 256, "<|im_end|>": 257, "<think>": 258, END: 259}
    specials |= {f"<|unused {id}|>": id for id in (260, 261)}
    form = {
        "pattern": GPT2_PATTERN, "specials": specials, "end": "<|im_end|>", "pad": END, "bos_id": 256,
        "other_ends": [259], "added": ["<think>"], "chat_template": template, "template_tokens": {},
    }  # fmt: skip
    about = {"tokenizer": "old", "tokenizer_fingerprint": "", "tokenizer_form": form}
    old = checked_tokenizer(about | {"tokenizer_ranks": ranks["tokenizer_ranks"]}, Path("old"))
    assert (old.n_vocab, old.eos_id, old.pad_id, list(old.other_ends)) == (260, 257, 259, [259])
    assert old.encode("<|im_start|>a<think>") == [256, 97, 258] and len(old.encode(END)) == 13
    again = checked_tokenizer(json.loads(json.dumps(old.about)), Path("new"))
    assert again.fingerprint == old.fingerprint and again.chat_template == template


@pytest.mark.parametrize(
    "pad, end, count", [("<mask>", END, 267), ("<mask>", "<mask>", 268), (END, END, 268)]
)
def test_a_padding_token_behind_all_others_stands_for_no_text(
    pad, end, count, tmp_path: Path
) -> None:
    """Whoever gives a trained model one gives it a row that nothing has trained."""
    form = bytes_form(MORE, MERGES)
    save_hf(toys.random_gpt(272, 8, n_embd=4), tmp_path)
    write_json(tmp_path / "tokenizer.json", form)
    write_json(tmp_path / "tokenizer_config.json", {"pad_token": pad, "eos_token": end})
    model, tokenizer = open_model(tmp_path)
    assert (tokenizer.n_vocab, model.n_text, model.config.vocab_size) == (count, count, 272)
    save_gpt(tmp_path / "run" / "model.safetensors", model, tokenizer)
    assert load_gpt(tmp_path / "run")[0].n_text == count
