"""The world of three-digit sums, whose answers are checked exactly.

A prompt is "347+588=". Writers answer in one of two styles:

    direct  "935"                           70 %; half of these have one digit off by one
    steps   "7+8=15,4+8+1=13,3+5+1=9:935"   30 %; each written sum is off by one in 6 % of cases

The steps add column by column from the units, with the carry as a third term, and the answer
follows the last colon. A wrong written sum is trusted from then on: its last digit enters the
answer and its carry the next column, so a written solution is exact if and only if all steps are.
Most of what a policy gains from reinforcement here is the habit of writing the steps.
"""

from __future__ import annotations

import random
import re
from typing import NamedTuple

from data.records import SPLITS, PromptRecord, ResponseRecord, pick, split_of

FIRST, LAST = 100, 999  # both terms
STEPS_PROBABILITY = 0.30
DIRECT_ERROR_PROBABILITY = 0.50
STEP_ERROR_PROBABILITY = 0.06


class StepCheck(NamedTuple):
    """One written step: the characters response[start:end], and whether it is exactly right."""

    start: int
    end: int
    correct: bool


# prompts


def prompts(split: str, count: int | None = 2000, seed: int = 0) -> list[PromptRecord]:
    """`count` different random prompts of a split (by crc32 of the text); None: all, by their terms.

    A larger `count` with the same seed only appends. `answer` is the exact sum, `meta` the terms a and
    b.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}: choose one of {', '.join(SPLITS)}")
    if count is None:
        pairs = ((a, b) for a in range(FIRST, LAST + 1) for b in range(FIRST, LAST + 1))
        return [_prompt(a, b) for a, b in pairs if split_of(_text(a, b)) == split]
    rng = random.Random(seed)
    chosen: dict[tuple[int, int], PromptRecord] = {}
    while len(chosen) < count:
        a, b = _draw_pair(split, rng)
        chosen[a, b] = _prompt(a, b)
    return list(chosen.values())


def _draw_pair(split: str, rng: random.Random) -> tuple[int, int]:
    while True:
        a, b = (FIRST + int(rng.random() * (LAST - FIRST + 1)) for _ in range(2))
        if split_of(_text(a, b)) == split:
            return a, b


def _text(a: int, b: int) -> str:
    return f"{a}+{b}="


def _prompt(a: int, b: int) -> PromptRecord:
    return PromptRecord(_text(a, b), answer=str(a + b), meta={"a": a, "b": b})


def read_prompt(text: str) -> PromptRecord | None:
    """The prompt of this world that was typed, without white space around it; None for any other text."""
    match = re.fullmatch(r"([1-9][0-9]{2})\+([1-9][0-9]{2})=", text.strip())
    return None if match is None else _prompt(int(match[1]), int(match[2]))


# responses


def corpus(count: int, seed: int) -> list[ResponseRecord]:
    """Return `count` pre-training documents from the train split (drawn with replacement)."""
    rng = random.Random(seed)
    documents = []
    for _ in range(count):
        record = _prompt(*_draw_pair("train", rng))
        documents.append(
            ResponseRecord(record.prompt, sample_response(record, rng), meta=record.meta)
        )
    return documents


def sample_response(record: PromptRecord, rng: random.Random) -> str:
    """Return one answer: 30 % written steps, else the direct answer, each with its errors."""
    if rng.random() < STEPS_PROBABILITY:
        return _write_steps(record.meta["a"], record.meta["b"], rng, STEP_ERROR_PROBABILITY)
    return _write_direct(record.meta["a"] + record.meta["b"], rng)


def _write_direct(total: int, rng: random.Random) -> str:
    """The sum; with probability 0.5 one of its digits, any place, is off by one."""
    digits = [int(digit) for digit in str(total)]
    if rng.random() < DIRECT_ERROR_PROBABILITY:
        place = int(rng.random() * len(digits))
        lowest = 1 if place == 0 else 0  # no leading zero
        digits[place] = _off_by_one(digits[place], lowest, 9, rng)
    return "".join(map(str, digits))


def _write_steps(a: int, b: int, rng: random.Random, error_probability: float) -> str:
    """Column sums from the units with carries; every written sum is used as it was written."""
    steps, answer, carry = [], "", 0
    for digit_a, digit_b in zip(reversed(str(a)), reversed(str(b)), strict=True):
        total = int(digit_a) + int(digit_b) + carry
        if rng.random() < error_probability:
            total = _off_by_one(total, 0, 19, rng)
        steps.append(f"{digit_a}+{digit_b}{f'+{carry}' if carry else ''}={total}")
        carry, digit = divmod(total, 10)
        answer = f"{digit}{answer}"
    return f"{','.join(steps)}:{carry or ''}{answer}"


def _off_by_one(value: int, lowest: int, highest: int, rng: random.Random) -> int:
    return pick(rng, [near for near in (value - 1, value + 1) if lowest <= near <= highest])


# checks


def exact_match(record: PromptRecord, response: str, has_eos: bool) -> float:
    """1.0 if the text after the last ":", or all of it, is exactly the answer, with EOS."""
    return float(has_eos and response.rsplit(":", 1)[-1] == record.answer)


def uses_steps(response: str) -> bool:
    """Return True if the response writes at least one step, finished or cut off: it holds a "="."""
    return "=" in response


def step_checks(record: PromptRecord, response: str) -> list[StepCheck]:
    """Each written step as (start, end, correct); a direct answer has none.

    Steps are the pieces between commas, up to the last ":" or the end. Step i is correct when it
    equals the i-th step of the exact solution: a right sum of wrong terms is not, nor is a fourth
    step.
    """
    if not uses_steps(response):
        return []
    exact = _write_steps(record.meta["a"], record.meta["b"], random.Random(0), 0.0)
    expected = exact.split(":")[0].split(",")
    written = response.rpartition(":")[0] if ":" in response else response
    checks, start = [], 0
    for index, step in enumerate(written.split(",")):
        correct = index < len(expected) and step == expected[index]
        checks.append(StepCheck(start, start + len(step), correct))
        start += len(step) + 1
    return checks


# what data/sources.py asks of a world besides

gold, prefers = exact_match, None
# Batches are mixed: length is the style here, and training on one style at a time swings between them.
CHECK, SORTED_BY_LENGTH = "exact match", False
