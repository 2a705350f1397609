"""Byte-pair tokenizers behind one small interface: text to ids and back.

"glassbox" is this project's own byte-level BPE (Sennrich et al. 2016, arXiv:1508.07909, on bytes as
in GPT-2), trained by `gpt/tokenizer_training.py` and read from a file in this folder: it needs no
download. "gpt2" is OpenAI's, through tiktoken. Both run on tiktoken's encoder, those of published
folders on the library `tokenizers` (gpt/tokenizer_files.py).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import itertools
import json
import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.console import say_once
from harness.errors import UserError

if TYPE_CHECKING:
    from data.templates import ChatForm

RANKS_FILE = Path(__file__).with_name("glassbox.tiktoken")
# GPT-2's pattern with two changes: each digit and each newline is a piece of its own, without a
# leading space. Merges never cross pieces, so numbers are always read digit by digit. [^\W\d_] is
# a letter to Python's `re` and to tiktoken's engine alike (they differ on rare non-ASCII signs).
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?[^\W\d_]+|\d|\n| ?(?:[^\s\w]|_)+|[^\S\n]+(?!\S)|[^\S\n]+"
LONG_BLANK = 250_000  # characters of white space in a row; tiktoken's engine gives up at a million
END_OF_TEXT = "<|endoftext|>"
PAD = "<|pad|>"
# Every vocabulary has these bytes: visible ASCII, tab, line break, and U+FFFD for all others.
SPELLED = (9, 10, *range(32, 127), *"\ufffd".encode())
TOKENIZER_NAMES = ("glassbox", "gpt2")
FORM = ("pattern", "specials", "end", "pad")  # what `build_tokenizer` needs beside ranks


@dataclass(frozen=True)
class Tokenizer:
    """A tiktoken encoding; "gpt2" has `pad_id == eos_id`: never derive a mask from ids alone."""

    name: str
    encoding: Any  # tiktoken.Encoding
    eos_id: int
    pad_id: int
    bos_id: int | None = None  # for those who open what is exported
    other_ends: Sequence[int] = ()  # ids that end an answer as `eos_id` does
    chat: ChatForm | None = None  # the model's own form of a chat, in which files are written

    @property
    def n_vocab(self) -> int:
        """Number of ids, from 0 on, that stand for text or its end; a model may have rows beyond them."""
        return self.encoding.n_vocab

    @cached_property
    def fingerprint(self) -> str:
        """sha256 (hex) of ranks, pattern and special tokens: equal if and only if the ids are."""
        digest = hashlib.sha256(rank_lines(self.encoding._mergeable_ranks).encode("ascii"))
        specials = sorted(self.encoding._special_tokens.items())
        digest.update(json.dumps([self.encoding._pat_str, specials]).encode("utf-8"))
        return digest.hexdigest()

    @property
    def parts(self) -> dict[str, Any]:
        """What brings the tokenizer back where its name alone cannot."""
        ends = (self.text_of([id]) for id in (self.eos_id, self.pad_id))
        values = self.encoding._pat_str, self.encoding._special_tokens, *ends
        ranks = rank_lines(self.encoding._mergeable_ranks)
        return {"tokenizer_ranks": ranks, "tokenizer_form": dict(zip(FORM, values, strict=True))}

    @property
    def about(self) -> dict[str, Any]:
        """What a file says of it, for `checked_tokenizer`."""
        about = {"tokenizer": self.name, "tokenizer_fingerprint": self.fingerprint}
        return about | ({} if self.is_known else self.parts)

    @property
    def is_known(self) -> bool:
        """Whether the name says it all: a published one is called what its folder is, "gpt2" perhaps."""
        return self.name in TOKENIZER_NAMES and type(self) is Tokenizer

    @property
    def chat_template(self) -> str | None:
        return None if self.chat is None else self.chat.source

    @property
    def spelled(self) -> Iterable[str]:
        """The tokens that are none in a text."""
        return self.encoding.special_tokens_set

    @cached_property
    def _spelled(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self.spelled)) or "(?!)")

    def encode(self, text: str) -> list[int]:
        """The ids of a text, which may go on from another. "<|endoftext|>" in it is spelled out."""
        if found := self._spelled.search(text):
            say_once(f"note: {found[0]} in a text is read letter by letter, as no special token")
        return self._ids(text)

    def _ids(self, text: str) -> list[int]:
        blanks = re.findall(r"\s+", text) if len(text) > LONG_BLANK else []
        if max(map(len, blanks), default=0) > LONG_BLANK:
            raise UserError(f"there are over {LONG_BLANK:,} blanks in a row: take them out")
        return self.encoding.encode_ordinary(text)

    def encode_prompt(self, text: str) -> list[int]:
        """The ids of a text that goes on from no other: a prompt, or a document."""
        return self.encode(text)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that an id stands for, a special token's those of its name."""
        return self.encoding.decode_single_token_bytes(token)

    def text_of(self, ids: Iterable[int]) -> str:
        """The text of `ids`, special tokens by their names; broken UTF-8 becomes U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def decode(self, ids: Iterable[int]) -> str:
        """`text_of`, without end-of-text and padding."""
        silent = (self.eos_id, self.pad_id, *self.other_ends)
        return self.text_of(token for token in ids if token not in silent)


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
) -> Tokenizer:
    """Return a tokenizer with these ranks, then <|endoftext|>, then <|pad|>, unless others are given."""
    import tiktoken  # not at the top: a model of numbers, as in bench/, needs none

    specials = specials or {END_OF_TEXT: len(ranks), PAD: len(ranks) + 1}
    encoding = tiktoken.Encoding(
        name,
        pat_str=pattern,
        mergeable_ranks=ranks,
        special_tokens=specials,
        explicit_n_vocab=len(ranks) + len(specials),
    )
    return Tokenizer(name, encoding, specials[end], specials[pad], bos_id=specials[end])


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
