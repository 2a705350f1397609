"""Train the "glassbox" byte-pair tokenizer on text of both worlds and write its rank file.

    python -m gpt.tokenizer_training            # rewrites gpt/glassbox.tiktoken, a few seconds

Byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909, Algorithm 1) on bytes, as in GPT-2:
start from the 256 single bytes and merge the most frequent neighbouring pair again and again. A
merge never crosses the pieces that the pattern cuts the text into, so it is enough to count in
unique pieces.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from data import reviews, sums
from gpt.tokenizer import PATTERN, RANKS_FILE, rank_lines

N_SPECIALS = 2  # <|endoftext|> and <|pad|>, numbered after the ranks

Piece = tuple[bytes, ...]
Pair = tuple[bytes, bytes]


@dataclass(frozen=True)
class TokenizerTrainingConfig:
    """What the committed rank file was trained with."""

    vocab_size: int = 624
    """Number of ids: 256 bytes, the merges, 2 special tokens. With 624 every word is one token."""
    documents: int = 20_000
    """Documents of each world to count in."""
    seed: int = 0
    """Seed of both worlds."""
    out: Path = RANKS_FILE
    """Where the rank file goes (tiktoken's format)."""


def training_text(documents: int, seed: int) -> Iterable[str]:
    """Yield the text of `documents` documents of each world, prompt and response joined."""
    for record in [*reviews.corpus(documents, seed), *sums.corpus(documents, seed)]:
        yield record.prompt + record.response


def train_ranks(texts: Iterable[str], vocab_size: int) -> dict[bytes, int]:
    """Return the ranks {token: id}: the 256 bytes, then vocab_size - 258 merges in order.

    A tie between equally frequent pairs goes to the smaller pair in byte order: the text alone
    decides. Raises ValueError if the text supports fewer merges.
    """
    if vocab_size < 256 + N_SPECIALS:
        raise ValueError(f"vocab_size is {vocab_size}, but bytes and special tokens take 258 ids")
    pieces = count_pieces(texts)
    ranks = {bytes([value]): value for value in range(256)}
    while len(ranks) + N_SPECIALS < vocab_size:
        pairs = count_pairs(pieces)
        if not pairs:
            raise ValueError(
                f"the text is exhausted at {len(ranks) + N_SPECIALS} ids, before {vocab_size}: "
                "train on more varied text or ask for a smaller vocabulary"
            )
        pair = min(pairs, key=lambda candidate: (-pairs[candidate], candidate))
        ranks[pair[0] + pair[1]] = len(ranks)
        pieces = Counter({merge(piece, pair): count for piece, count in pieces.items()})
    return ranks


def count_pieces(texts: Iterable[str]) -> Counter[Piece]:
    """Cut the texts with the tokenizer's pattern and count each piece (a tuple of bytes)."""
    counts = Counter(piece for text in texts for piece in re.findall(PATTERN, text))
    return Counter(
        {
            tuple(bytes([value]) for value in piece.encode("utf-8")): count
            for piece, count in counts.items()
        }
    )


def count_pairs(pieces: Counter[Piece]) -> Counter[Pair]:
    """Count neighbouring tokens over all pieces."""
    pairs: Counter[Pair] = Counter()
    for piece, count in pieces.items():
        for pair in zip(piece, piece[1:], strict=False):
            pairs[pair] += count
    return pairs


def merge(piece: Piece, pair: Pair) -> Piece:
    """Return `piece` with every occurrence of `pair` as one token, from left to right."""
    merged: list[bytes] = []
    index = 0
    while index < len(piece):
        if piece[index : index + 2] == pair:
            merged.append(pair[0] + pair[1])
            index += 2
        else:
            merged.append(piece[index])
            index += 1
    return tuple(merged)


def main(config: TokenizerTrainingConfig) -> None:
    """Train and write the rank file."""
    ranks = train_ranks(training_text(config.documents, config.seed), config.vocab_size)
    config.out.write_bytes(rank_lines(ranks).encode("ascii"))
    print(f"wrote {len(ranks)} ranks ({len(ranks) - 256} merges) to {config.out}")


if __name__ == "__main__":
    import tyro

    from gpt.common import run_script

    run_script(main, tyro.cli(TokenizerTrainingConfig, description=__doc__))
