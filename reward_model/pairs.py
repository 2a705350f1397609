"""Preference pairs: sampled from a policy and labelled by an annotator, or read from records."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from data.collate import ResponseBatch, collate_responses, epoch_shuffled_indices
from data.records import LABEL, RECORDED, SPLIT_KEY, TURNS, PreferenceRecord, PromptRecord
from data.sources import is_checked
from data.templates import messages_of
from gpt.generate import SamplingParams
from gpt.lengths import Limits, check_fit
from gpt.model import GPT
from gpt.ranks import sample
from gpt.tokenizer import Tokenizer
from harness.errors import UserError


@dataclass(frozen=True)
class TokenPair:
    """One comparison as token ids. A sampled response keeps the very tokens that were drawn.

    A labelled answer is half of one: the other response is empty.
    """

    prompt: list[int]
    chosen: list[int]  # with its EOS, unless it was cut off
    rejected: list[int]
    meta: dict[str, Any] = field(default_factory=dict)  # e.g. gold_chosen, gold_rejected


@dataclass(frozen=True)
class Labelled:
    """An annotator's verdict on two responses."""

    first_preferred: bool
    gold: tuple[float, float] | None = None  # the true rewards, where a world knows them


# (prompt, text a, a ended with EOS, text b, b ended with EOS, random numbers) -> verdict
Annotator = Callable[[PromptRecord, str, bool, str, bool, random.Random], Labelled]


def encode_pairs(records: Sequence[PreferenceRecord], tokenizer: Tokenizer) -> list[TokenPair]:
    """Records as token ids."""
    return [encode_pair(record, tokenizer) for record in records]


def encode_pair(record: PreferenceRecord, tokenizer: Tokenizer) -> TokenPair:
    """One record as token ids.

    A recorded answer keeps the tokens that were sampled, so one that was cut off gets no EOS; under
    another tokenizer than that of the recording its text is encoded.
    """
    meta = {key: value for key, value in record.meta.items() if key not in RECORDED}
    return TokenPair(
        tokenizer.encode_prompt(record.prompt),
        _answer_tokens(record, "chosen", tokenizer),
        _answer_tokens(record, "rejected", tokenizer),
        meta
        | ({SPLIT_KEY: record.question} if record.question else {})
        | ({TURNS: messages_of(record.turns)} if record.turns else {}),
    )


def _answer_tokens(record: PreferenceRecord, name: str, tokenizer: Tokenizer) -> list[int]:
    if record.meta.get(LABEL, name == "chosen") != (name == "chosen"):
        return []  # half a pair: its label is the other side's
    text, recorded = getattr(record, name), record.meta.get(f"{name}_tokens")
    if recorded and max(recorded) < tokenizer.n_vocab and tokenizer.decode(recorded) == text:
        return list(recorded)
    ended = record.meta.get(f"{name}_ended", True)
    return tokenizer.encode(text) + [tokenizer.eos_id] * ended


def as_pair(row: Mapping[str, Any], tokenizer: Tokenizer) -> TokenPair:
    """The pair of a row of pairs.jsonl, with its tokens; an answer of text alone gets an EOS."""
    texts = {name: row[name] for name in ("prompt", "chosen", "rejected")}
    meta = {key: value for key, value in row.items() if key not in (*texts, "step")}
    return encode_pair(PreferenceRecord(**texts, meta=meta), tokenizer)


def lengths_of(pairs: Sequence[TokenPair]) -> list[tuple[int, int]]:
    """Tokens of each prompt, and of its longer answer."""
    return [(len(pair.prompt), max(len(pair.chosen), len(pair.rejected))) for pair in pairs]


def keep_fitting(pairs: Sequence[TokenPair], limits: Limits) -> list[TokenPair]:
    """The pairs that fit. With `limits.cut` long answers are cut; pairs then equal are dropped, counted."""
    kept, alike = [], 0
    for pair, lengths in zip(pairs, lengths_of(pairs), strict=True):
        if limits.reason(*lengths) is not None:
            continue
        chosen, rejected = (
            limits.cut_to_fit(pair.prompt, answer) for answer in (pair.chosen, pair.rejected)
        )
        alike += chosen == rejected
        if chosen != rejected:
            kept.append(replace(pair, chosen=chosen, rejected=rejected))
    if alike:
        print(f"left out {alike:,} of {len(pairs):,} pairs that --cut-answers makes alike")
    return kept


def check_world(data: str) -> None:
    """UserError for a world whose answers a rule checks: it has no pairs."""
    if is_checked(data):
        raise UserError(
            f"{data} is checked by a rule, so nobody compares answers: python -m rl.grpo_engine --data "
            f"{data}, or a file of pairs"
        )


