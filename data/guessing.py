"""A guessing game, whose turns are no tool: the environment answers every guess.

    prompt    "3-9:"          a whole number from 3 to 9 is to be found; which one, `answer` says
    policy    "5?"            a guess ends with "?"
    answered  ">"             it is larger; "<" smaller, "=" found
    "5?>7?<6?="               a whole game, after which the policy ends

Writers guess any number that the answers so far allow, in 30 % of the guesses any at all. A cost per
turn makes halving the range the best policy. There are 140 games; a split is by prompt and number.
"""

from __future__ import annotations

import random
import re

from data.records import PromptRecord, ResponseRecord
from data.splits import pick, shuffled, split_of

CARELESS = 0.3
GAMES = [
    (low, high, secret)
    for low in range(1, 8)
    for high in range(low + 2, 10)
    for secret in range(low, high + 1)
]


def reply(guess: str, record: PromptRecord) -> str:
    """What the environment says to a guess."""
    if not re.fullmatch("[0-9]{1,3}", guess):
        return "error"
    number, secret = int(guess), int(str(record.answer))
    return "=" if number == secret else ">" if secret > number else "<"


def prompts(split: str, count: int | None = None, seed: int = 0) -> list[PromptRecord]:
    """The games of a split, mixed; `count` of them or all."""
    mine = [_record(*game) for game in GAMES if split_of("{}-{}:{}".format(*game)) == split]
    return shuffled(mine, random.Random(seed))[:count]


def _record(low: int, high: int, secret: int) -> PromptRecord:
    return PromptRecord(f"{low}-{high}:", answer=str(secret), meta={"low": low, "high": high})


def read_prompt(text: str) -> PromptRecord | None:
    """The first game with this prompt; None for a text that is none."""
    match = re.fullmatch("([1-9])-([1-9]):", text.strip())
    game = None if match is None else (int(match[1]), int(match[2]), int(match[1]))
    return _record(*game) if game in GAMES else None


def found(record: PromptRecord, response: str, has_eos: bool) -> float:
    """1.0 if the last guess was right and EOS followed, else 0.0."""
    return float(has_eos and response.endswith(f"{record.answer}?="))


def corpus(count: int, seed: int) -> list[ResponseRecord]:
    """Return `count` pre-training documents from the train split (drawn with replacement)."""
    rng, records = random.Random(seed), prompts("train")
    chosen = [pick(rng, records) for _ in range(count)]
    return [ResponseRecord(record.prompt, sample_response(record, rng)) for record in chosen]


def sample_response(record: PromptRecord, rng: random.Random) -> str:
    """A game to its end."""
    low, high = record.meta["low"], record.meta["high"]
    everything, left, text = range(low, high + 1), range(low, high + 1), ""
    while not text.endswith("="):
        guess = pick(rng, everything if rng.random() < CARELESS else left)
        said = reply(str(guess), record)
        text += f"{guess}?{said}"
        if said == ">":
            left = range(max(guess + 1, left.start), left.stop)
        if said == "<":
            left = range(left.start, min(guess, left.stop))
    return text
