"""What a language model is trained on: batches of token rows, from a world or a file.

A batch is a function of its number and the seed alone, so training needs no iterator state to resume.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from typing import Protocol

import torch

from data.collate import ResponseBatch, collate_documents, collate_responses
from data.records import ResponseRecord
from data.sources import file_source, is_world, world_source
from gpt.tokenizer import Tokenizer
from harness.errors import UserError
from harness.seeds import derive_seed

POOL = 64  # batches that are generated and sorted by length together
HELD_OUT_ROWS = 256
Example = tuple[list[int], list[int]]  # prompt tokens, response tokens with EOS


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

    Only the response is predicted. There is nothing to learn from a world's prompt, a uniform draw,
    and without it in the loss its words are copied into the answer about twice as early.
    """

    def __init__(self, name: str, tokenizer: Tokenizer, batch_size: int, seed: int) -> None:
        self.world = world_source(name)
        if self.world.corpus is None or self.world.sample_response is None:
            raise UserError(
                f"{name} has no texts: start from a model (scripts/smollm2.py makes one)"
            )
        self.draw, self.answer = self.world.corpus, self.world.sample_response
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
        records = self.draw(POOL * self.batch_size, seed)
        self.pool, self.pool_number = self._batches(records, seed), number

    def held_out_batches(self) -> list[ResponseBatch]:
        """256 documents with prompts of the validation split, in batches of up to `batch_size` rows."""
        rng = random.Random(derive_seed(self.seed, "held-out corpus"))
        prompts = self.world.prompts("validation")
        chosen = [rng.choice(prompts) for _ in range(HELD_OUT_ROWS)]
        records = [ResponseRecord(prompt.prompt, self.answer(prompt, rng)) for prompt in chosen]
        return self._batches(records, seed=0)

    def _batches(self, records: Sequence[ResponseRecord], seed: int) -> list[ResponseBatch]:
        rows = [encode_record(record, self.tokenizer) for record in records]
        if self.world.SORTED_BY_LENGTH:
            rows.sort(key=lambda row: len(row[0]) + len(row[1]))
        chunks = [rows[i : i + self.batch_size] for i in range(0, len(rows), self.batch_size)]
        random.Random(seed).shuffle(chunks)
        return [collate_examples(chunk, self.tokenizer.eos_id) for chunk in chunks]


class TextCorpus:
    """Random windows of one context from texts joined by EOS; the last tenth is held out."""

    def __init__(
        self, texts: Sequence[str], tokenizer: Tokenizer, batch_size: int, context: int, seed: int
    ) -> None:
        ids = array("q")  # 8 bytes a token, where a list takes about 40
        for text in texts:
            ids.extend(tokenizer.encode_prompt(text))
            ids.append(tokenizer.eos_id)
        self.tokens = torch.tensor(ids, dtype=torch.int64)
        self.batch_size, self.seed = batch_size, seed
        self.window = min(context, len(ids) // 20)
        self.split = len(ids) - len(ids) // 10
        if self.window < 8:
            raise UserError(f"{len(ids)} tokens are too few to pre-train on: give 200 at least")
        self.description = f"{len(ids):,} tokens in windows of {self.window}"
        self.tokens_per_batch = float(batch_size * (self.window - 1))

    def batch(self, index: int) -> ResponseBatch:
        generator = torch.Generator().manual_seed(derive_seed(self.seed, f"windows {index}"))
        last = self.split - self.window
        starts = torch.randint(last + 1, (self.batch_size,), generator=generator)
        return self._windows(starts.tolist())

    def held_out_batches(self) -> list[ResponseBatch]:
        """Up to 64 windows of the last tenth that do not overlap; tokens (N, window), N <= batch_size."""
        starts = range(self.split, len(self.tokens) - self.window + 1, self.window)
        starts, size = starts[: HELD_OUT_ROWS // 4], self.batch_size
        return [self._windows(starts[i : i + size]) for i in range(0, len(starts), size)]

    def _windows(self, starts: Sequence[int]) -> ResponseBatch:
        return collate_documents([self.tokens[s : s + self.window].tolist() for s in starts])


# From --data to what is trained on ----------------------------------------------------------------


def encode_record(record: ResponseRecord, tokenizer: Tokenizer) -> Example:
    """Tokens of the prompt, and of the response with its EOS."""
    response = [*tokenizer.encode(record.response), tokenizer.eos_id]
    return tokenizer.encode_prompt(record.prompt), response


def collate_examples(examples: Sequence[Example], eos_id: int) -> ResponseBatch:
    """The loss sees the response and its EOS, never the prompt."""
    prompts, responses = zip(*examples, strict=True)
    return collate_responses(prompts, responses, eos_id)


def open_corpus(
    data: str, tokenizer: Tokenizer, *, batch_size: int, context: int, seed: int
) -> Corpus:
    """The corpus named by a `--data` flag: a world, or a file. UserError says what is wrong with it."""
    if is_world(data):
        return WorldCorpus(data, tokenizer, batch_size, seed)
    texts = file_source(data, tokenizer.chat).documents()
    return TextCorpus(texts, tokenizer, batch_size, context, seed)
