"""A byte-pair tokenizer in the files of other programs: written for them, and read from them.

Hugging Face's tokenizer.json holds four things: a pattern that cuts a text into pieces, a vocabulary,
merges in order of priority, and special tokens. Tokens are bytes, written as one character each.

tiktoken merges any two neighbours whose union is a token, the one with the lowest id first. Merges that
name every way to split each token, in the order of ids, say the same.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from data.templates import CHAT_MARKS, ChatForm
from gpt.tokenizer import (
    DIGITS_PATTERN,
    END_OF_TEXT,
    GPT2_PATTERN,
    PATTERN,
    SPELLED,
    UNUSED,
    Tokenizer,
    build_tokenizer,
)
from harness.console import say_once
from harness.errors import UserError
from harness.files import as_user_error, noted, read_object, write_json

TOKENIZER_FILE, SETTINGS_FILE = "tokenizer.json", "tokenizer_config.json"
CALLED = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
OLDER = ("vocab.json", "merges.txt", "added_tokens.json")  # instead of tokenizer.json
GENERATION_FILE, TEMPLATE_FILE = "generation_config.json", "chat_template.jinja"
TOKENIZER_FILES = ("tokenizer*.json", *OLDER, GENERATION_FILE, TEMPLATE_FILE)
MOST_UNMADE = 0.05  # of a vocabulary: tokens that merges do not make and no special list names
# Our pattern in the dialect of tokenizer.json, which has another idea of \w: here it is spelled out.
WORD = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}"
HUB_PATTERN = PATTERN.replace(r"[^\W\d_]", rf"(?:(?![\d_])[{WORD}])").replace(
    r"[^\s\w]", rf"[^\s{WORD}]"
)
STRIPPING = ("single_word", "lstrip", "rstrip")  # what an added token may do to the text around it
# What models of another kind set.
UNLIKE = ("byte_fallback", "continuing_subword_prefix", "dropout", "end_of_word_suffix")
VISIBLE = bytes(SPELLED).decode()
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}

# GPT-2's character for each byte: itself where that can be seen, else one from U+0100 on.
SEEN = [*range(33, 127), *range(161, 173), *range(174, 256)]
HIDDEN = [value for value in range(256) if value not in SEEN]
CHARACTERS = {v: chr(v) for v in SEEN} | {v: chr(256 + i) for i, v in enumerate(HIDDEN)}
BYTES = {character: value for value, character in CHARACTERS.items()}


# Write --------------------------------------------------------------------------------------------


def write_tokenizer(
    folder: Path, tokenizer: Tokenizer, context: int, padding_side: str = "left"
) -> None:
    """tokenizer.json and tokenizer_config.json, which transformers' AutoTokenizer opens."""
    encoding = tokenizer.encoding
    specials, ranks, pattern = (
        encoding._special_tokens,
        encoding._mergeable_ranks,
        encoding._pat_str,
    )
    spelled = {token: "".join(CHARACTERS[value] for value in token) for token in ranks}
    regex = {"Regex": HUB_PATTERN if pattern == PATTERN else pattern}
    split = {"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": False}
    merges = [
        f"{spelled[token[:at]]} {spelled[token[at:]]}"
        for token in sorted(ranks, key=ranks.__getitem__)
        for at in range(1, len(token))
        if token[:at] in ranks and token[at:] in ranks
    ]
    in_text = dict.fromkeys(STRIPPING, False) | {"normalized": False}
    added = {text: encoding.encode_single_token(text) for text in tokenizer.added}
    by_id = sorted((specials | added).items(), key=lambda item: item[1])
    form = {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": t, **in_text, "special": t not in added} for t, i in by_id
        ],
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [split, BYTE_LEVEL | {"use_regex": False}],
        },
        "decoder": BYTE_LEVEL | {"use_regex": True},
        "model": {
            "type": "BPE",
            "ignore_merges": True,  # a piece that is a token is that token
            "vocab": {spelled[token]: rank for token, rank in ranks.items()} | specials,
            "merges": merges,
        },
    }
    write_json(folder / TOKENIZER_FILE, form)
    bos, template = tokenizer.bos_id, tokenizer.chat_template
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None if bos is None else encoding.decode([bos]),
        "eos_token": encoding.decode([tokenizer.eos_id]),
        "pad_token": encoding.decode([tokenizer.pad_id]),
        "padding_side": padding_side,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    if template:
        called = tokenizer.template_tokens
        settings |= {n: called.get(n) for n in ("bos_token", "eos_token") if called}
        settings["chat_template"] = template
    write_json(folder / SETTINGS_FILE, settings)


# Read ---------------------------------------------------------------------------------------------


