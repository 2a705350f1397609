"""Rules that check answers: what counts as an answer, what it earns, and what is logged of it."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal

import pytest
import torch
from toys import LETTERS, documented, fixed_gpt

from data.collate import join_responses
from data.records import PromptRecord
from gpt.generate import SamplingParams
from rl.batches.rollout import Rollout
from rl.rewards.verifiable import (
    VerifiableReward,
    answer_match,
    final_answer,
    parse_number,
    pass_at_k,
    read_answer,
    same_answer,
    solve_rates,
)
from rl.training.evaluation import measure_accuracy

QUESTION = "A robe takes 2 bolts of blue fiber and half that much white fiber. How many bolts?"


# Numbers


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", "42"), (" 42 ", "42"), ("-42", "-42"), ("−42", "-42"), ("+42", "42"), ("-0", "0"),
        ("1,000", "1000"), ("1,234,567.50", "1234567.5"), ("007", "7"), ("5.", "5"), ("5.0", "5"),
        (".5", "0.5"), ("-.5", "-0.5"), ("$5.", "5"), ("$ 5", "5"), ("-$5", "-5"), ("$-5", "-5"),
        ("5 €", "5"), ("\\$5", "5"), ("50%", "50"), ("50 %", "50"), ("50\\%", "50"), ("1e3", "1000"),
        ("1.5E-2", "0.015"),
    ],
)  # fmt: skip
def test_what_is_a_number(text, number):
    assert parse_number(text) == Decimal(number)


@pytest.mark.parametrize(
    "text",
    [
        "", ".", "-", "$", "%", "NaN", "nan", "inf", "-Infinity", "1/2", "٤٢", "４２", "4٢", "1,2,3",
        "12,34", "1,0000", "1_000", "1 000", "0x10", "--5", "5 apples", "x", "1e", "e3", "3.5.1",
        "1e99999999999999999999999", "five", "10²",
    ],
)  # fmt: skip
def test_what_is_none(text):
    """Decimal itself would read nan, inf, 1_000 and digits of every script."""
    assert parse_number(text) is None


@pytest.mark.parametrize(
    ("given", "truth", "equal"),
    [
        ("1,000", "1000", True), ("1e3", "1000", True), ("-0", "0", True), ("5.00", "5", True),
        ("50%", "50", True), ("50%", "0.5", False), ("$5.", "5", True), ("0.1", "0.10000001", False),
        ("1/2", "1/2", True), ("1/2", "0.5", False), ("1/2", "1", False), ("NaN", "5", False),
        ("inf", "5", False), ("1e999999999", "5", False), ("٤٢", "42", False),
        ("Paris", "paris.", True), (" New   York ", "New York", True), ("NewYork", "New York", False),
        ("1,2", "12", False), ("1,2", "1,2", True), ("B", "C", False), ("", "5", False),
    ],
)  # fmt: skip
def test_when_two_answers_are_equal(given, truth, equal):
    assert same_answer(given, truth) is equal
    assert same_answer(truth, given) is equal


# Where the answer stands


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("She has 3 + 4 = 7.\n#### 7", "7"), ("####7", "7"), ("#### $1,000.", "$1,000"),
        ("#### 5\nNo wait.\n#### 7", "7"),  # the last marker
        ("#### 7\nThat was 99.", "7"), ("#### 5 apples and 3 pears", "5"),  # its line only
        ("#### 1/2", "1/2"),  # and not 1
        ("so \\boxed{12} of 30", "12"),
        ("\\boxed{1} \\boxed{\\frac{1}{2}} 9", "\\frac{1}{2}"),  # the last box, braces in braces
        ("\\boxed{7} #### 8", "8"),  # the marker goes before the box
        ("\\boxed{7 and 8", "8"),  # never closed: no box
        ("The answer is 5 or 7", "7"), ("10-7=3", "3"), ("it is -5.", "-5"),  # the last number
        ("costs $1,234.50.", "$1,234.50"), ("takes 5kg", "5"),
        ("<think>1 or 2?</think>It is 3.", "3"),
        ("It is 3. <think>or 4", "3"),  # an unfinished thought is no answer
    ],
)  # fmt: skip
def test_the_place_of_a_numeric_answer(response, answer):
    assert final_answer(response, numeric=True) == answer


@pytest.mark.parametrize(
    "response",
    ["", " \n", "no idea", "####", "#### \n5", "\\boxed{}", "see 1.2.3 or 1,2,3", "H2O", "NaN",
     "٤٢", "<think>42</think>", "<think>42", "five"],
)  # fmt: skip
def test_a_response_without_an_answer(response):
    """ "#### " followed by nothing announces an answer and gives none: no other number counts."""
    assert final_answer(response, numeric=True) is None


@pytest.mark.parametrize(
    ("response", "truth"),
    [
        ("#### **7**", "7"), ("#### **7.**", "7"), ("#### `7`", "7"), ("#### **$7**.", "7"),
        ("#### =7", "7"), ("#### = 7", "7"), ("#### x = 7", "7"), ("#### 3 + 4 = 7", "7"),
        ("#### 7 = 3 + 4", "7"), ("#### (7)", "7"), ("#### 1{,}000", "1000"),
        ("#### 7 (that is 3 + 4)", "7"), ("#### x = 5 apples", "5"), ("#### 1,000 or so", "1000"),
        ("\\boxed{x=7}", "7"), ("\\boxed{x = 7}", "7"), ("\\boxed{1{,}000}", "1000"),
        ("\\boxed{10,\\!080.5}", "10080.5"), ("\\boxed{\\text{7}}", "7.0"),
        ("so it is 1{,}234{,}567 m", "1234567"), ("\\boxed{\\textbf{(7)}}", "7"),
        ("(A)", "A"), ("(a).", "A"), ("**A**", "A"), ("**A**.", "A"), ("#### (B)", "B"),
        ("A", "(A)"), ("\\boxed{\\text{A}}", "A"), ("\\boxed{(\\mathrm{A})}", "A"),
        ("\\boxed{\\frac{1}{2}}", "1/2"), ("\\boxed{-\\dfrac{1}{2}}", "-1/2"),
        ("\\boxed{x=\\frac{1}{2}}", "1/2"), ("\\boxed{1/2}", "\\frac{1}{2}"),
        ("\\boxed{x = y}", "x = y"), ("\\boxed{\\text{New York}}", "new york"),
    ],
)  # fmt: skip
def test_signs_around_an_answer_do_not_count(response, truth):
    assert answer_match(PromptRecord("?", answer=truth), response, True) == 1


@pytest.mark.parametrize(
    ("response", "truth"),
    [
        ("#### 7 or 8", "7"), ("#### 7 or 8", "8"), ("#### 7 apples OR 8 pears", "7"),
        ("#### 7, 8", "7"), ("#### $7, $8", "7"), ("#### 7 and 8", "7"), ("#### 7 8", "7"),
        ("#### 3 + 4", "3"), ("#### 3 + 4 = 7", "3"), ("#### 7-8", "7"), ("#### 1 000", "1"),
        ("#### x = 7 or x = 8", "8"), ("\\boxed{7 \\text{ or } 8}", "7"), ("#### x >= 7", "7"),
        ("#### 7 - 3", "7"), ("#### x \\cdot 7", "7"), ("#### 1{,}0000", "1"),
        ("\\boxed{\\frac{14}{2}}", "14"), ("\\boxed{y=7}", "x=7"), ("(A) or (B)", "A"),
        ("A = B", "A"), ("\\boxed{\\frac{a+b}{2}}", "a+b/2"), ("(1, 2)", "1, 2"),
    ],
)  # fmt: skip
def test_two_answers_or_another_one_are_wrong(response, truth):
    assert answer_match(PromptRecord("?", answer=truth), response, True) == 0


def test_a_copy_of_the_prompt_is_no_answer():
    """The question ends with the true answer; only a number of the policy's own counts."""
    prompt = f"### Instruction:\n{QUESTION} Hint: it is 3\n\n### Response:\n"
    record = PromptRecord(prompt, answer="3")
    assert answer_match(record, "", True) == 0
    assert answer_match(record, prompt, True) == 0
    assert answer_match(record, f"{QUESTION} Hint: it is 3", True) == 0  # a long line of it
    assert answer_match(record, prompt + "3", True) == 1
    assert answer_match(record, f"{QUESTION} Hint: it is 3\nIt is 3.", True) == 1
    assert read_answer(record, prompt) is None


