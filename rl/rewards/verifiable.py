r"""Verifiable rewards: a rule checks the answer, so there is no reward model to train or to fool.

The response alone is read, without copies of the prompt and its thought; a thought that never closes,
whoever opened it, has no answer. The answer stands after the last "####" (GSM8K's marker; Cobbe et al.
2021, arXiv:2110.14168), on its line, or in the last \boxed{...}; else it is the last number, or the whole
text where the truth is no number. A number, in the digits of any script, is read in full or not at all:
as no part of a formula, a time, a range, a choice or a denial ("2\sqrt{3}", "12:30", "7 or 8", "not 7"),
and as the only one after a marker, but for "3 + 4 =". A unit after it changes nothing, % neither. What
cannot be read is wrong, and counted (`unanswered`). Numbers are equal as fractions, and 0.5 also equals a
truth of 50%; other answers are equal as text. Formulas are math-verify's (page 12).
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from data.records import PromptRecord
from rl.batches.rollout import Rollout
from rl.rewards.reward import MadeOf, Rule, RuleReward

ECHOED_LINE = 40  # characters; a longer line of the prompt is a question, not one of its choices
BOX = r"\\f?box(?:ed)?\s*\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"  # whose braces close
SIGNS = str.maketrans("！٫٬٪−–〜’⁄", "..,%--~'/", "\u200b\u200e\u200f")  # other signs, and ASCII's
SIGNS |= {wide: wide - 0xFEE0 for wide in range(0xFF02, 0xFF5F)}  # full width
MARKDOWN = r"(?a:(?<![\w*`])[*_`]+(?=\S)|(?<=\S)[*_`]+(?![\w*`]))"  # of **7**, but not of 2**3
SAME = (  # LaTeX and words, and their signs
    (r"\\(?:text\w*|mathrm|mbox)\s?\{([^{}]*)\}", r" \1 "),
    (r"\\[dt]?frac ?(?:\{(\d+)\}\{(\d+)\}|(\d)(\d))(?!\d)", r" \1\3/\2\4"),
    (r"\^ ?(\{ ?)?\\circ\b(?(1) ?\})", "°"),
    (r"\\([%$])|\\!|\{(,)\}", r"\1\2"),  # 10,\!000
    (r"\\[,;: ]|[^\S\n]+", " "),
    (r"(?i)(?<=\d) ?per ?cent\b", "%"),
    (r"(?i)(?:(?<=[ /][ms])|(?<=[a-z]{2})) ?\^ ?(\{)?-?[123](?(1)\})(?!\w)", ""),  # 7 cm^2
)
SCRIPT = "\u0400-\u1cff\u2e80-\ud7ff"  # letters and stops of scripts other than Latin and Greek
MULTIPLES = (  # 7 million is not 7, in other languages neither
    r"(?:mille|mil|mio|mrd|ml[nd]|bin)\b|mil+[iyohjó]|tausend|tusen|duizend|tys|ribu|juta|nghìn|ngàn|triệu|tỷ|lakh|"
    "crore|ты?с|тис|млн|млрд|милли|мільй|हज़ार|हजार|लाख|करोड़|ألف|آلاف|ملي|هزار|میلی|ہزار|אלף|"
    "מילי|พัน|หมื่น|แสน|ล้าน"
)
NUMBER = (  # -$1,000.50, 12,34,567, 1 000, .5, 1e3, 1/2, 50%
    r"(?P<number>(?:-[ ]?)?(?:[$¢-¥₠-⃀][ ]?)?-?(?:\d+/0*[1-9]\d*|(?:\.\d+|"
    r"(?:\d{1,3}(?:[,' ]\d\d\d?)*[,' ]\d{3}|\d+)(?:\.\d+)?)(?:e[-+]?\d{1,3})?)[ ]?[%$¢-¥₠-⃀°]?)"
)
COMMA = r"(?<![\d.,])(0|\d+(?=,(?:\d\d?|\d{4,})(?!\d))),(\d+)(?![\d,]|\.\d)"  # decimal: not 1,000
OR = "or|oder|ou|o|или|veya|hoặc|atau|یا|أو|या|বা|או"
JOINED = re.compile(  # what makes two numbers a choice, a range or a formula, and a number another one
    rf"(?i)\d[^\s\d.;]{{0,3}}\s?(?:{OR}|and|to|of|x|plus|minus|times|und|bis|et|à|y|a|и|до|或|和|到|至|比|分之|分の"
    r"|点|點|時|时|年|月|か|と|や|から|、|،|ー|・|와|과|나|이나|에서|시|และ|ถึง|إلى|और|से|—|:|,\s)\s?(?=[^\w\s]*\d)"
    r"|\\[a-z]+|[<>!]=|\b(?:minus|negative)\s"
    # or no answer: not 7, not the 7, five or 7, other than 7
    r"|(?:(?:not|n't|\b(?:never|nicht|keine?|pas|não|non|không|не|ليس|לא))(?:\s(?:equal to|[^\W\d]+))?"
    rf"|\b(?:{OR}|except|besides|(?:other|rather) than|anything but|instead of|außer|sauf|кроме)(?!\w)"
    r"|no es|bukan|不是|不等于|非|除了?|或者?|または|또는|หรือ|ไม่ใช่)[^\w\s.,;!?]*\s?(?=\W?\d)"
    r"|(?<=[\d%°])(?:\s?[^\W\d]+?)?\s?(?:or (?:more|less|fewer|other|another|any|else|not)\b"
    r"|(?:is|was)(?: not|n't| wrong| incorrect)\b|以外|之外|ではな|じゃな|이? ?아[니닌닙]|이외|नहीं|নয়)"
)
LAST = re.compile(  # the last number of a text, unless it is a part of something
    rf"""(?xi) (?<![^\s=:("'{SCRIPT}]) (?<![a-z\d)][("']) (?<![^\w\s.,;:!?)"'=—{SCRIPT}][ ]) (?<!\d[ ])
    {NUMBER} (?!\.\.)  (?: [.,;:?)"'*_`]+  # after it a stop, or else no sign of a formula
    | (?![ ]?(?: [-+*/×÷·^=<>~!\\{{°十百千万萬亿億兆천만억半] | \((?!\w{{3}}) | (?-i:[eiknxyz]\b) | dozen |
    hundred | thousand | pi\b | sqrt | [π√] | [mbt]r?illion | {MULTIPLES} | (?:and[ ]a[ ])?half)) )
    (?=\s|$|[{SCRIPT}]  # or a unit, as in 5km/h
    | (?:[cdkmnµμ]m | [kmµμ]g | m[ls] | lbs? | oz | ft | in | mph | hrs? | mins? | (?<=°)[CF]) (?![^\W_]) )
    \D*$"""
)


def plain(text: str) -> str:
    """The text with ASCII's digits, signs and blanks, without Markdown; 2½ and 2\\frac{1}{2} are 5/2."""
    text = re.sub("[¼-¾⅐-⅞]", lambda sign: " " + unicodedata.normalize("NFKC", sign[0]), text)
    text = re.sub(r"\d", lambda digit: str(int(digit[0])), text.translate(SIGNS))
    text = re.sub(MARKDOWN, "", text)
    for pattern, sign in SAME:
        text = re.sub(pattern, sign, text)
    return re.sub(r"(?<![\d.,/^'])(\d+) (\d+)/(\d+)(?![\d/])", _mixed, text).strip()


def _mixed(found: re.Match[str]) -> str:
    """7 1/2 as 15/2; 7 3/2 is no number, but a product or two of them."""
    whole, part, of = map(int, found.groups())
    return f"{whole * of + part}/{of}" if part < of else found[0]


def marked(text: str) -> str | None:
    """What stands after the last marker, on its line, or in the last box; None without either."""
    _, marker, after = text.rpartition("####")
    text = after.partition("\n")[0] if marker else text
    boxes = re.findall(BOX, text)
    return boxes[-1] if boxes else text if marker else None


def meaning(answer: str) -> Fraction | str:
    """The number that an answer is, or a solution that ends in "#### 7"; else its text in one spelling."""
    text = plain(marked(answer) or answer).rstrip(".。।۔").casefold()
    text = re.sub(r"^(-?0),(\d+)$", r"\1.\2", text)
    if len(text) < 1000 and re.fullmatch(NUMBER, text):  # Python refuses 4,300 digits
        return Fraction(re.sub(r"[^\d./e+-]", "", text))
    text = re.sub(r"\s*([^\w\s])\s*", r"\1", " ".join(text.split()))
    return re.sub(r"^\((\w+)\)$", r"\1", text)  # (A) is A


def without_echo(prompt: str, response: str) -> str:
    """The response without copies of the prompt, if it has several words, and of its long lines."""
    for text in map(str.strip, [prompt, *prompt.splitlines()]):
        if len(text) > ECHOED_LINE or (text == prompt.strip() and len(text.split()) > 1):
            response = response.replace(text, "\n")
    return response


def read_answer(record: PromptRecord, response: str) -> str | None:
    """The answer that this response gives to this record; None if it cannot be read."""
    _, closed, text = without_echo(record.prompt, response).rpartition("</think>")
    if "<think>" in text or (not closed and record.prompt.rstrip().endswith("<think>")):
        return None
    content = marked(text)
    text = text if content is None else content
    if isinstance(meaning(str(record.answer)), str):
        return text.strip() or None
    text = re.sub(COMMA, r"\1.\2", plain(text))
    text = JOINED.sub(r"\\", text)
    if content is not None:
        text = text.partition("=")[2] or text
    found = LAST.search(text)
    several = found and content is not None and re.search(r"\d", text[: found.start()])
    return found["number"].strip() if found and not several else None


def answer_match(record: PromptRecord, response: str, ended: bool) -> float:
    """1.0 if the response ended and gives the record's answer, else 0.0."""
    given, truth = read_answer(record, response), str(record.answer)
    if given is None or not ended:
        return 0.0
    value, right = meaning(given), meaning(truth)
    of_one = isinstance(value, Fraction) and "%" in plain(truth) and "%" not in given
    return float(value == right or (of_one and value * 100 == right))


@dataclass(eq=False)
class VerifiableReward(RuleReward):
    """R = 1 if right, else 0, as for a response that was cut off or whose rule fails, which is counted."""

    reads: Callable[[PromptRecord, str], str | None] | None = None  # finds answers, to be counted

    @property
    def components(self) -> MadeOf:
        return MadeOf(check=self, reads_records=True)

    def __call__(self, rollout: Rollout) -> Tensor:
        return self.with_metrics(rollout)[0]

    def correct(self, rollout: Rollout) -> Tensor:
        """(N,) bool: which responses are right."""
        return _checked(self.rule, rollout)[0] == 1

    def with_metrics(self, rollout: Rollout) -> tuple[Tensor, dict[str, float]]:
        """Rewards (N,), and what to log of them (docs/metrics.md, "Verifiable rewards")."""
        value, errors = _checked(self.rule, rollout)
        right = (value == 1).float()
        metrics = {"correct_rate": float(right.mean()), "rule_errors": errors}
        if rollout.group_size > 1:
            groups = right.view(-1, rollout.group_size)
            metrics["solve_rate"] = float(groups.amax(1).mean())  # any of them is right
            metrics["solve_rate_all"] = float(groups.amin(1).mean())
        if self.reads is not None:
            rows = zip(rollout.records, rollout.responses, strict=True)
            metrics["unanswered"] = sum(self.reads(*row) is None for row in rows) / len(rollout)
        return right, metrics


ANSWERS = VerifiableReward(answer_match, "right answer", reads=read_answer)  # to prompts of a file


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