def fitting_pairs(
    data: str,
    records: Sequence[Sequence[PreferenceRecord]],  # to train on, and held-out ones
    tokenizer: Tokenizer,
    limits: Limits,
) -> tuple[list[TokenPair], list[TokenPair]]:
    """The pairs of both that fit; the others are left out, counted. UserError where too few are left."""
    encoded = [encode_pairs(part, tokenizer) for part in records]
    check_fit(data, lengths_of([pair for part in encoded for pair in part]), limits, "pairs")
    train, held_out = (keep_fitting(part, limits) for part in encoded)
    if not train or not held_out:
        raise UserError(
            f"{data}: {len(train)} pairs to train on and {len(held_out)} held-out ones, or their prompts, "
            "are too few: give more"
        )
    return train, held_out


MOST_FRUITLESS = 500  # prompts in a row without two different answers: a policy that has collapsed


@dataclass(frozen=True)
class PairSampling:
    """How pairs are made: K responses to a prompt, every two of them compared.

    Half of the K may have a higher temperature: RL takes the policy to text that it hardly writes yet,
    and a reward model is only reliable on the kind of text that was compared.
    """

    params: SamplingParams
    responses_per_prompt: int = 2  # K
    wide_temperature: float = 1.0  # of the second half of them; the others have that of `params`
    batch_size: int = 256  # prompts that are answered at once
    borrowed: int = 0  # of the K, written for other prompts
    repeated: int = 0  # of the K, own answers that say their last sentence again

    @property
    def sampled(self) -> int:
        """Responses that are sampled for each prompt."""
        return self.responses_per_prompt - self.borrowed - self.repeated


def sample_pairs(
    policy: GPT,
    tokenizer: Tokenizer,
    prompts: Sequence[PromptRecord],
    count: int,
    annotator: Annotator,
    how: PairSampling,
    *,
    generator: torch.Generator,
    rng: random.Random,
    against: GPT | None = None,
) -> Iterator[list[TokenPair]]:
    """Sample K responses to a prompt, have every two of them compared, and yield lists of pairs.

    K responses give K (K - 1) / 2 comparisons for K forward passes of the reward model (Ouyang et al.
    2022, arXiv:2203.02155, section 3.5: K from 4 to 9). Prompts are visited in shuffled epochs until
    `count` pairs exist; the pairs of one visit stay next to each other. Identical responses are left
    out; UserError for a policy that writes nothing else. `rng` shuffles and drives the annotator's
    noise. Where a second model is given, `against`, each of the K is compared with each of its K.
    """
    encoded = [tokenizer.encode_prompt(record.prompt) for record in prompts]
    seed = rng.getrandbits(32)
    made = step = fruitless = 0
    while made < count:
        if fruitless >= MOST_FRUITLESS or step * how.batch_size > 20 * count + 20 * len(prompts):
            raise UserError("the policy's answers to a prompt are the same: raise the temperature")
        chosen = epoch_shuffled_indices(step, how.batch_size, len(prompts), seed).tolist()
        step += 1
        answers = _answers(policy, tokenizer, [encoded[i] for i in chosen], how, generator)
        answers = _with_made(answers, tokenizer, how)
        compared = [[*itertools.combinations(group, 2)] for group in answers]
        if against is not None:
            others = _answers(against, tokenizer, [encoded[i] for i in chosen], how, generator)
            compared = [[*itertools.product(*both)] for both in zip(answers, others, strict=True)]
        pairs = []
        for index, two_of_them in zip(chosen, compared, strict=True):
            for a, b in two_of_them:
                if a[0] != b[0]:
                    verdict = annotator(prompts[index], *a[1:], *b[1:], rng)
                    pairs.append(_pair(encoded[index], a[0], b[0], verdict))
        pairs = pairs[: count - made]
        made += len(pairs)
        fruitless = 0 if pairs else fruitless + len(chosen)
        yield pairs


Answer = tuple[list[int], str, bool]  # tokens, text, ended with EOS