# The reward


def rollout(responses: list[str], ended: list[bool] | None = None, *, group_size: int = 2):
    """A rollout of these texts; prompt i of the groups has the answer i."""
    n = len(responses)
    records = [PromptRecord(f"prompt {i // group_size}", str(i // group_size)) for i in range(n)]
    sequences = join_responses(
        [[1]] * n,
        torch.ones(n, 2, dtype=torch.long),
        torch.ones(n, 2, dtype=torch.bool),
        torch.tensor(ended or [True] * n),
    )
    return Rollout(records, responses, sequences, torch.zeros(n, 2), group_size)


ANSWERS = VerifiableReward(answer_match, "right answer", reads=read_answer)


def test_right_is_one_and_wrong_is_zero():
    four = rollout(["0", "none", "#### 1", "0"])
    assert ANSWERS(four).tolist() == [1, 0, 1, 0]
    assert ANSWERS.correct(four).tolist() == [True, False, True, False]


def test_whatever_a_rule_says_a_truncated_response_is_wrong():
    always = VerifiableReward(lambda *_: 1.0, "always")
    cut = rollout(["a", "b"], [True, False])
    assert always(cut).tolist() == [1, 0]


def test_what_is_logged_is_documented_and_responses_without_an_answer_are_counted():
    metrics = ANSWERS.with_metrics(rollout(["0", "none", "#### ", "7"]))[1]
    assert metrics["unanswered"] == 0.5 and metrics.keys() == documented("Verifiable rewards")


def test_a_rule_that_fails_earns_what_a_wrong_answer_does_and_is_counted():
    """One reward for every row: a shorter list would give every later row its neighbour's."""

    def fragile(record: PromptRecord, response: str, ended: bool) -> float:
        if response == "boom":
            raise ZeroDivisionError
        return {"nan": math.nan, "inf": math.inf}.get(response, 1.0)

    reward = VerifiableReward(fragile, "fragile")
    rewards, metrics = reward.with_metrics(rollout(["boom", "a", "nan", "inf", "b", "boom"]))
    assert rewards.tolist() == [0, 1, 0, 0, 1, 0]
    assert metrics["rule_errors"] == 4 and metrics["correct_rate"] == pytest.approx(1 / 3)


# Solve rates and pass@k


def test_solve_rates_by_hand():
    correct = torch.tensor([1, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1]).bool()
    assert solve_rates(correct, 3) == {"solve_rate": 0.75, "solve_rate_all": 0.25}
    assert solve_rates(correct, 1) == {}


def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample():
    correct = torch.tensor([[1, 0, 0, 0, 1, 0], [0] * 6, [1] * 6, [0, 0, 1, 1, 1, 1]]).bool()
    for k in range(1, 7):
        hits = [
            any(row[i] for i in subset)
            for row in correct.tolist()
            for subset in itertools.combinations(range(6), k)
        ]
        assert pass_at_k(correct, k) == pytest.approx(sum(hits) / len(hits))
    assert pass_at_k(correct, 1) == pytest.approx(float(correct.float().mean()))
    assert pass_at_k(correct, 6) == 0.75


# In an engine


class TextAlone(VerifiableReward):
    """Forgives a response that is cut off: this policy never ends one."""

    def correct(self, rollout: Rollout) -> torch.Tensor:
        pairs = zip(rollout.records, rollout.responses, strict=True)
        return torch.tensor([self.rule(record, text, True) == 1 for record, text in pairs])


def test_accuracy_is_measured_as_sampled_and_greedily():
    """The policy says a with 0.6 and b with 0.4, then ends: greedily it is always a."""
    policy = fixed_gpt([0.6, 0.4, *[0.0] * 8], 16, torch.float32)
    records = [PromptRecord("c", answer=letter) for letter in "ab" * 100]
    says = TextAlone(lambda record, text, ended: float(text == record.answer), "says")
    one_token = SamplingParams(max_new_tokens=1)
    numbers = measure_accuracy(policy, LETTERS, records, one_token, says, k=2)
    assert set(numbers) == {"pass@1", "pass@2", "greedy_accuracy"}
    assert numbers["pass@1"] == pytest.approx(0.5, abs=0.08)
    assert numbers["pass@2"] == pytest.approx(1 - (0.16 + 0.36) / 2, abs=0.08)
    assert numbers["greedy_accuracy"] == 0.5  # right for every a, wrong for every b
