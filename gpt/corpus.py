"""What a language model is trained on: batches of token rows, and prompts, from a world or a file.

A batch is a function of its number and the seed alone, so training needs no iterator state to resume.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from data.collate import ResponseBatch, collate_documents, collate_responses
from data.readers import (
    DataError,
    holds_rows,
    read_prompts,
    read_responses,
    read_text,
    split_records,
)
from data.records import PromptRecord, ResponseRecord
from data.worlds import MODULES, has_texts, prompts
from gpt.fit import FileFlags, Limits, check_fit
from gpt.tokenizer import Tokenizer
from harness.errors import UserError
from harness.seeds import derive_seed

POOL = 64  # batches that are generated and sorted by length together
HELD_OUT_ROWS = 256


class Corpus(Protocol):
    """A source of training batches.

    `tokens_per_batch` is the mean number of predicted tokens of a batch. A loss is divided by it:
    where rows of similar length share a batch, the mean over each batch's own tokens would weigh a
    token of short rows more than one of long rows.
    """

    description: str
    tokens_per_batch: float

    def batch(self, index: int) -> ResponseBatch: ...

    def held_out_batches(self) -> list[ResponseBatch]:
        """Texts that are never trained on, the same at every call, in batches of up to N rows."""
        ...


class WorldCorpus:
    """Endless fresh documents of a generated world, one a row.

    Batches of reviews hold rows of similar length, which saves padding. Those of sums are mixed: there
    the length is the style, and training on one style at a time swings between them.

    Only the response is predicted. There is nothing to learn from a world's prompt, a uniform draw,
    and without it in the loss its words are copied into the answer about twice as early.
    """

    def __init__(self, name: str, tokenizer: Tokenizer, batch_size: int, seed: int) -> None:
        self.world = MODULES[name]
        self.sorts_by_length = name == "reviews"
        self.tokenizer, self.batch_size, self.seed = tokenizer, batch_size, seed
        self.description = f"the {name} world"
        self.pool: list[ResponseBatch] = []
        self.pool_number = -1
        self._fill_pool(0)
        self.tokens_per_batch = sum(int(b.response_mask.sum()) for b in self.pool) / POOL

    def batch(self, index: int) -> ResponseBatch:
        number, within = divmod(index, POOL)
        if number != self.pool_number:
            self._fill_pool(number)
        return self.pool[within]

    def _fill_pool(self, number: int) -> None:
        seed = derive_seed(self.seed, f"corpus {number}")
        records = self.world.corpus(POOL * self.batch_size, seed)
        self.pool, self.pool_number = self._batches(records, seed), number

    def held_out_batches(self) -> list[ResponseBatch]:
        """256 documents with prompts of the validation split, in batches of up to `batch_size` rows."""
        rng = random.Random(derive_seed(self.seed, "held-out corpus"))
        prompts = self.world.prompts("validation")
        chosen = [rng.choice(prompts) for _ in range(HELD_OUT_ROWS)]
        records = [
            ResponseRecord(prompt.prompt, self.world.sample_response(prompt, rng))
            for prompt in chosen
        ]
        return self._batches(records, seed=0)

    def _batches(self, records: Sequence[ResponseRecord], seed: int) -> list[ResponseBatch]:
        rows = [encode_record(record, self.tokenizer) for record in records]
        if self.sorts_by_length:
            rows.sort(key=lambda row: len(row[0]) + len(row[1]))
        chunks = [rows[i : i + self.batch_size] for i in range(0, len(rows), self.batch_size)]
        random.Random(seed).shuffle(chunks)
        return [self._collate(chunk) for chunk in chunks]

    def _collate(self, rows: Sequence[tuple[list[int], list[int]]]) -> ResponseBatch:
        prompts, responses = zip(*rows, strict=True)
        return collate_responses(prompts, responses, self.tokenizer.eos_id)


class TextCorpus:
    """Random windows of one context from texts joined by EOS; the last tenth is held out."""

    def __init__(
        self, texts: Sequence[str], tokenizer: Tokenizer, batch_size: int, context: int, seed: int
    ) -> None:
        ids = array("q")  # 8 bytes a token, where a list takes about 40
        for text in texts:
            ids.extend(tokenizer.encode(text))
            ids.append(tokenizer.eos_id)
        self.tokens = torch.tensor(ids, dtype=torch.int64)
        self.batch_size, self.seed = batch_size, seed
        self.window = min(context, len(ids) // 20)
        self.split = len(ids) - len(ids) // 10
        if self.window < 8:
            raise DataError(
                f"{len(ids)} tokens are too few to pre-train on: give a longer text (200 at least)"
            )
        self.description = f"{len(ids):,} tokens in windows of {self.window}"
        self.tokens_per_batch = float(batch_size * (self.window - 1))

    def batch(self, index: int) -> ResponseBatch:
        generator = torch.Generator().manual_seed(derive_seed(self.seed, f"windows {index}"))
        last = self.split - self.window
        starts = torch.randint(last + 1, (self.batch_size,), generator=generator)
        return self._windows(starts.tolist())

    def held_out_batches(self) -> list[ResponseBatch]:
        """Up to 64 windows of the last tenth that do not overlap; tokens (N, window), N <= batch_size."""
        starts = list(range(self.split, len(self.tokens) - self.window + 1, self.window))
        size = self.batch_size
        starts = starts[: max(HELD_OUT_ROWS // 4, 1)]
        return [self._windows(starts[i : i + size]) for i in range(0, len(starts), size)]

    def _windows(self, starts: Sequence[int]) -> ResponseBatch:
        return collate_documents([self.tokens[s : s + self.window].tolist() for s in starts])


def encode_record(record: ResponseRecord, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Tokens of the prompt, and of the response with its EOS."""
    response = [*tokenizer.encode(record.response), tokenizer.eos_id]
    return tokenizer.encode(record.prompt), response


