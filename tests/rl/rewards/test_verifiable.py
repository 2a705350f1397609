"""Rules that check answers: what counts as an answer, what it earns, and what is logged of it."""

from __future__ import annotations

import math
import random
import re
import sys
import unicodedata

import pytest
import torch
from toys import LETTERS, documented, fixed_gpt

from data.collate import join_responses
from data.records import PromptRecord
from gpt.generate import SamplingParams
from rl.batches.rollout import Rollout
from rl.rewards.verifiable import ANSWERS, VerifiableReward, answer_match, read_answer
from rl.run.evaluation import measure_accuracy

QUESTION = "A robe takes 2 bolts of blue fiber and half that much white fiber. How many bolts?"

RIGHT = {  # truth: responses that give it
    "7": "7|#### 7|####7|**7**|_7_|#### __7__|`7`|#### **$7**.|#### =7|#### x = 7|#### 3 + 4 = 7|"
    r"#### (7)|\boxed{x=7}|\boxed{ 7 }|\fbox{7}|\boxed {7}|#### \boxed{7}|\boxed{5} and \boxed{7}|"
    r"\boxed{8} #### 7|#### 8~#### 7|#### 7~That was 99.|007|7.0|7.|It is 7.|10-7=3, 3+4 = 7|"
    "7 (seven)|7 eggs|#### 7 eggs|12~7|<think>8</think>7|8</think>7|<think>8</think>9</think>7|"
    "**Answer:** 7|x = 7. I checked it.|7~- as I said|it is 7 I think|$x = 7$|5 plus 2 is 7|Total : 7",
    "5": "5%|5 %|$5.|$ 5|#### 5 €|€5|#### ₹5|5 per cent|It is 5₽."
    r"|\boxed{5\text{ cm}}|\boxed{5\,\mathrm{m}^2}|\boxed{\$5}|\boxed{5\%}"
    r"|5 cm^2|#### 5 m/s^2|5 m²|5km/h|It weighs 5kg.|5 °C|5°C|\boxed{5\text{元}}|"
    "5 of them are left|#### 5 (not counting hers)|It is not 4, it is 5.|He needs at least 5."
    "|5 do not play|Tom or Ann has 5.|No. It is 5|5个以上的人",
    "-5": "-5|−5|–5|- 5|#### - 5|It is -5.|-$5|$-5",
    "10000": r"\boxed{10,\!000}|\boxed{10{,}000}|\boxed{10\,000}",
    "1000": "1,000|1e3|$1,000.00|1 000|1\u00a0000|1\u202f000|1'000|1’000|It is 1 000.|#### 1 000 eggs",
    "1001": "#### 1,000 + 1 = 1,001",
    "1234567.5": "1,234,567.5|1 234 567.50|12,34,567.5",
    "90": r"90°|\boxed{90^\circ}|\boxed{90^{\circ}}|90 degrees",
    "50%": r"50|50%|\boxed{50\%}|0.5|1/2|50 percent|½",
    "5/2": r"2½|2 ½|2 1/2|\boxed{2\frac{1}{2}}|\boxed{2\frac12}|2,5|2,50|#### 2,5 €|It is 2½.",
    "-5/2": r"-2½|\boxed{-2\frac12}|-2,5",
    "2½": "2.5|5/2",
    "1/8": "0,125|⅛|1⁄8",
    "1234.5": "1 234,5|1234,5",
    "1": "1,00",
    "0,5": "0.5|½|1/2|0,50|#### 0,5",
    "1/2": r"½|0,5|\boxed{\frac12}|1/2|0.5|.5|\boxed{\frac{1}{2}}|#### \dfrac{1}{2}|\boxed{x=\frac{1}{2}}",
    "-1/2": r"\boxed{-\frac{1}{2}}",
    "0": "0|-0|0.0",
    "A": "A|a.|(A)|**A**|#### (A)|<think>B</think> A",
    "(A)": "A",
    "(1, 2)": "#### (1,2)",
    "New York": r"\boxed{new york}| New   York",
    "3 + 4 is~#### 7": "7",  # a solution as the truth
    # Other scripts: their digits, their stops, and letters right beside a number.
    "36": "一共有36个。|总价：36元|答：３６|共３６元！|**答案是：36**|所以答案是**36**。|"
    "#### 36只。|\\boxed{36人}|（36）|「36」|"
    "それは36個です。|合計＝３６円|全部で３６。|남은 사과는 36개입니다.|답: 36|총36명|เหลือ36บาท|เขามี ๓๖ ตัว|"
    "المجموع ٣٦.|يبقى ٣٦ كتابًا؟|ب٣٦، كما قلت|कुल ३६ है।|उत्तर: ३६|মোট ৩৬টি।|Всего 36 рублей.|Итого: 36|"
    "סך הכול 36.|کل ۳۶ ہیں۔|ድምር 36።|សរុប ៣៦។|စုစုပေါင်း ၃၆။|Συνολικά 36.|\u200f٣٦\u200f",
    "2.5": "٢٫٥|२.५|２．５|2.5個",
    "3/4": "٣/٤|#### ３／４|०.७५",
    "12345": "١٢٬٣٤٥|１２，３４５|१२,३४५|12,345원",
    "100000": "१,००,०००|١٠٠٬٠٠٠",
    "३६": "36|٣٦",
    "北京": "北京。|#### 北京",
}
UNREAD = (  # no number can be read, whatever the truth is
    r"\boxed{2\sqrt{3}}|\boxed{10^{-3}}|\boxed{2^{10}}|"
    r"\boxed{4i}|\boxed{5!}|\boxed{2\pi}|\boxed{3x}|\boxed{3x+2}|\boxed{3\sqrt{2}+1}|\boxed{2(3+4)}|"
    r"#### 12:30|\boxed{1\,0000}|\boxed{\pm 5}|\boxed{x \ge 5}|#### x >= 7|#### 7 or 8|#### 7 and 8|"
    r"#### 7, 8|#### 7 8|#### x = 7 or x = 8|#### x = 7, y = 8|#### 7-8|#### 7 - 3|\boxed{7 \text{ or } 8}|"
    r"#### 5 million|#### 0.33...|#### 1.000,50|\boxed{\frac{14}{2}3}|\boxed{\frac{1}{2}x}|"
    r"#### x ≥ 5|"
    r"7 or 8|7 to 8|3 of 5|7, 8|7, or 8|$7 or $8|**7** or **8**|3 + 4|It is 2\sqrt{3}|10^{-3}|2 \pi|3x|3 x|"
    r"12:30|3 : 2|10 minus 5|5 plus 6|2 x 5|5!|minus 5|7 dozen|2**3|3*4|3 * 4|x * 4|x_1|f(3)|5²|7 — 8|"
    r"\boxed{7|1.2.3|2024-01-05|H2O|five|NaN|inf|1/0|1 0000|12 34|"
    "7或8|7或者8|7元或8元|7到8|７～８|7〜8|7、8|7至8个|#### 7到8|7か8|7から8|"
    "7または8です|7と8|7 또는 8|7에서 8|7와 8|"
    "7 veya 8|7 hoặc 8|7 atau 8|٧ یا ٨|৭ বা ৮|7 או 8|2 (x + y)|"
    "7 หรือ 8|٧ أو ٨|٧، ٨|७ या ८|7 или 8|7 oder 8|7 ou 8|１２：３０|12時30分|12点30分|3月5日|4分の3|"
    "7万|#### 7억|7 tausend|7 millones|#### 7 Mio|7 тысяч|٧ ألف|7 हज़ार|7 ล้าน|7 milyon|7 mil|"
    "7元+8元|"
    "<think>42</think>|<think>42|7<think>8|8</think>7<think>|#### 7 <think> 8~#### 7|"
    r"#### not 7|It is not 7.|#### anything but 7|It isn't 7|It is not equal to 7|\boxed{\text{not }7}|"
    "7 or more|#### 7 or other|7 is wrong|7 is not it|#### seven or 7|#### other than 7|7 eggs or more|"
    "七或7以外|7以外|答案不是7|7ではない|7이 아닙니다|не 7|nicht 7|pas 7|no es 7|7 नहीं|"
    r"\boxed{7\frac{3}{2}}|2 pi|2 π|3m|2 √3|"
    "|no idea|####|#### ~5|\\boxed{}"
).split("|")
WRONG = {  # truth: responses that give another answer
    "5": "0.5|5,5|- 5|-5|50%|1/5|#### 5~#### 6|1e5|10 - 5|5.5|一共55个。|答案是5.5。|5、然后6个",
    "0.1": "0.10000001",
    "0.5": "50%|0,05|5,0",
    "50%": "0.5%|0.5 percent|5|5000",
    "125": "0,125",
    "8": "７-８|7元-8元",
    "A": "B|(A) or (B)|A = B|AB|<think>A|A <think>",
    "x=7": r"\boxed{y=7}",
    "1, 2": "(1, 2)",
    "5 cm": "#### 5 m",
    "New York": "NewYork",
    "a+b/2": r"\boxed{\frac{a+b}{2}}",
}


