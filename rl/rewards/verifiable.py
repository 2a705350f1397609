"""Verifiable rewards: a rule checks the answer, so there is no reward model to train or to fool.

Everything reads the response alone, never prompt + response. The answer of a response is read in
this order; a response without one is wrong, and counted (`unanswered`):

    0. copies of the prompt and everything inside <think>...</think> are left out
    1. after the last "####" on its line, GSM8K's marker (Cobbe et al. 2021, arXiv:2110.14168)
    2. inside the last \\boxed{...}
    3. the last number; the whole text where the true answer is no number

Where the true answer is a number, a marker or a box must hold one number: the one that it begins
with ("#### 5 apples" is 5), or else the one after its last "=" ("x = 7" and "3 + 4 = 7" are 7). Two
numbers with "or" between them, and two that a comma, sign, space or "and" joins, are not one: "7 or
8" and "7, 8" are wrong.

Signs around an answer do not count: Markdown's * and ` and _, a final period, the brackets of
"(A)" and LaTeX's \\text{A}. \\frac{1}{2} is 1/2, and "x = A" is A unless the true answer has a "="
too. Two answers are then compared as decimal numbers where both are numbers ("$1,000." and
"1{,}000" are 1000, "50 %" is 50, "1e3" is 1000, "-0" is 0) and as text otherwise, without regard to
case or repeated spaces. Digits are 0 to 9 alone; "NaN", "inf" and "1/2" are text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

import torch
from torch import Tensor

from data.records import PromptRecord
from rl.batches.rollout import Rollout
from rl.rewards.sources import MadeOf, Rule, RuleReward

# --- reading and comparing answers ----------------------------------------------------------------

MARKER = "####"
BOXED = "\\boxed{"
ECHOED_LINE = 40  # characters; a longer line of the prompt is a question, not one of its choices
CURRENCY = "$€£¥"
COMMA = r"(?:,\\!|\{,\}|,)"  # 1,000 and LaTeX's 1{,}000 and 1,\!000
NUMBER = re.compile(
    rf"""
    (?<!\w)(?<!\d[.,/])(?<!\d\{{,\}})(?<!\d,\\!)                # not inside a word or a number
    [-+−]?[{CURRENCY}]?
    (?: [0-9]+/[0-9]+                                           # 1/2, which stays text
      | (?: (?: [0-9]{{1,3}}(?:{COMMA}[0-9]{{3}})+ | [0-9]+ )(?:\.[0-9]+)? | \.[0-9]+ )  # .5
        (?:[eE][-+]?[0-9]+)? )                                  # 1e3
    (?!\d|[./]\d|{COMMA}\d)                                     # nor is 1,2,3 or 1.2.3 a number
    """,
    re.VERBOSE,
)
JOINED = re.compile(  # what makes a number the first of several: "7, 8" or "3 + 4"
    rf"\s*(?:[-+−*/×·^,;&]|\\cdot|\\times|\s|and\b|or\b|to\b)\s*[-+−]?[{CURRENCY}]?[0-9]", re.I
)
EITHER = re.compile(r"\d.*\bor\b.*\d", re.IGNORECASE)
EQUALS = re.compile(r"(?<![<>!])=")  # >= is no =
FRACTION = re.compile(r"\\[dt]?frac\{(\w+)\}\{(\w+)\}")
WRAPPED = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\{([^{}]*)\}")
CHOICE = re.compile(r"\((\w+)\)")  # (A)
NAMED = re.compile(r"^(?:[^\W\d]\w*)?\s*=\s*")  # x =
MARKS = "*_` \t"


def parse_number(text: str) -> Decimal | None:
    """The number that `text` is, apart from a currency or percent sign, grouping commas, final periods."""
    text = text.replace("\\$", "$").replace("\\%", "%")  # LaTeX
    text = text.strip().rstrip(".").rstrip("%").strip().strip(CURRENCY).strip()
    if not NUMBER.fullmatch(text) or "/" in text:
        return None
    plain = re.sub(rf"{COMMA}|[{CURRENCY}]", "", text).replace("−", "-")
    try:
        return Decimal(plain)
    except InvalidOperation:  # an exponent beyond all bounds
        return None


def same_answer(given: str, truth: str) -> bool:
    """Whether two answers are equal: as numbers where both are, otherwise as text."""
    given, truth = _bare(given), _bare(truth)
    if ("=" in given) != ("=" in truth):  # x = 7 against 7
        given, truth = NAMED.sub("", given), NAMED.sub("", truth)
    a, b = parse_number(given), parse_number(truth)
    if a is not None and b is not None:
        return a == b
    return given.casefold() == truth.casefold()


def _bare(text: str) -> str:
    """An answer without the signs around it: LaTeX's, Markdown's, brackets, a final period."""
    text = WRAPPED.sub(r"\1", FRACTION.sub(r"\1/\2", text))
    text = " ".join(text.split()).lstrip(MARKS).rstrip(MARKS + ".")
    choice = CHOICE.fullmatch(text)
    return choice.group(1) if choice else text


def without_echo(prompt: str, response: str) -> str:
    """The response without verbatim copies of the prompt and of the prompt's long lines.

    A short line may be one of several choices, and a prompt of one word a word of the answer: they stay.
    """
    whole, *lines = (line.strip() for line in [prompt, *prompt.splitlines()])
    if len(whole.split()) > 1:
        response = response.replace(whole, "\n")
    for line in lines:
        if len(line) > ECHOED_LINE:
            response = response.replace(line, "\n")
    return response


def final_answer(response: str, *, numeric: bool) -> str | None:
    """The answer that a response gives, in the order of the module's docstring; None without one.

    `numeric`: the true answer is a number.
    """
    text = response.rpartition("</think>")[2].partition("<think>")[0]
    found = None
    if MARKER in text:
        found = text.rpartition(MARKER)[2].partition("\n")[0]
    elif BOXED in text:
        found = _boxed(text)
    if found is None:
        if not numeric:
            return text.strip() or None
        numbers = NUMBER.findall(text)
        return numbers[-1] if numbers else None
    found = found.strip().strip(MARKS)
    return (_one_number(found) if numeric else None) or found or None


def _one_number(marked: str) -> str | None:
    """The number at the beginning or after the last "=", if no other one is joined to it."""
    if EITHER.search(marked):
        return None
    for part in (marked, EQUALS.split(marked)[-1].lstrip(MARKS)):
        number = NUMBER.match(part)
        if number and not JOINED.match(part, number.end()):
            return number.group()
    return None


def _boxed(text: str) -> str | None:
    """What stands between the braces of the last \\boxed{...}; None if they are never closed."""
    content, depth = text.rpartition(BOXED)[2], 1
    for position, character in enumerate(content):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return content[:position]
    return None


def read_answer(record: PromptRecord, response: str) -> str | None:
    """The answer that this response gives to this record; None without one."""
    if record.answer is None:
        raise ValueError(f"there is no answer to check: {record.prompt[:60]!r}")
    numeric = parse_number(record.answer) is not None
    return final_answer(without_echo(record.prompt, response), numeric=numeric)


# --- rules ----------------------------------------------------------------------------------------


def answer_match(record: PromptRecord, response: str, ended: bool) -> float:
    """1.0 if the response ended and gives the record's answer, else 0.0."""
    given = read_answer(record, response)
    return float(ended and given is not None and same_answer(given, str(record.answer)))