def read_tokenizer(folder: Path, vocab_size: int) -> Tokenizer | None:
    """The tokenizer beside a model of `vocab_size` tokens; None if the folder holds none.

    Ids left open up to `vocab_size` become special tokens. What ends an answer stands in config.json,
    generation_config.json and tokenizer_config.json, whose token is written. Raises UserError for
    files that mean anything but byte-level pairs.
    """
    with as_user_error(folder):  # a part that is missing, or of another kind, wherever it is used
        return _read_tokenizer(folder, vocab_size)


def _read_tokenizer(folder: Path, vocab_size: int) -> Tokenizer | None:
    files, named = (TOKENIZER_FILE, *OLDER), _settings(folder / SETTINGS_FILE)
    path = next((folder / name for name in files if (folder / name).is_file()), None)
    if path is None:
        return None
    form = read_object(noted(path)) if path.name == TOKENIZER_FILE else _older_form(folder, named)
    vocabulary, merges, pattern = parts_of(form, path)
    ranks = ranks_of(vocabulary, merges, path)
    ordinary, taken = set(ranks.values()), set(vocabulary.values())
    specials = {text: id for text, id in vocabulary.items() if id not in ordinary}
    unmade = len(specials) - len(form.get("added_tokens") or [])
    if unmade > MOST_UNMADE * len(vocabulary):
        raise UserError(f"{path}: its merges do not make {unmade:,} of its tokens: fetch it again")
    if max(taken, default=0) >= vocab_size:
        raise UserError(f"{path} has ids beyond {vocab_size} tokens: use files of one model")
    config, generation = (_settings(folder / name) for name in ("config.json", GENERATION_FILE))
    texts, ends = {id: text for text, id in specials.items()}, list[str]()
    for ids in (config.get("eos_token_id"), generation.get("eos_token_id")):
        ends += [texts[id] for id in (ids if isinstance(ids, list) else [ids]) if id in texts]
    end = text_of(named.get("eos_token")) or next(iter(ends), "")
    if not end:
        end = END_OF_TEXT
        say_once(f"note: {folder} names no special token as the end of a text: {end} is taken")
    if end not in specials:
        raise UserError(f"{folder}: {end} is no token: set eos_token in {SETTINGS_FILE}")
    template, called = chat_template_in(folder), {n: text_of(named.get(n)) for n in CALLED}
    tokens = {name: text for name, text in called.items() if text is not None}
    marks = frozenset[str]()
    if template is not None:  # what ends a turn there ends an answer
        try:
            chat = ChatForm(template, tokens.items(), specials)
        except UserError as error:
            raise UserError(f"{folder}: {error}") from error
        marks, ends, end = chat.marks, [end, *ends], chat.end or end
    pad, begin = tokens.get("pad_token"), config.get("bos_token_id")
    tokenizer = build_tokenizer(
        folder.name, ranks, pattern,
        specials | {f"{UNUSED}{id}|>": id for id in range(vocab_size) if id not in taken},
        end, pad if pad in specials else end,
        added=added_texts(form, ranks, path, marks),
        other_ends=[specials[text] for text in dict.fromkeys(ends) if text != end],
        bos_id=vocabulary.get(tokens.get("bos_token", ""), begin if begin in taken else None),
        chat_template=template, template_tokens=tokens,
    )  # fmt: skip
    if tokenizer.decode(tokenizer.encode(VISIBLE)) != VISIBLE or named.get("add_prefix_space"):
        raise UserError(f"{path} loses text or adds a space: use another tokenizer")
    return tokenizer


def _settings(path: Path) -> dict[str, Any]:
    return read_object(noted(path)) if path.is_file() else {}


def chat_template_in(folder: Path) -> str | None:
    """The template of its own file or of tokenizer_config.json; of several the default one."""
    path, template = folder / TEMPLATE_FILE, _settings(folder / SETTINGS_FILE).get("chat_template")
    if path.is_file():
        try:
            return noted(path).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is no UTF-8 ({error}): save it as that") from error
    if isinstance(template, dict):
        template = [{"name": name, "template": text} for name, text in template.items()]
    if isinstance(template, list):
        try:
            by_name = {each["name"]: each["template"] for each in template}
        except (TypeError, KeyError) as error:
            raise UserError(
                f"{folder}: the chat templates of {SETTINGS_FILE} have no name and template: mend them"
            ) from error
        if by_name and "default" not in by_name:
            raise UserError(
                f"{folder}: of its chat templates {', '.join(by_name)} none is the default: rename one"
            )
        template = by_name.get("default")
    return template if isinstance(template, str) else None


