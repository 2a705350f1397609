"""A rule that pays for the last whole number of a response, if the response ended."""

import re

import torch

from course.exercises import Arguments, Case, Exercise, mistake
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


def answer_reward(texts, truth, ended):
    numbers = [re.findall(r"-?\d+", text) for text in texts]
    return [
        float(bool(found) and int(found[-1]) == truth and done)
        for found, done in zip(numbers, ended)
    ]


def by_the_library(texts, truth, ended):
    record = PromptRecord("?\n", str(truth))
    paid = [answer_match(record, text, done) for text, done in zip(texts, ended)]
    return torch.tensor(paid)


def pays(texts, right, ended):
    return torch.tensor([float(a and b) for a, b in zip(right, ended)])


@mistake
def contains_the_characters(texts, truth, ended):
    """you look for the characters: "150" contains "15". Read whole numbers and compare
    them as numbers."""
    return pays(texts, [str(truth) in text for text in texts], ended)


@mistake
def first_number(texts, truth, ended):
    """you read the first number. A response that works it out ends with its answer: take the
    last."""
    numbers = [re.findall(r"-?\d+", text) for text in texts]
    return pays(texts, [bool(n) and int(n[0]) == truth for n in numbers], ended)


@mistake
def any_number(texts, truth, ended):
    """any number of the text may be the right one: then a list of numbers always pays, and a policy
    finds that first."""
    numbers = [re.findall(r"-?\d+", text) for text in texts]
    return pays(texts, [str(truth) in n for n in numbers], ended)


@mistake
def cut_off_pays(texts, truth, ended):
    """a response that was cut off is paid. It is wrong whatever it says: it never ended."""
    return answer_reward(texts, truth, [True] * len(texts))


@mistake
def sign_lost(texts, truth, ended):
    """you lose the minus sign: -15 is not 15."""
    numbers = [re.findall(r"\d+", text) for text in texts]
    return pays(texts, [bool(n) and int(n[-1]) == truth for n in numbers], ended)


def batch(generator: torch.Generator) -> Arguments:
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
)
