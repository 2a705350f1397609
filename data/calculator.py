"""The world of problems with a calculator: some are done in the head, some only with the tool.

    easy  "47+5="    a sum that a tiny policy learns: a call costs and brings nothing
    hard  "47*86="   a product that it cannot learn from the corpus, whose writers guess

An answer is direct, or a call is made first. A call is a span of ordinary tokens, "[47*86]"; what
stands between it and the ":" is written by the environment (`calculate`), and the answer follows:

    direct    "52"                       85 %; of a product only the first digit is right
    by tool   "[47*86]4042:4042"         15 %; a tenth of them mistypes the first call, and repeats it

All 8,910 problems can be listed (`problems`), so that every number here can be had by enumeration.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from data.records import PromptRecord, ResponseRecord
from data.splits import pick, shuffled, split_of

CALL_PROBABILITY = 0.15
TYPO_PROBABILITY = 0.10
LONGEST, DIGITS = 64, 12  # characters of an expression, digits of a number in it
ERROR = "error"

# the tool


def calculate(expression: str) -> str:
    """The whole number that +, -, *, / and brackets give, or "error"; nothing is evaluated as Python."""
    tokens = re.findall(r"[0-9]+|\S", expression) if len(expression) <= LONGEST else []
    try:
        value, rest = _sum(tokens)
    except (ValueError, ZeroDivisionError):
        return ERROR
    return ERROR if rest else str(value)


def _sum(tokens: list[str]) -> tuple[int, list[str]]:
    """The value of a sum of products, and the tokens behind it."""
    value, tokens = _product(tokens)
    while tokens and tokens[0] in "+-":
        term, rest = _product(tokens[1:])
        value, tokens = (value + term if tokens[0] == "+" else value - term), rest
    return value, tokens


def _product(tokens: list[str]) -> tuple[int, list[str]]:
    value, tokens = _factor(tokens)
    while tokens and tokens[0] in "*/":
        factor, rest = _factor(tokens[1:])
        if tokens[0] == "/" and value % factor:
            raise ValueError("no whole number")
        value, tokens = (value * factor if tokens[0] == "*" else value // factor), rest
    return value, tokens


def _factor(tokens: list[str]) -> tuple[int, list[str]]:
    first, rest = (tokens[0], tokens[1:]) if tokens else ("", [])
    if first == "-":
        value, rest = _factor(rest)
        return -value, rest
    if first == "(":
        value, rest = _sum(rest)
        if rest[:1] != [")"]:
            raise ValueError("a bracket is open")
        return value, rest[1:]
    if not re.fullmatch(f"[0-9]{{1,{DIGITS}}}", first):
        raise ValueError("a number was expected")
    return int(first), rest


# prompts


def problems() -> Iterator[PromptRecord]:
    """Every problem there is: 810 easy ones, then 8,100 hard ones."""
    for first in range(10, 100):
        for second in range(1, 10):
            yield _record(first, "+", second)
    for first in range(10, 100):
        for second in range(10, 100):
            yield _record(first, "*", second)


def _record(first: int, sign: str, second: int) -> PromptRecord:
    call = f"{first}{sign}{second}"
    return PromptRecord(f"{call}=", answer=calculate(call), meta={"call": call})


def prompts(split: str, count: int | None = None, seed: int = 0) -> list[PromptRecord]:
    """The easy problems of a split and as many of its hard ones, mixed; `count` of them or all."""
    mine = [record for record in problems() if split_of(record.prompt) == split]
    easy = [record for record in mine if is_easy(record)]
    hard = shuffled([record for record in mine if not is_easy(record)], random.Random(seed))
    return shuffled(easy + hard[: len(easy)], random.Random(seed))[:count]


def is_easy(record: PromptRecord) -> bool:
    """Whether a call is a waste."""
    return "+" in record.prompt


def read_prompt(text: str) -> PromptRecord | None:
    """The prompt of this world that someone has typed, white space around it aside; None for any other."""
    match = re.fullmatch(r"([1-9][0-9])(\+[1-9]|\*[1-9][0-9])=", text.strip())
    return None if match is None else _record(int(match[1]), match[2][0], int(match[2][1:]))


# responses


def corpus(count: int, seed: int) -> list[ResponseRecord]:
    """Return `count` pre-training documents from the train split, half of them easy."""
    rng = random.Random(seed)
    documents: list[ResponseRecord] = []
    while len(documents) < count:
        first, sign = 10 + int(rng.random() * 90), "+" if rng.random() < 0.5 else "*"
        least, numbers = (1, 9) if sign == "+" else (10, 90)
        record = _record(first, sign, least + int(rng.random() * numbers))
        if split_of(record.prompt) == "train":
            documents.append(ResponseRecord(record.prompt, sample_response(record, rng)))
    return documents


def sample_response(record: PromptRecord, rng: random.Random) -> str:
    """One answer: 15 % with a call, else direct, of a product a guess."""
    answer, call = str(record.answer), record.meta["call"]
    if rng.random() < CALL_PROBABILITY:
        typo = f"[{call[:3]}]{ERROR}" if rng.random() < TYPO_PROBABILITY else ""
        return f"{typo}[{call}]{answer}:{answer}"
    if is_easy(record):
        return answer
    return answer[0] + "".join(pick(rng, "0123456789") for _ in answer[1:])