def _older_form(folder: Path, named: Mapping[str, Any]) -> dict[str, Any]:
    """vocab.json and merges.txt in the form of a tokenizer.json; UserError for one of them alone."""
    vocabulary, merges, added = (folder / name for name in OLDER)
    if added.is_file() or not (vocabulary.is_file() and merges.is_file()):
        raise UserError(
            f"of {', '.join(OLDER)} {folder} must hold the first two alone: put the {TOKENIZER_FILE} there "
            "that transformers' AutoTokenizer writes with save_pretrained"
        )
    lines = noted(merges).read_text(encoding="utf-8").splitlines()
    pairs = [line for line in lines if line and not line.startswith("#version")]
    decoder = named.get("added_tokens_decoder", {})
    return {
        "model": {"vocab": read_object(noted(vocabulary)), "merges": pairs},
        "pre_tokenizer": BYTE_LEVEL,
        "added_tokens": [{"id": int(id), **token} for id, token in decoder.items()],
    }


def added_texts(
    form: Mapping[str, Any], ranks: Mapping[bytes, int], path: Path, marks: Container[str] = ()
) -> list[str]:
    """The added tokens that stand whole in a text: not special, or words of the vocabulary.

    A chat's `marks` do, too, which the tokenizer knows from its template. Raises UserError for those that
    change the text around them, have another id than `tokenizers` would give them, or would be found in
    another order than by length.
    """
    known, ordinary = dict(form["model"]["vocab"]), set(ranks.values())
    added, texts = form.get("added_tokens") or [], list[str]()
    late = {token["content"] for token in added if token.get("normalized")}  # sought in the rest
    for token in added:
        text, id = token["content"], token["id"]
        mark = text in CHAT_MARKS or text in marks
        whole = not token.get("special") or mark or id in ordinary
        spelled = ranks.get(text.encode("utf-8"), None if id in ordinary else id)
        same = spelled == known.setdefault(text, len(known)) == id  # new ones are counted on
        inside = text not in late and any(text in longer for longer in late)
        if not text or not same or (whole and (inside or any(map(token.get, STRIPPING)))):
            raise UserError(
                f"{path}: the added token {text!r} is empty, has not the next free id, is part of a longer "
                f"one, or sets {', '.join(STRIPPING)}: use another tokenizer"
            )
        texts += [text] if whole and not mark else []
    return list(dict.fromkeys(texts))


def text_of(token: Any) -> str | None:
    """A special token's text: settings hold it bare, or as an object with its content."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def parts_of(form: Mapping[str, Any], path: Path) -> tuple[dict[str, int], list[str], str]:
    """Vocabulary, merges and pattern of a tokenizer.json; UserError for another kind."""
    model, post = form.get("model") or {}, form.get("post_processor") or BYTE_LEVEL
    pieces = form.get("pre_tokenizer") or {}
    steps = pieces.get("pretokenizers", [pieces])
    first, last = steps[0], steps[-1]
    kinds = [step.get("type") for step in steps]
    own_regex = last.get("use_regex", True)
    pattern: str | None = None
    if kinds == ["ByteLevel"] and own_regex:
        pattern = GPT2_PATTERN
    elif kinds == ["Digits", "ByteLevel"] and own_regex and first.get("individual_digits"):
        pattern = DIGITS_PATTERN
    elif kinds == ["Split", "ByteLevel"] and first.get("behavior") == "Isolated":
        pattern = None if own_regex or first.get("invert") else first["pattern"].get("Regex")
    if (
        model.get("type", "BPE") != "BPE" or last.get("add_prefix_space") or form.get("normalizer")
        or not isinstance(pattern, str) or post.get("type") != "ByteLevel" or any(map(model.get, UNLIKE))
    ):  # fmt: skip
        raise UserError(
            f"{path} is no byte-level BPE ({model.get('type')!r}, pieces by {kinds}): use a model with one"
        )
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    added = {token["content"]: token["id"] for token in form.get("added_tokens", [])}
    pattern = PATTERN if pattern == HUB_PATTERN else pattern
    return dict(model["vocab"]) | added, merges, pattern


def ranks_of(vocabulary: Mapping[str, int], merges: list[str], path: Path) -> dict[bytes, int]:
    """The id of each byte and merged token; UserError unless merges are in the order of ids.

    A vocabulary may lack bytes of rare characters (gpt.tokenizer.Tokenizer.unspelled).
    """
    ranks = {
        bytes([value]): vocabulary[character]
        for value, character in CHARACTERS.items()
        if character in vocabulary
    }
    if any(bytes([value]) not in ranks for value in SPELLED):
        raise UserError(f"{path} lacks the token of a single byte: use a byte-level vocabulary")
    last = -1
    for merge in merges:
        token = merge.replace(" ", "", 1)
        rank = vocabulary.get(token, -1)
        if rank < last or not set(token) <= BYTES.keys():
            raise UserError(
                f"{path}: {merge!r} makes id {rank} after {last}: use another tokenizer"
            )
        ranks[bytes(BYTES[character] for character in token)] = last = rank
    return ranks