def open_corpus(
    data: str,
    tokenizer: Tokenizer,
    *,
    batch_size: int,
    context: int,
    seed: int,
    template: bool = False,
) -> Corpus:
    """The corpus named by a `--data` flag: a world, or a file. DataError says what is wrong with it."""
    if data in MODULES and not has_texts(data):
        raise UserError(
            f"{data}: a world of prompts alone, without texts to learn from: start from a model that has "
            "read English, as scripts/smollm2.py makes one"
        )
    if data in MODULES:
        return WorldCorpus(data, tokenizer, batch_size, seed)
    texts = read_documents(Path(data), template=template)
    return TextCorpus(texts, tokenizer, batch_size, context, seed)


def open_prompts(
    data: str,
    tokenizer: Tokenizer,
    room: int,
    flags: FileFlags = FileFlags(),  # noqa: B008  (it is frozen)
) -> dict[str, list[PromptRecord]]:
    """The prompts of a world or a file per split; those longer than `room` are left out, counted.

    UserError if these are more than half.
    """
    if data in MODULES:
        return {split: prompts(data, split, 2000) for split in ("train", "validation", "test")}
    limits = Limits(room, 0)
    result = read_prompts(Path(data), template=flags.template)
    print(result.summary())
    lengths = [(len(tokenizer.encode(record.prompt)), 0) for record in result.records]
    check_fit(data, lengths, limits, "prompts")
    rows = zip(result.records, lengths, strict=True)
    kept = [record for record, row in rows if limits.reason(*row) is None]
    splits = split_records(kept)
    for split in ("train", "validation", "test"):
        if not splits[split]:
            different = len({record.prompt for record in kept})
            more = "that differ" if len(kept) == len(lengths) else "or lower --max-new-tokens"
            raise UserError(
                f"{data}: no {split} prompts are left of {len(result.records)} ({different} different "
                f"ones fit, split by their text): give more prompts {more}"
            )
    return {name: list(records) for name, records in splits.items()}


def read_documents(path: Path, *, template: bool = False, say: bool = True) -> list[str]:
    """The texts of a text file or a folder of them, or prompt + answer of the training split of a file."""
    try:
        return read_text(path)
    except DataError:
        if not holds_rows(path):
            raise
    result = read_responses(path, template=template)
    if say:
        print(result.summary())
    return [record.prompt + record.response for record in split_records(result.records)["train"]]
