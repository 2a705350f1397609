"""The worlds with an environment, all listed: the calculator with its problems, and the guessing game."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from conftest import given, st

from data import calculator, guessing
from data.calculator import calculate
from data.sums import exact_match
from data.worlds import CHECKED, MODULES, RULES, prompts
from harness.paths import WORLDS


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("47*86", "4042"),
        ("2+3*4", "14"),
        ("(2+3)*4", "20"),
        ("10-2-3", "5"),
        ("-(3-5)*2", "4"),
        ("12 / 4", "3"),
        ("(" * 31 + "1" + ")" * 31, "1"),
    ],
)
def test_calculate(expression, value):
    assert calculate(expression) == value


NO_WHOLE_NUMBERS = ("7/2", "1/0", "", "3+", "(1", "1)", "2**9", "1e9", "__import__('os')")
TOO_LONG = ("9" * 13, "1+" * 32 + "1")  # the second by one character


@pytest.mark.parametrize("expression", [*NO_WHOLE_NUMBERS, *TOO_LONG])
def test_what_cannot_be_calculated(expression):
    assert calculate(expression) == "error"


@given(st.text("0123456789+-*/() .e_x", max_size=70))
def test_calculate_answers_everything_shortly(expression):
    answer = calculate(expression)
    assert answer == "error" or int(answer) is not None
    assert len(answer) <= 64


def test_every_problem_is_listed_once_with_its_answer():
    problems = list(calculator.problems())
    assert len({problem.prompt for problem in problems}) == len(problems) == 8910
    for problem in problems:
        left, sign, right = problem.prompt[:2], problem.prompt[2], problem.prompt[3:-1]
        wanted = int(left) + int(right) if sign == "+" else int(left) * int(right)
        assert problem.answer == str(wanted)
        assert calculator.read_prompt(f" {problem.prompt} ") == problem


@pytest.mark.parametrize("world", ["calculator", "guessing"])
def test_splits_share_nothing(world):
    splits = [
        {(r.prompt, r.answer) for r in MODULES[world].prompts(split)}
        for split in ("train", "validation", "test")
    ]
    assert all(splits)
    assert sum(map(len, splits)) == len(set.union(*splits))
    assert prompts(world, "test", 10) == MODULES[world].prompts("test")


def test_half_of_the_problems_are_easy_and_a_call_is_rare():
    for split in ("train", "test"):
        assert Counter(map(calculator.is_easy, calculator.prompts(split))) == Counter(
            {True: len(calculator.prompts(split)) // 2, False: len(calculator.prompts(split)) // 2}
        )
    documents = calculator.corpus(4000, seed=0)
    called = [d for d in documents if "[" in d.response]
    assert len(called) / len(documents) == pytest.approx(0.15, abs=0.02)
    assert sum("error" in d.response for d in called) / len(called) == pytest.approx(0.1, abs=0.04)
    hard = [d for d in documents if "*" in d.prompt and "[" not in d.response]
    assert sum(d.response == calculate(d.prompt[:-1]) for d in hard) / len(hard) < 0.02


def test_what_writers_of_a_call_read_is_what_the_calculator_says():
    record = calculator.read_prompt("47*86=")
    rng = random.Random(0)
    texts = {calculator.sample_response(record, rng) for _ in range(500)}
    called = {text for text in texts if "[" in text}
    assert called == {"[47*86]4042:4042", "[47*]error[47*86]4042:4042"}
    assert all(exact_match(record, text, True) for text in called)
    assert calculate("47*") == "error"


def test_a_game_is_won_by_a_right_last_guess():
    record = guessing.prompts("train")[0]
    secret = record.answer
    assert [guessing.reply(g, record) for g in (secret, "0", "999", "", "x")] == [
        "=", ">", "<", "error", "error",
    ]  # fmt: skip
    assert guessing.found(record, f"0?>{secret}?=", True) == 1
    assert guessing.found(record, f"0?>{secret}?=", False) == 0
    assert guessing.found(record, "0?>", True) == 0
    for document in guessing.corpus(200, seed=1):
        assert document.response.count("=") == 1 and document.response.endswith("?=")


def test_every_world_has_a_name_a_module_and_a_rule():
    assert set(WORLDS) == set(MODULES) == set(RULES)
    assert set(CHECKED) == set(WORLDS) - {"reviews"}
