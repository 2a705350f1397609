"""A byte-pair tokenizer in the files of other programs: ours written for them, and theirs opened.

Hugging Face's tokenizer.json holds four things: a pattern that cuts a text into pieces, a vocabulary,
merges in order of priority, and special tokens. Tokens are bytes, written as one character each. The
library that defines it, `tokenizers`, runs what a folder brings.

tiktoken merges any two neighbours whose union is a token, the one with the lowest id first. Merges that
name every way to split each token, in the order of ids, say the same.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from data.templates import CHAT_MARKS, ChatForm
from gpt.checkpoint import checked_tokenizer
from gpt.tokenizer import END_OF_TEXT, PAD, PATTERN, Tokenizer, build_tokenizer, parse_ranks
from harness.console import say_once
from harness.errors import UserError, first_line
from harness.files import as_user_error, read_object, sha256_of, write_json, write_text

TOKENIZER_FILE, SETTINGS_FILE = "tokenizer.json", "tokenizer_config.json"
OURS = "glassbox_rlhf"  # under this key of SETTINGS_FILE stands `Tokenizer.about`, if we wrote it
CALLED = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
OLDER = ("vocab.json", "merges.txt", "added_tokens.json")  # instead of tokenizer.json
GENERATION_FILE, TEMPLATE_FILE = "generation_config.json", "chat_template.jinja"
TOKENIZER_FILES = ("tokenizer*.json", *OLDER, GENERATION_FILE, TEMPLATE_FILE)
# Our pattern in the dialect of tokenizer.json, which has another idea of \w: here it is spelled out.
WORD = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}"
HUB_PATTERN = PATTERN.replace(r"[^\W\d_]", rf"(?:(?![\d_])[{WORD}])").replace(
    r"[^\s\w]", rf"[^\s{WORD}]"
)
VISIBLE = f"a\t\n{bytes(range(32, 127)).decode()}\ufffd "
# Patterns cut it, and normalisers change it, in different ways.
CUT = "It's DON'T 1234.5 \n\n  x\t\r\n_a_b e\u0301\u00e9 \ufb01\u00b2 \u6f22 \u0661\u0662 (\u200d)..\n"
BYTE_LEVEL = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
UNUSED = "<|unused "  # began the names that older versions gave to ids without text

# GPT-2's character for each byte: itself where that can be seen, else one from U+0100 on.
SEEN = [*range(33, 127), *range(161, 173), *range(174, 256)]
HIDDEN = [value for value in range(256) if value not in SEEN]
CHARACTERS = {v: chr(v) for v in SEEN} | {v: chr(256 + i) for i, v in enumerate(HIDDEN)}
BYTES = {character: value for value, character in CHARACTERS.items()}


@dataclass(frozen=True)
class Published(Tokenizer):
    """What a folder brings, run by the library.

    Tokens that it adds stand whole in a text; special ones do as marks of a chat's turns alone.
    """

    source: str = ""  # tokenizer.json
    begin: Sequence[int] = ()  # of every text, but a chat, whose template writes it

    @cached_property
    def n_vocab(self) -> int:
        """As `Tokenizer.n_vocab`, without a last token for padding, which a trained model was given."""
        last = max(self.encoding.get_vocab().values())
        return last + (last != self.pad_id or last in (self.eos_id, *self.other_ends))

    @cached_property
    def fingerprint(self) -> str:
        """sha256 (hex) of all tokens and of the ids of a text: equal where the ids are."""
        tokens = sorted(self.encoding.get_vocab().items())
        return hashlib.sha256(repr([tokens, self.begin, self._ids(CUT)]).encode()).hexdigest()

    @property
    def parts(self) -> dict[str, Any]:
        form = {name: getattr(self, name) for name in IDS} | {"chat_template": self.chat_template}
        form["template_tokens"] = {} if self.chat is None else self.chat.tokens
        return {"tokenizer_json": self.source, "tokenizer_form": form}

    @cached_property
    def added(self) -> dict[int, Any]:
        """The tokens that are not made by merges."""
        return dict(self.encoding.get_added_tokens_decoder())

    @property
    def spelled(self) -> Iterable[str]:
        return (token.content for token in self.added.values() if token.special)

    def _ids(self, text: str) -> list[int]:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return self.encoding.encode(text, add_special_tokens=False).ids

    def encode_prompt(self, text: str) -> list[int]:
        if self.chat is not None and self.chat.is_in_form(text):
            return self.encode(text)
        return [*self.begin, *self.encode(text.removeprefix(self.text_of(self.begin)))]

    def token_bytes(self, token: int) -> bytes:
        text = self.encoding.id_to_token(token) or ""
        if self.encoding.model.byte_fallback:
            byte = re.fullmatch(r"<0x([0-9A-F]{2})>", text)
            return bytes.fromhex(byte[1]) if byte else text.replace("\u2581", " ").encode("utf-8")
        return text.encode("utf-8") if token in self.added else bytes(BYTES[sign] for sign in text)


IDS = ("eos_id", "pad_id", "bos_id", "other_ends")


def published(name: str, source: str, form: Mapping[str, Any], path: Path) -> Published:
    """The tokenizer of a tokenizer.json in the file `path`; `form` is that of `Published.parts`."""
    try:
        from tokenizers import Tokenizer as Encoding
    except ModuleNotFoundError as error:
        install = f'need {error.name}: run pip install -e ".[hub]"'
        raise UserError(f"{path}: tokenizers of published folders {install}") from error
    parts, chat, marks = json.loads(source), None, {*CHAT_MARKS}
    tokens, ends = parts["added_tokens"], (form["eos_id"], form["pad_id"], *form["other_ends"])
    special = {t["content"] for t in tokens if t["special"] or t["id"] in ends}
    if form["chat_template"] is not None:
        try:
            chat = ChatForm(form["chat_template"], form["template_tokens"].items(), special)
        except UserError as error:
            raise UserError(f"{path.parent}: {error}") from error
        marks |= chat.marks
    for token in tokens:
        token["special"] = token["content"] in special - marks
    try:
        encoding = Encoding.from_str(json.dumps(parts))
    except Exception as error:  # it has no kind of its own
        raise UserError(f"{path} cannot be read ({first_line(error)}): fetch it again") from error
    moved = [t["content"] for t in tokens if encoding.token_to_id(t["content"]) != t["id"]]
    if moved:
        raise UserError(f"{path} has other ids than {moved[:3]} would get: fetch it again")
    encoding.no_truncation()
    encoding.no_padding()
    encoding.encode_special_tokens = True  # spelled out, as all but marks
    whole, bare = (encoding.encode("a", add_special_tokens=some).ids for some in (True, False))
    begin, ids = whole[: whole.index(bare[0])], {key: form[key] for key in IDS}
    return Published(name, encoding, chat=chat, source=source, begin=begin, **ids)


def published_of(about: Mapping[str, Any], path: Path) -> Published:
    """The tokenizer of `Tokenizer.about`, or of an older file, which holds ranks and all special tokens."""
    form, source = about["tokenizer_form"], about.get("tokenizer_json")
    if source is None:
        ranks = parse_ranks(about["tokenizer_ranks"], path, form["specials"].values())
        specials = {t: id for t, id in form["specials"].items() if not t.startswith(UNUSED)}
        source = json.dumps(form_of_ranks(ranks, form["pattern"], specials, form.get("added", ())))
        form = form | {"eos_id": specials[form["end"]], "pad_id": specials[form["pad"]]}
    return published(about["tokenizer"], source, form, path)


# Write --------------------------------------------------------------------------------------------


def hub_form(
    vocabulary: Mapping[str, int],
    merges: Iterable[str],
    specials: Iterable[str],
    added: Iterable[Mapping[str, Any]] = (),  # tokens that may set something else
    pieces: Mapping[str, Any] = BYTE_LEVEL,  # what cuts a text; this does as GPT-2
    **model: Any,
) -> dict[str, Any]:
    """A tokenizer.json of byte pairs."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokens = {text: {"special": True, "content": text} for text in specials}
    tokens |= {token["content"]: dict(token) for token in added}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": vocabulary[text], **flags, **tokens[text]}
            for text in sorted(tokens, key=vocabulary.__getitem__)
        ],
        "pre_tokenizer": pieces,
        "decoder": BYTE_LEVEL,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [*merges], **model},
    }


