"""Byte-pair tokenizers behind one small interface: text to ids and back.

"glassbox" is this project's own byte-level BPE (Sennrich et al. 2016, arXiv:1508.07909, on bytes as
in GPT-2), trained by `gpt/tokenizer_training.py` and read from a file in this folder: it needs no
download. "gpt2" is OpenAI's, through tiktoken. Both run on tiktoken's encoder.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import itertools
import json
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.templates import CHAT_MARKS, ChatForm
from harness.console import say_once
from harness.errors import UserError

if TYPE_CHECKING:
    import tiktoken

RANKS_FILE = Path(__file__).with_name("glassbox.tiktoken")
# GPT-2's pattern with two changes: each digit and each newline is a piece of its own, without a
# leading space. Merges never cross pieces, so numbers are always read digit by digit. [^\W\d_] is
# a letter to Python's `re` and to tiktoken's engine alike (they differ on rare non-ASCII signs).
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?[^\W\d_]+|\d|\n| ?(?:[^\s\w]|_)+|[^\S\n]+(?!\S)|[^\S\n]+"
GPT2_PATTERN = (  # as tiktoken writes it
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
)
# The same behind a step that cuts out every digit, as SmolLM2 has it: what stands before a digit ends.
DIGITS_PATTERN = (
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++|\p{N}| ?[^\s\p{L}\p{N}]++|\s++(?=\p{N})|\s++$|\s+(?!\S)|\s"
)
LONG_BLANK = 250_000  # characters of white space in a row; tiktoken's engine gives up at a million
END_OF_TEXT = "<|endoftext|>"
UNUSED = "<|unused "  # begins the names of ids that a model has and its tokenizer has not
PAD = "<|pad|>"
# Every vocabulary has these bytes: visible ASCII, tab, line break, and U+FFFD for all others.
SPELLED = (9, 10, *range(32, 127), *"\ufffd".encode())
TOKENIZER_NAMES = ("glassbox", "gpt2")
MORE = (
    "added",
    "other_ends",
    "bos_id",
    "chat_template",
    "template_tokens",
)  # what only published folders say


@dataclass(frozen=True)
class Tokenizer:
    """A tiktoken encoding; "gpt2" has `pad_id == eos_id`: never derive a mask from ids alone."""

    name: str
    encoding: tiktoken.Encoding
    eos_id: int
    pad_id: int
    added: Sequence[str] = ()  # tokens that a text is cut at before all else, as "<think>" may be
    other_ends: Sequence[int] = ()  # ids that end an answer as `eos_id` does
    bos_id: int | None = None  # of a published folder, for those who open what is exported
    chat_template: str | None = None  # the model's own form of a chat, in Jinja
    template_tokens: Mapping[str, str] = field(
        default_factory=dict
    )  # what it calls bos_token and so on

    @property
    def n_vocab(self) -> int:
        """Number of ids; every id from 0 to n_vocab - 1 can be decoded."""
        return self.encoding.n_vocab

    @cached_property
    def fingerprint(self) -> str:
        """sha256 (hex) of ranks, pattern and added tokens: equal if and only if the ids are."""
        digest = hashlib.sha256(rank_lines(self.encoding._mergeable_ranks).encode("ascii"))
        specials = sorted(self.encoding._special_tokens.items())
        added = [sorted(self.added)] if self.added else []
        digest.update(json.dumps([self.encoding._pat_str, specials, *added]).encode("utf-8"))
        return digest.hexdigest()

    @property
    def ranks(self) -> str | None:
        """The rank file's text, where the name alone cannot bring the tokenizer back."""
        return None if self.name in TOKENIZER_NAMES else rank_lines(self.encoding._mergeable_ranks)

    @property
    def form(self) -> dict[str, Any]:
        """What `build_tokenizer` needs beside name and ranks."""
        encoding = self.encoding
        end, pad = (encoding.decode([token]) for token in (self.eos_id, self.pad_id))
        specials = dict(encoding._special_tokens)
        more = {name: getattr(self, name) for name in MORE}
        return {"pattern": encoding._pat_str, "specials": specials, "end": end, "pad": pad} | more

    @cached_property
    def unspelled(self) -> frozenset[int]:
        """The bytes that the vocabulary lacks: none for ours and GPT-2's, 21 for SmolLM2's."""
        return frozenset(b for b in range(256) if bytes([b]) not in self.encoding._mergeable_ranks)

    @cached_property
    def marks(self) -> frozenset[str]:
        """The marks of a chat's turns (data/templates.py), where this tokenizer has tokens for them."""
        of_chat = frozenset[str]() if self.chat is None else self.chat.marks
        return frozenset(CHAT_MARKS) & self.encoding.special_tokens_set | of_chat

    @cached_property
    def chat(self) -> ChatForm | None:
        """The model's own form of a chat, in which files are written; None: it has none.

        UserError for a template that cannot write a question and its answer.
        """
        if self.chat_template is None:
            return None
        specials = {t for t in self.encoding.special_tokens_set if not t.startswith(UNUSED)}
        ends = {"bos_token": self.bos_id, "eos_token": self.eos_id, "pad_token": self.pad_id}
        tokens = {n: self.encoding.decode([id]) for n, id in ends.items() if id is not None}
        return ChatForm(self.chat_template, (self.template_tokens or tokens).items(), specials)

    @cached_property
    def cuts(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        """What finds the tokens that stand whole in a text, the longest first; other special ones."""
        whole = {*self.added, *self.marks}
        other = {text for text in self.encoding.special_tokens_set if not text.startswith(UNUSED)}
        texts = (sorted(found, key=len, reverse=True) for found in (whole, other - whole))
        first, second = ("|".join(map(re.escape, found)) or r"(?!)" for found in texts)
        return re.compile(f"({first})"), re.compile(second)

    def encode(self, text: str) -> list[int]:
        """The ids of text. "<|endoftext|>" in it is spelled out, not special; a chat's marks and other
        `added` tokens are tokens. A character that the vocabulary cannot spell becomes U+FFFD.
        """
        whole, special = self.cuts
        if found := special.search(text):
            say_once(f"note: {found[0]} in a text is read letter by letter, as no special token")
        single, ids = self.encoding.encode_single_token, list[int]()
        for place, part in enumerate(whole.split(text)):
            ids += [single(part)] if place % 2 else self._ordinary(part)
        return ids

    def _ordinary(self, text: str) -> list[int]:
        """The ids of text in which no token stands whole; UserError for blanks it cannot read."""
        if self.unspelled:
            text = "".join(
                "\ufffd" if self.unspelled.intersection(c.encode("utf-8", "replace")) else c
                for c in text
            )
        if (
            len(text) > LONG_BLANK
            and max(map(len, re.findall(r"\s+", text)), default=0) > LONG_BLANK
        ):
            raise UserError(f"there are over {LONG_BLANK:,} blanks in a row: take them out")
        return self.encoding.encode_ordinary(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids` without end-of-text and padding; broken UTF-8 becomes U+FFFD."""
        silent = (self.eos_id, self.pad_id, *self.other_ends)
        return self.encoding.decode([token for token in ids if token not in silent])


@cache
def load_tokenizer(name: str) -> Tokenizer:
    """ "glassbox" (from this folder) or "gpt2" (from tiktoken's cache, else downloaded).

    Raises UserError for another name, and when gpt2's files cannot be had.
    """
    if name == "glassbox":
        ranks = parse_ranks(RANKS_FILE.read_text(encoding="utf-8"), RANKS_FILE)
        return build_tokenizer("glassbox", ranks)
    if name == "gpt2":
        return _load_gpt2()
    raise UserError(f"unknown tokenizer {name!r}: choose one of {', '.join(TOKENIZER_NAMES)}")


def build_tokenizer(
    name: str,
    ranks: dict[bytes, int],
    pattern: str = PATTERN,
    specials: dict[str, int] | None = None,
    end: str = END_OF_TEXT,
    pad: str = PAD,
    **more: Any,
) -> Tokenizer:
    """Return a tokenizer with these ranks, then <|endoftext|>, then <|pad|>, unless others are given.

    more: the fields of MORE; without one a text begins with the token that ends it.
    """
    import tiktoken  # not at the top: a model of numbers, as in bench/, needs none

    specials = specials or {END_OF_TEXT: len(ranks), PAD: len(ranks) + 1}
    encoding = tiktoken.Encoding(
        name,
        pat_str=pattern,
        mergeable_ranks=ranks,
        special_tokens=specials,
        explicit_n_vocab=len(ranks) + len(specials),
    )
    more = {"bos_id": specials[end]} | more
    return Tokenizer(name, encoding, eos_id=specials[end], pad_id=specials[pad], **more)


def _load_gpt2() -> Tokenizer:
    import tiktoken

    try:
        encoding = tiktoken.get_encoding("gpt2")
    except (OSError, ValueError) as error:  # requests' errors are OSErrors; else a wrong hash
        raise UserError(
            "the gpt2 tokenizer is not cached and could not be downloaded "
            f"({type(error).__name__}): put the files 6d1cbeee0f20b3d9449abfede4726ed8212e3aee "
            "(vocab.bpe) and 6c7ea1a7e38e3a7f062df639a5b80947f075ffe6 (encoder.json) into one "
            "folder and set TIKTOKEN_CACHE_DIR to it, or start from a model of another tokenizer: "
            "`python -m gpt.pretraining --tokenizer glassbox` needs no download"
        ) from error
    end = encoding.eot_token
    return Tokenizer("gpt2", encoding, eos_id=end, pad_id=end, bos_id=end)


def rank_lines(ranks: dict[bytes, int]) -> str:
    """Return `ranks` in tiktoken's file format: one "base64(token) rank" per line, by rank."""
    ordered = sorted(ranks.items(), key=lambda item: item[1])
    return "".join(f"{base64.b64encode(token).decode('ascii')} {rank}\n" for token, rank in ordered)


def parse_ranks(text: str, path: Path, taken: Container[int] = ()) -> dict[bytes, int]:
    """The ranks that `rank_lines` wrote as `text`: up from 0, without the ids of `taken`; or UserError."""
    ranks: dict[bytes, int] = {}
    ids = (rank for rank in itertools.count() if rank not in taken)
    for number, line in enumerate(text.splitlines(), start=1):
        expected = next(ids)
        try:
            encoded, rank = line.split()
            token = base64.b64decode(encoded, validate=True)
            in_order = int(rank) == expected and token not in ranks
        except (ValueError, binascii.Error):
            in_order = False
        if not in_order:
            raise UserError(
                f"{path}:{number}: expected 'base64(token) {expected}' with a new token, "
                f"found {line!r:.80}: restore the file or write it again with gpt/tokenizer_training.py"
            )
        ranks[token] = expected
    if any(bytes([value]) not in ranks for value in SPELLED):
        raise UserError(f"{path}: a single byte is missing from the ranks: restore the file")
    return ranks