# --- the reward -----------------------------------------------------------------------------------


@dataclass(eq=False)
class VerifiableReward(RuleReward):
    """R = 1 if right, else 0.

    A response that was cut off earns 0, and so does one whose rule raises or returns no finite number,
    which is counted. `reads` finds the answer in a response and serves the counts alone.
    """

    reads: Callable[[PromptRecord, str], str | None] | None = None

    @property
    def made_of(self) -> MadeOf:
        return MadeOf(check=self, reads_records=True)

    def __call__(self, rollout: Rollout) -> Tensor:
        return self.with_metrics(rollout)[0]

    def correct(self, rollout: Rollout) -> Tensor:
        """(N,) bool: which responses are right."""
        return _checked(self.rule, rollout)[0] == 1

    def with_metrics(self, rollout: Rollout) -> tuple[Tensor, dict[str, float]]:
        """Rewards (N,), and what to log of them (docs/metrics.md, "Verifiable rewards")."""
        value, errors = _checked(self.rule, rollout)
        correct = value == 1
        metrics = {"correct_rate": float(correct.float().mean()), "rule_errors": errors}
        metrics |= solve_rates(correct, rollout.group_size)
        if self.reads is not None:
            rows = zip(rollout.records, rollout.responses, strict=True)
            metrics["unanswered"] = sum(self.reads(*row) is None for row in rows) / len(rollout)
        return correct.float(), metrics


def _checked(rule: Rule, rollout: Rollout) -> tuple[Tensor, int]:
    """What a rule says of each row, (N,), 0 for a truncated or failed one; and how many failed."""
    values, errors = [], 0
    ended = rollout.has_eos.tolist()
    for record, response, end in zip(rollout.records, rollout.responses, ended, strict=True):
        try:
            value = float(rule(record, response, end))
        except Exception:  # whatever it is: a rule's bug must not end a run of hours
            value = math.nan
        errors += not math.isfinite(value)
        values.append(value if end and math.isfinite(value) else 0.0)
    return torch.tensor(values, device=rollout.response_tokens.device), errors


# --- how many are solved --------------------------------------------------------------------------


def solve_rates(correct: Tensor, group_size: int) -> dict[str, float]:
    """Shares of prompts with any and with only right responses, from (N,) bool; {} without groups."""
    if group_size < 2:
        return {}
    groups = correct.view(-1, group_size)
    return {
        "solve_rate": float(groups.any(1).float().mean()),
        "solve_rate_all": float(groups.all(1).float().mean()),
    }


def pass_at_k(correct: Tensor, k: int) -> float:
    """The chance that at least one of k samples is right, from n >= k samples a prompt, (P, n) bool.

    Mean over prompts of 1 - C(n - c, k) / C(n, k) with c right ones: unbiased, which 1 - (1 -
    c/n)^k is not (Chen et al. 2021, arXiv:2107.03374, Eq. 1).
    """
    if correct.ndim != 2 or correct.dtype != torch.bool:
        raise ValueError(f"correct must be a bool (P, n): got {tuple(correct.shape)}")
    n = correct.shape[1]
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs 1 to n = {n} samples of each prompt")
    misses = [math.comb(n - c, k) / math.comb(n, k) for c in correct.sum(1).tolist()]
    return 1 - sum(misses) / len(misses)