def form_of_ranks(
    ranks: Mapping[bytes, int],
    pattern: str,
    specials: Mapping[str, int],
    whole: Iterable[str] = (),  # tokens that stand whole in a text
) -> dict[str, Any]:
    """The tokenizer.json of a tiktoken encoding."""
    spelled = {token: "".join(CHARACTERS[value] for value in token) for token in ranks}
    merges = [
        f"{spelled[token[:at]]} {spelled[token[at:]]}"
        for token in sorted(ranks, key=ranks.__getitem__)
        for at in range(1, len(token))
        if token[:at] in ranks and token[at:] in ranks
    ]
    regex = {"Regex": HUB_PATTERN if pattern == PATTERN else pattern}
    split = {"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": False}
    pieces = {"type": "Sequence", "pretokenizers": [split, BYTE_LEVEL | {"use_regex": False}]}
    vocabulary = {spelled[token]: rank for token, rank in ranks.items()} | dict(specials)
    added = [{"content": text, "special": False} for text in whole]
    # A piece that is a token is that token.
    return hub_form(vocabulary, merges, specials, added, pieces, ignore_merges=True)


def form_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """The tokenizer.json of any tokenizer."""
    if isinstance(tokenizer, Published):
        found: dict[str, Any] = json.loads(tokenizer.source)
        return found
    encoding = tokenizer.encoding
    return form_of_ranks(encoding._mergeable_ranks, encoding._pat_str, encoding._special_tokens)


