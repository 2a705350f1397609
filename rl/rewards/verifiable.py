r"""Verifiable rewards: a rule checks the answer, so there is no reward model to train or to fool.

The response alone is read, without copies of the prompt and <think>...</think>. Its answer stands
after the last "####" (GSM8K's marker; Cobbe et al. 2021, arXiv:2110.14168), on its line, or in the last
\boxed{...}; else it is the last number, or the whole text where the truth is no number.

A number is read in full or not at all: after a marker or in a box only its unit may follow it, and
only "x =" or "3 + 4 =" stand before it; in free text it may be no part of a formula, a range or a
choice ("2\sqrt{3}", "12:30", "7 or 8"). What cannot be read is wrong, and counted (`unanswered`).
LaTeX and Markdown do not count. Numbers are equal as fractions ("$1,000." is 1000, "50 %" is 50, "1/2"
is 0.5), other answers as text, without regard to case.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from data.records import PromptRecord
from data.sources import Source
from harness.errors import UserError
from rl.batches.rollout import Rollout
from rl.rewards.reward import MadeOf, Rule, RuleReward

ECHOED_LINE = 40  # characters; a longer line of the prompt is a question, not one of its choices
BRACES = r"(?:[^{}]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})*"  # text in which braces close
PLAIN = [  # LaTeX and Markdown, and what each is in plain text
    (r"\\(?:text|math|mbox|boxed)[a-z]*\s*\{([^{}]*)\}", r" \1 "),
    (r"\\[dt]?frac\s*(?:\{(\w+)\}|(\w))\s*(?:\{(\w+)\}|(\w))", r" \1\2/\3\4 "),
    (r"(?<=\d)(?:\{,\}|,\\!|\\[,;: ]|~)(?=\d{3}(?!\d))", ","),  # 1{,}000 and 1\,000
    (r"\\[,;:! ()\[\]]|~|\\(?:left|right|quad)(?![a-z])", " "),
    (r"\^\s*\{?\s*\\circ\b\s*\}?", "°"),
    (r"\\([$%])|(?<!\w)[*_`]+|[*_`]+(?!\w)", r"\1"),  # **7**, but not 3*4
    (r"(?i:\b(?:minus|negative)\s)|[−–]", "-"),
    (r"[^\S\n]+", " "),
]
NUMBER = r"""(?P<number> [$€£¥]?\s?[-+]?\s?[$€£¥]?\s?  (?: [0-9]+/0*[1-9][0-9]* |
    (?: (?:[0-9]{1,3}(?:,[0-9]{3})+ | [0-9]+)(?:\.[0-9]+)? | \.[0-9]+ )(?:e[-+]?[0-9]{1,3})? )
    \s?[%$€£¥]? )"""  # 1/2, 1,000.50, .5, 1e3
SCALE = (  # after a number: it is another number
    r"(?:half|halves|thirds|dozen|hundred|thousand|[mbtr]+illion|squared|cubed|pi|sin|and\sa|[eiknxyz])\b"
)
UNIT = rf"""(?: °[ ]?[CF]? |
    (?: [ /](?!(?:and|or|plus|over)\b|{SCALE})(?:[a-z]{{3,}}|[cdkmn]?[gmls]|ft|in|lb|oz|hr?|of|a)\b )+ )"""
MARKED = re.compile(rf"(?xi) \(?{NUMBER}\)?{UNIT}?\s?\.?")
LAST = re.compile(  # the last number of a text, unless it is a part of something
    rf"""(?xi)(?: ^ | \n\s? | [^\W\d_]\s | [.,;!?)"']\s | (?<![<>!])=\s? | (?<!\d)(?<!\d\s):\s? |
    (?<!\w)[("] )(?<!\d,\s) {NUMBER}°?
    (?: (?!\.\.)[.,;:)"]+(?=\s|$) | (?=\s|$)(?![ ]?(?:[-+*/^×·=<>!\\{{(°]|{SCALE})) ) \D*$"""
)
OPERATOR = re.compile(  # in words, before a number
    r"\\[a-z]+|(?:\d\s(?:and|or|to|of|out of|x)|\b(?:plus|times|over|mod|twice|half of|root(?: of)?|"
    r"sqrt|sin|cos|tan|log|ln))(?=\s\S*\d)"
)
SEVERAL = re.compile(r"\b(?:or|and)\b|;|,(?![0-9]{3})", re.IGNORECASE)


def plain(text: str) -> str:
    """The text without LaTeX's and Markdown's signs."""
    for pattern, sign in PLAIN:
        text = re.sub(pattern, sign, text)
    return text.strip()


def parse_number(text: str) -> Fraction | None:
    """The number that `text` is, apart from a currency or percent sign, commas and a final period."""
    text = plain(text).rstrip(".")
    if len(text) > 1000 or not re.fullmatch(f"(?xi){NUMBER}", text):  # Python refuses 4,300 digits
        return None
    return Fraction(re.sub(r"[,\s%$€£¥]", "", text))


def same_answer(given: str, truth: str) -> bool:
    """Whether two answers are equal: as numbers where both are, otherwise as text."""
    if ("=" in given) != ("=" in truth):  # x = A against A
        given, truth = (re.sub(r"^\s*\w*\s*=", "", text) for text in (given, truth))
    a, b = parse_number(given), parse_number(truth)
    return _spelled(given) == _spelled(truth) if a is None or b is None else a == b


def _spelled(answer: str) -> str:
    """An answer in one spelling: no spaces around signs, A for (A)."""
    text = " ".join(plain(answer).split()).casefold().rstrip(".")
    return re.sub(r"^\((\w+)\)$", r"\1", re.sub(r"\s*([^\w\s])\s*", r"\1", text))


def without_echo(prompt: str, response: str) -> str:
    """The response without copies of the prompt, if it has several words, and of its long lines."""
    whole, *lines = (line.strip() for line in [prompt, *prompt.splitlines()])
    for text in (whole, *lines):
        if len(text) > ECHOED_LINE or (text == whole and len(text.split()) > 1):
            response = response.replace(text, "\n")
    return response


def marked(text: str) -> str | None:
    """What stands after the last marker, on its line, or in the last box; None without either."""
    _, marker, after = text.rpartition("####")
    text = after.partition("\n")[0] if marker else text
    boxes = re.findall(rf"\\f?box(?:ed)?\s*\{{({BRACES})\}}", text)
    return boxes[-1] if boxes else text if marker else None


def final_answer(response: str, *, numeric: bool) -> str | None:
    """The answer that a response gives; None if it cannot be read. `numeric`: the truth is a number."""
    text = response.rpartition("</think>")[2].partition("<think>")[0]
    content = marked(text)
    if not numeric:
        return (text if content is None else content).strip() or None
    if content is None:
        found = LAST.search(OPERATOR.sub(r"\\", plain(text)))
    else:
        *before, value = re.split(r"(?<![<>!])=", plain(content))  # >= is no =
        found = None if SEVERAL.search(" ".join(before)) else MARKED.fullmatch(value.strip())
    return found["number"].strip() if found else None


def true_answer(record: PromptRecord) -> str:
    """The record's answer, which may be marked as in a response: a solution that ends in "#### 7"."""
    if record.answer is None:
        raise ValueError(f"there is no answer to check: {record.prompt[:60]!r}")
    return marked(str(record.answer)) or str(record.answer)


def read_answer(record: PromptRecord, response: str) -> str | None:
    """The answer that this response gives to this record; None if it cannot be read."""
    numeric = parse_number(true_answer(record)) is not None
    return final_answer(without_echo(record.prompt, response), numeric=numeric)


def answer_match(record: PromptRecord, response: str, ended: bool) -> float:
    """1.0 if the response ended and gives the record's answer, else 0.0."""
    given = read_answer(record, response)
    return float(ended and given is not None and same_answer(given, true_answer(record)))


@dataclass(eq=False)
class VerifiableReward(RuleReward):
    """R = 1 if right, else 0, as for a response that was cut off or whose rule fails, which is counted.

    `reads` finds the answer in a response and serves the counts alone.
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


def open_rule(
    found: Source, data: str, prompts: Mapping[str, Sequence[PromptRecord]], needed: bool
) -> VerifiableReward | None:
    """The rule of a world whose answers are right or wrong, or the check of those that a file brings.

    None if there are none. UserError if it is needed, and cannot compare them all: empty ones, lists,
    objects, true and false.
    """
    if found.gold is not None and found.CHECK is not None:
        return VerifiableReward(found.gold, found.CHECK)
    answers = [record.answer for records in prompts.values() for record in records]
    unfit = sum(not isinstance(answer, str) or not answer.strip() for answer in answers)
    if answers.count(None) == len(answers) or (unfit and not needed):
        return None
    if unfit:
        raise UserError(
            f"{data}: {unfit} of {len(answers)} prompts have no text or number as `answer` for the rule: "
            "give one to every prompt, or --reward FILE.py:FUNCTION"
        )
    return VerifiableReward(answer_match, "right answer", reads=read_answer)


def _checked(rule: Rule, rollout: Rollout) -> tuple[Tensor, int]:
    """What a rule says of each row, (N,), 0 for a truncated or failed one; and how many failed."""
    values = []
    for row in zip(rollout.records, rollout.responses, rollout.has_eos.tolist(), strict=True):
        try:
            values.append(float(rule(*row)))
        except Exception:  # whatever it is: a rule's bug must not end a run of hours
            values.append(math.nan)
    value = torch.tensor(values, device=rollout.response_tokens.device)
    finite = value.isfinite()
    return value.where(finite & rollout.has_eos, 0.0), int((~finite).sum())


def solve_rates(correct: Tensor, group_size: int) -> dict[str, float]:
    """Shares of prompts with any and with only right responses, from (N,) bool; {} without groups."""
    if group_size < 2:
        return {}
    groups = correct.view(-1, group_size)
    return {
        "solve_rate": float(groups.any(1).float().mean()),
        "solve_rate_all": float(groups.all(1).float().mean()),
    }
