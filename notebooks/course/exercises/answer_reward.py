"""A rule that pays for the last whole number of a response, if the response ended."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from course.exercises import Case, Exercise, Mistake
from data.records import PromptRecord
from rl.rewards.verifiable import answer_match

FORMS = (
    "It is {n}.",
    "First {m}, then {n}",
    "I do not know.",
    "{n} or so",
    "#{n}{m}",
    "minus -{n}",
)


def answer_reward(texts: Sequence[str], truth: int, ended: Sequence[bool]) -> list[float]:
    numbers = [re.findall(r"-?\d+", text) for text in texts]
    return [
        float(bool(found) and int(found[-1]) == truth and done)
        for found, done in zip(numbers, ended)
    ]


def by_the_library(texts: Sequence[str], truth: int, ended: Sequence[bool]) -> Tensor:
    record = PromptRecord("?\n", str(truth))
    paid = [answer_match(record, text, done) for text, done in zip(texts, ended)]
    return torch.tensor(paid)


def pays(texts: Sequence[str], right: Sequence[bool], ended: Sequence[bool]) -> Tensor:
    return torch.tensor([float(a and b) for a, b in zip(right, ended)])


def contains(texts: Sequence[str], truth: int, ended: Sequence[bool]) -> Tensor:
    return pays(texts, [str(truth) in text for text in texts], ended)


def first_number(texts: Sequence[str], truth: int, ended: Sequence[bool]) -> Tensor:
    numbers = [re.findall(r"-?\d+", text) for text in texts]
    return pays(texts, [bool(n) and int(n[0]) == truth for n in numbers], ended)


def any_number(texts: Sequence[str], truth: int, ended: Sequence[bool]) -> Tensor:
    numbers = [re.findall(r"-?\d+", text) for text in texts]
    return pays(texts, [str(truth) in n for n in numbers], ended)


def cut_off_pays(texts: Sequence[str], truth: int, ended: Sequence[bool]) -> list[float]:
    return answer_reward(texts, truth, [True] * len(texts))


def sign_lost(texts: Sequence[str], truth: int, ended: Sequence[bool]) -> Tensor:
    numbers = [re.findall(r"\d+", text) for text in texts]
    return pays(texts, [bool(n) and int(n[-1]) == truth for n in numbers], ended)


def batch(generator: torch.Generator) -> Mapping[str, Any]:
    """Each form with the truth or its neighbour, beside another number."""
    truth = int(torch.randint(3, 30, (1,), generator=generator))
    texts = []
    for form in FORMS:
        n = truth + int(torch.randint(2, (1,), generator=generator))
        texts.append(form.format(n=n, m=truth + 40))
    texts += [f"{truth}, no: {truth + 1}", f"not {truth + 1} but {truth}", f"It is -{truth}."]
    ended = [*(torch.rand(len(texts) - 3, generator=generator) < 0.7).tolist(), True, True, True]
    return {"texts": texts, "truth": truth, "ended": ended}


EXERCISE = Exercise(
    statement=(
        "Pay 1.0 for each of the texts whose last whole number (with its minus sign) is truth and "
        "which ended, else 0.0. texts is a list of strings, ended a list of bools."
    ),
    solution=answer_reward,
    library=by_the_library,
    cases=(
        Case(
            "six answers to 7+8",
            {
                "texts": ["It is 15.", "150", "7, 8 and 15, no: 16", "I do not know.", "15", "-15"],
                "truth": 15,
                "ended": [True, True, True, True, False, True],
            },
            [1.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        ),
    ),
    random=batch,
    mistakes=(
        Mistake(
            "contains_the_characters",
            'you look for the characters: "150" contains "15". Read whole numbers and compare them '
            "as numbers.",
            contains,
        ),
        Mistake(
            "first_number",
            "you read the first number. A response that works it out ends with its answer: take the "
            "last.",
            first_number,
        ),
        Mistake(
            "any_number",
            "any number of the text may be the right one: then a list of numbers always pays, and a "
            "policy finds that first.",
            any_number,
        ),
        Mistake(
            "cut_off_pays",
            "a response that was cut off is paid. It is wrong whatever it says: it never ended.",
            cut_off_pays,
        ),
        Mistake(
            "sign_lost",
            "you lose the minus sign: -15 is not 15.",
            sign_lost,
        ),
    ),
)