def write_tokenizer(
    folder: Path, tokenizer: Tokenizer, context: int, padding_side: str = "left"
) -> None:
    """tokenizer.json and tokenizer_config.json, which transformers' AutoTokenizer opens."""
    path = folder / TOKENIZER_FILE
    bos = tokenizer.bos_id
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None if bos is None else tokenizer.text_of([bos]),
        "eos_token": tokenizer.text_of([tokenizer.eos_id]),
        "pad_token": tokenizer.text_of([tokenizer.pad_id]),
        "padding_side": padding_side,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    if isinstance(tokenizer, Published):
        write_text(path, tokenizer.source)
    else:
        write_json(path, form_of(tokenizer))
        settings[OURS] = tokenizer.about | {"file": sha256_of(path)}
    if tokenizer.chat is not None:
        called = tokenizer.chat.tokens
        settings |= {n: called.get(n) for n in ("bos_token", "eos_token") if called}
        settings["chat_template"] = tokenizer.chat_template
    write_json(folder / SETTINGS_FILE, settings)


def with_pad(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer with one more token, for padding alone."""
    pad = tokenizer.n_vocab
    if isinstance(tokenizer, Published):
        form = json.loads(tokenizer.source)
        form["added_tokens"] += hub_form({PAD: pad}, (), [PAD])["added_tokens"]
        about = tokenizer.about | {"tokenizer_json": json.dumps(form)}
        return replace(published_of(about, Path(tokenizer.name)), pad_id=pad)
    encoding, end = tokenizer.encoding, tokenizer.text_of([tokenizer.eos_id])
    ranks, specials = encoding._mergeable_ranks, encoding._special_tokens | {PAD: pad}
    return build_tokenizer(f"{tokenizer.name} {PAD}", ranks, encoding._pat_str, specials, end)


# Read ---------------------------------------------------------------------------------------------


def read_tokenizer(
    folder: Path, vocab_size: int, config: Mapping[str, object], named: Mapping[str, object]
) -> Tokenizer | None:
    """The tokenizer beside a model of `vocab_size` tokens; None if the folder holds none.

    `config` is what config.json holds, `named` what tokenizer_config.json does.

    What ends an answer stands in config.json, generation_config.json and tokenizer_config.json, whose
    token is written. A file that we wrote is ours again, without a chat template. Raises UserError for
    what loses text, or puts a blank before it: no answer would go on from its prompt.
    """
    with as_user_error(folder):  # a part that is missing, or of another kind, wherever it is used
        return _read_tokenizer(folder, vocab_size, config, named)


def _read_tokenizer(
    folder: Path, vocab_size: int, config: Mapping[str, Any], named: Mapping[str, Any]
) -> Tokenizer | None:
    files = (TOKENIZER_FILE, *OLDER)
    path = next((folder / name for name in files if (folder / name).is_file()), None)
    if path is None:
        return None
    ours, template = named.get(OURS), chat_template_in(folder, named)
    if template is None and isinstance(ours, dict) and ours.get("file") == sha256_of(path):
        return checked_tokenizer(ours, path)
    older = path.name != TOKENIZER_FILE
    source = older_source(folder, named) if older else path.read_text("utf-8")
    parts = json.loads(source)
    texts = {token["id"]: token["content"] for token in parts["added_tokens"]}
    ids = parts["model"]["vocab"] | {text: id for id, text in texts.items()}
    if not len({*ids.values()}) == max(ids.values()) + 1 <= vocab_size:
        raise UserError(
            f"{path} leaves an id out, or has one beyond {vocab_size} tokens: use files of one model"
        )
    generation = settings_in(folder / GENERATION_FILE)
    ends = list[str]()
    for said in (config.get("eos_token_id"), generation.get("eos_token_id")):
        ends += [texts[id] for id in (said if isinstance(said, list) else [said]) if id in texts]
    end = text_of(named.get("eos_token")) or next(iter(ends), "")
    if not end:
        end = END_OF_TEXT
        say_once(f"note: {folder} names no special token as the end of a text: {end} is taken")
    if end not in texts.values():
        raise UserError(f"{folder}: {end} is no token: set eos_token in {SETTINGS_FILE}")
    called = {name: text_of(named.get(name)) for name in CALLED}
    tokens = {name: text for name, text in called.items() if text is not None}
    bos, pad = config.get("bos_token_id"), tokens.get("pad_token", "")
    form = {
        "chat_template": template, "template_tokens": tokens, "eos_id": ids[end],
        "pad_id": ids[pad] if pad in texts.values() else ids[end],
        "bos_id": ids.get(tokens.get("bos_token", ""), bos if bos in texts else None),
        "other_ends": [ids[text] for text in dict.fromkeys(ends) if text != end],
    }  # fmt: skip
    tokenizer = published(folder.name, source, form, path)
    if tokenizer.chat is not None and tokenizer.chat.end:  # what ends a turn there ends an answer
        eos, *others = dict.fromkeys((ids[tokenizer.chat.end], ids[end], *tokenizer.other_ends))
        pad_id = tokenizer.pad_id if pad in texts.values() else eos
        tokenizer = replace(tokenizer, eos_id=eos, pad_id=pad_id, other_ends=others)
    if tokenizer.text_of(tokenizer.encode(VISIBLE)) != VISIBLE or named.get("add_prefix_space"):
        raise UserError(f"{path} loses text or puts a blank before it: use another tokenizer")
    return tokenizer


def older_source(folder: Path, named: Mapping[str, Any]) -> str:
    """The tokenizer.json that vocab.json and merges.txt stand for; UserError for one of them alone."""
    vocabulary, merges, added = (folder / name for name in OLDER)
    if added.is_file() or not (vocabulary.is_file() and merges.is_file()):
        raise UserError(
            f"of {', '.join(OLDER)} {folder} must hold the first two alone: put the {TOKENIZER_FILE} there "
            "that transformers' AutoTokenizer writes with save_pretrained"
        )
    ids, lines = read_object(vocabulary), merges.read_text("utf-8").splitlines()
    decoder = named.get("added_tokens_decoder", {})
    ids |= {token["content"]: int(id) for id, token in decoder.items()}
    called = {END_OF_TEXT, *(text_of(named.get(name)) for name in CALLED)}
    special = [text for text in ids if text in called]
    pairs = (line for line in lines if line and not line.startswith("#version"))
    return json.dumps(hub_form(ids, pairs, special, decoder.values()))


def settings_in(path: Path) -> dict[str, Any]:
    """What a file of settings holds; nothing where it is missing."""
    return read_object(path) if path.is_file() else {}


def chat_template_in(folder: Path, named: Mapping[str, object]) -> str | None:
    """The template of its own file or of tokenizer_config.json; of several the default one."""
    path, template = folder / TEMPLATE_FILE, named.get("chat_template")
    if path.is_file():
        with as_user_error(path):
            return path.read_text("utf-8")
    if isinstance(template, list):
        with as_user_error(folder):
            template = {each["name"]: each["template"] for each in template}
    if isinstance(template, dict):
        if template and "default" not in template:
            raise UserError(
                f"{folder}: of its chat templates {', '.join(template)} none is the default: rename one"
            )
        template = template.get("default")
    return template if isinstance(template, str) else None


def text_of(token: object) -> str | None:
    """A special token's text: settings hold it bare, or as an object with its content."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None