def cases(table: dict[str, str]) -> list[tuple[str, str]]:
    """Truth and response; ~ is a line break."""
    return [
        (truth.replace("~", "\n"), response.replace("~", "\n"))
        for truth, responses in table.items()
        for response in responses.split("|")
    ]


@pytest.mark.parametrize(("truth", "response"), cases(RIGHT))
def test_a_right_answer_is_paid(truth, response):
    assert answer_match(PromptRecord("?", truth), response, True) == 1
    assert answer_match(PromptRecord("?", truth), response, False) == 0


@pytest.mark.parametrize("response", UNREAD)
def test_what_is_not_a_number_in_full_is_not_read(response):
    """Every number in it as the truth: each would pay a policy for a formula that begins or ends so."""
    response = response.replace("~", "\n")
    for truth in {"5", "1000", *re.findall(r"-?\d+", response)}:
        assert read_answer(PromptRecord("?", truth), response) is None
        assert answer_match(PromptRecord("?", truth), response, True) == 0


def in_digits(zero: str, text: str) -> str:
    """The text with the ten digits of a script, which follow its zero."""
    return text.translate({ord("0") + digit: chr(ord(zero) + digit) for digit in range(10)})


def test_an_integer_in_the_digits_of_every_script_is_read_back():
    zeros = [
        sign for sign in map(chr, range(sys.maxunicode)) if unicodedata.decimal(sign, None) == 0
    ]
    rng = random.Random(0)
    assert len(zeros) > 60
    for zero in zeros:
        number = rng.randrange(-(10**7), 10**7)
        for form in ("{}", "#### {:,}", r"\boxed{{{}}}", "答案是{}。", "It is {:,}."):
            record = PromptRecord("?", str(number))
            assert answer_match(record, in_digits(zero, form.format(number)), True) == 1
            assert answer_match(record, in_digits(zero, form.format(number + 1)), True) == 0