def _answers(
    policy: GPT,
    tokenizer: Tokenizer,
    prompts: Sequence[list[int]],
    how: PairSampling,
    generator: torch.Generator,
) -> list[list[Answer]]:
    """Each prompt's own answers; the second half at `wide_temperature`."""
    K = how.sampled
    wide = 0 if how.wide_temperature == 1 else K // 2
    wider = replace(how.params, temperature=how.wide_temperature)
    groups: list[list[Answer]] = [[] for _ in prompts]
    for count, sampling in ((K - wide, how.params), (wide, wider)):
        if count == 0:
            continue
        sampled = sample(policy, tokenizer, prompts, sampling, generator, samples_per_prompt=count)
        rows = zip(sampled.token_lists(), sampled.has_eos.tolist(), strict=True)
        for row, (tokens, ended) in enumerate(rows):
            groups[row // count].append((tokens, tokenizer.decode(tokens), ended))
    return groups


def _with_made(
    groups: list[list[Answer]], tokenizer: Tokenizer, how: PairSampling
) -> list[list[Answer]]:
    """Each prompt's answers, the borrowed ones, and the repeated ones.

    Borrowed: the first answer of each of the next prompts of the batch. Repeated: the own first answer
    with its last sentence once more, the second with it twice more, and so on.
    """
    return [
        group
        + [groups[(i + lender) % len(groups)][0] for lender in range(1, how.borrowed + 1)]
        + [
            repeated(group[k % len(group)], k + 1, tokenizer, how.params.max_new_tokens)
            for k in range(how.repeated)
        ]
        for i, group in enumerate(groups)
    ]


def repeated(answer: Answer, times: int, tokenizer: Tokenizer, longest: int) -> Answer:
    """An answer that says its last sentence `times` more; cut off, without EOS, where it is too long."""
    _, text, ended = answer
    last = re.split(r"(?<=[.?!])\s+", text)[-1]
    tokens = tokenizer.encode(" ".join([text, *[last] * times])) + [tokenizer.eos_id] * ended
    if len(tokens) > longest:
        tokens, ended = tokens[:longest], False
    return tokens, tokenizer.decode(tokens[: len(tokens) - ended]), ended


def _pair(prompt: list[int], a: list[int], b: list[int], verdict: Labelled) -> TokenPair:
    gold = verdict.gold
    if not verdict.first_preferred:
        a, b = b, a
        gold = None if gold is None else (gold[1], gold[0])
    meta = {} if gold is None else {"gold_chosen": gold[0], "gold_rejected": gold[1]}
    return TokenPair(prompt, a, b, meta)


def collate_pairs(pairs: Sequence[TokenPair], eos_id: int) -> ResponseBatch:
    """2K rows: the K chosen responses, then the K rejected ones; of half a pair one row."""
    sides = [(pair.prompt, pair.chosen) for pair in pairs]
    sides += [(pair.prompt, pair.rejected) for pair in pairs]
    prompts, responses = zip(*(side for side in sides if side[1]), strict=True)
    return collate_responses(prompts, responses, eos_id)


def visits(pairs: Sequence[TokenPair]) -> list[list[TokenPair]]:
    """Neighbouring pairs of one prompt together, as `sample_pairs` makes them of one set of answers."""
    return [list(group) for _, group in itertools.groupby(pairs, key=lambda pair: pair.prompt)]


def by_prompt(pairs: Sequence[TokenPair]) -> list[list[TokenPair]]:
    """All pairs of one prompt together, wherever they stand: one batch element each.

    As separate elements they would let the model see each response K - 1 times an epoch and overfit
    (Ouyang et al. 2022, section 3.5). A world's visits to one prompt have other answers and stay apart.
    """
    groups: dict[tuple[object, ...], list[TokenPair]] = {}
    for number, visit in enumerate(visits(pairs)):
        of_world = "gold_chosen" in visit[0].meta
        groups.setdefault((*visit[0].prompt, "visit", number * of_world), []).extend(visit)
    return list(groups.values())


def prompts_per_forward(
    groups: Sequence[Sequence[TokenPair]], responses: int | None
) -> list[list[Sequence[TokenPair]]]:
    """Prompts with their pairs in forward passes of at most `responses` different ones; None: in one pass.

    A prompt with more responses than that has a forward pass of its own.
    """
    parts: list[list[Sequence[TokenPair]]] = []
    room = 0.0
    for group in groups:
        count = len({tuple(side) for pair in group for side in (pair.chosen, pair.rejected)})
        if not parts or count > room:
            parts.append([])
            room = math.inf if responses is None else responses
        parts[-1].append(group)
        room -= count
    return parts


def collate_comparisons(
    pairs: Sequence[TokenPair], eos_id: int
) -> tuple[ResponseBatch, torch.Tensor, torch.Tensor]:
    """Each different response once, and the row numbers (pairs,) of the chosen and the rejected."""
    rows: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}

    def row(prompt: list[int], response: list[int]) -> int:
        return rows.setdefault((tuple(prompt), tuple(response)), len(rows))

    chosen = torch.tensor([row(pair.prompt, pair.chosen) for pair in pairs])
    rejected = torch.tensor([row(pair.prompt, pair.rejected) for pair in pairs])
    prompts, responses = zip(*rows, strict=True)
    return collate_responses(prompts, responses, eos_id), chosen, rejected


def pair_as_text(pair: TokenPair, tokenizer: Tokenizer) -> dict[str, Any]:
    """A row for pairs.jsonl: text to read, then tokens, which say whether an answer ended."""
    sides = ("chosen", "rejected")
    texts = {name: tokenizer.decode(getattr(pair, name)) for name in sides}
    texts = {"prompt": tokenizer.text_of(pair.prompt)} | texts  # with the marks of a chat
    ends = {tokenizer.eos_id, *tokenizer.other_ends}
    ended = {f"{name}_ended": not ends.isdisjoint(getattr(pair, name)[-1:]) for name in sides}
    return texts | pair.meta | ended | {f"{name}_tokens": getattr(pair, name) for name in sides}
