"""Train a byte-pair tokenizer: "glassbox", and the own one of a file's texts.

    python -m gpt.tokenizer_training            # "glassbox", on text of both worlds: a few seconds

A model with an own tokenizer keeps the ranks in its own file.

Byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909, Algorithm 1) on bytes, as in GPT-2: start
from the 256 single bytes and merge the most frequent neighbouring pair again and again. A merge never
crosses the pieces that the pattern cuts the text into, so unique pieces are counted.

`train_ranks` counts again only the neighbours of what a merge joins.
"""

from __future__ import annotations

import heapq
import itertools
import re
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from data.sources import data_name, file_source
from data.worlds import reviews, sums
from gpt.tokenizer import PATTERN, RANKS_FILE, Tokenizer, build_tokenizer, rank_lines
from harness.command_line import run_command
from harness.files import display_path, write_atomically

VOCABULARY = 624  # ids: with so many every word of both worlds is one token
DOCUMENTS = 20_000  # of each world to count in
OWN_VOCABULARY, OWN_TEXT = 4096, 2_000_000  # ids at most, characters that are counted
N_SPECIALS = 2  # <|endoftext|> and <|pad|>, numbered after the ranks

Piece = tuple[bytes, ...]
Pair = tuple[bytes, bytes]


@dataclass(frozen=True)
class TokenizerTrainingConfig:
    """Train the tokenizer of both worlds."""

    out: Path = RANKS_FILE
    """Where the rank file goes (tiktoken's format)."""


def own_tokenizer(data: str) -> Tokenizer:
    """The tokenizer of a file's texts, which the file alone decides: some seconds for any file.

    It counts in the first OWN_TEXT characters, and takes one id for each 100 of them, 512 to 4,096.
    """
    texts, size = list[str](), 0
    for text in file_source(data, None).documents(say=False):
        texts.append(text[: OWN_TEXT - size])
        size += len(texts[-1])
        if size >= OWN_TEXT:
            break
    ranks = train_ranks(texts, min(max(size // 100, 512), OWN_VOCABULARY))
    return build_tokenizer(f"{data_name(data)}.tiktoken", ranks)


def train_ranks(texts: Iterable[str], vocab_size: int) -> dict[bytes, int]:
    """Return the ranks {token: id}: the 256 bytes, then vocab_size - 258 merges in order.

    A tie between equally frequent pairs goes to the smaller pair in byte order: the text alone
    decides. There are fewer merges if the text supports no more.
    """
    ranks = {bytes([value]): value for value in range(256)}
    # All pieces in one row, each behind an empty token of weight 0; a token knows its neighbours.
    tokens, weights = [b""], array("q", [0])
    for piece, count in count_pieces(texts).items():
        tokens += [*piece, b""]
        weights.extend([count] * len(piece) + [0])
    before, after = array("q", range(-1, len(tokens) - 1)), array("q", range(1, len(tokens) + 1))
    pairs: Counter[Pair] = Counter()
    places: defaultdict[Pair, list[int]] = defaultdict(list)  # where a pair is, or once was
    for place, pair in enumerate(itertools.pairwise(tokens)):
        if all(pair):
            pairs[pair] += weights[place]
            places[pair].append(place)
    queue = [(-count, pair) for pair, count in pairs.items()]
    heapq.heapify(queue)
    while len(ranks) + N_SPECIALS < vocab_size:
        best = _most_frequent(queue, pairs)
        if best is None:
            break
        joined = best[0] + best[1]
        ranks.setdefault(joined, len(ranks))  # a token that is there keeps its id
        changed: Counter[Pair] = Counter()
        for place in sorted(places.pop(best)):
            second = after[place]
            if (tokens[place], tokens[second]) != best:
                continue  # a merge has taken one of the two
            left, right, count = before[place], after[second], weights[place]
            changed[best] -= count
            changed[tokens[left], best[0]] -= count
            changed[best[1], tokens[right]] -= count
            changed[tokens[left], joined] += count
            changed[joined, tokens[right]] += count
            places[tokens[left], joined].append(left)
            places[joined, tokens[right]].append(place)
            tokens[place], tokens[second] = joined, b""
            after[place], before[right] = right, place
        for pair, change in changed.items():
            if change and all(pair):
                pairs[pair] += change
            if change > 0 and all(pair):
                heapq.heappush(queue, (-pairs[pair], pair))
    return ranks


def _most_frequent(queue: list[tuple[int, Pair]], pairs: Counter[Pair]) -> Pair | None:
    """Take the pair with the highest count; one whose count has fallen since goes back in with it."""
    while queue:
        count, pair = heapq.heappop(queue)
        if pairs[pair] == -count:
            return pair
        if 0 < pairs[pair] < -count:
            heapq.heappush(queue, (-pairs[pair], pair))
    return None


def count_pieces(texts: Iterable[str]) -> Counter[Piece]:
    """Cut the texts with the tokenizer's pattern and count each piece (a tuple of bytes)."""
    counts = Counter(piece for text in texts for piece in re.findall(PATTERN, text))
    return Counter(
        {
            tuple(bytes([value]) for value in piece.encode("utf-8")): count
            for piece, count in counts.items()
        }
    )


def main(config: TokenizerTrainingConfig) -> None:
    """Train and write the rank file (tiktoken's format)."""
    begin = time.perf_counter()
    records = [*reviews.corpus(DOCUMENTS, seed=0), *sums.corpus(DOCUMENTS, seed=0)]
    ranks = train_ranks((record.prompt + record.response for record in records), VOCABULARY)
    written = rank_lines(ranks).encode("ascii")
    write_atomically(config.out, lambda path: path.write_bytes(written))
    print(
        f"wrote {len(ranks)} ranks ({len(ranks) - 256} merges) to {display_path(config.out)} "
        f"in {time.perf_counter() - begin:.0f} s"
    )


if __name__ == "__main__":
    run_command(main, TokenizerTrainingConfig)