def test_a_thought_that_the_prompt_opened_and_nobody_closed_is_worth_nothing():
    for prompt in ("What is 6 times 7?<think>\n", "<|user|>6 * 7?<|assistant|><think>"):
        asked = PromptRecord(prompt, "42"), PromptRecord(prompt, "Paris")
        for record in asked:
            assert answer_match(record, record.answer, True) == 0
            assert read_answer(record, f"#### {record.answer}") is None
            assert answer_match(record, f"It is 7.</think>{record.answer}", True) == 1
            assert answer_match(record, f"7</think>#### {record.answer}<think>", True) == 0
    told = PromptRecord("Think in <think> and </think>, then answer.\n", "42")
    assert answer_match(told, "42", True) == 1


@pytest.mark.parametrize(("truth", "response"), cases(WRONG))
def test_another_answer_is_wrong(truth, response):
    assert answer_match(PromptRecord("?", truth), response, True) == 0


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
    assert answer_match(PromptRecord("3", answer="3"), "3", True) == 1  # a word alone is no copy


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


def test_right_is_one_and_wrong_is_zero():
    four = rollout(["0", "none", "#### 1", "0"])
    assert ANSWERS(four).tolist() == [1, 0, 1, 0]
    assert ANSWERS.correct(four).tolist() == [True, False, True, False]


def test_whatever_a_rule_says_a_truncated_response_is_wrong():
    always = VerifiableReward(lambda *_: 1.0, "always")
    cut = rollout(["a", "b"], [True, False])
    assert always(cut).tolist() == [1, 0]
    assert always.with_metrics(cut)[1]["rule_errors"] == 0  # it is no error of the rule


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


def test_solve_rates_by_hand():
    """Answers to four prompts in groups of three: right once, twice, never, thrice."""
    responses = ["0", "x", "x", "1", "1", "x", "x", "x", "x", "3", "3", "3"]
    metrics = ANSWERS.with_metrics(rollout(responses, group_size=3))[1]
    assert metrics["solve_rate"] == 0.75 and metrics["solve_rate_all"] == 0.25
    assert "solve_rate" not in ANSWERS.with_metrics(rollout(["0"], group_size=1))[1]


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
