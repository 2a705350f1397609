"""scripts/before_after.py: the picture says what the models say."""

from __future__ import annotations

import re

import before_after
import pytest
import torch

from data import reviews
from gpt.generate import SamplingParams, generate
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import load_tokenizer
from harness.seeds import make_generator

TOKENIZER = load_tokenizer("glassbox")


def model(seed: int) -> GPT:
    shape = GPTConfig(TOKENIZER.n_vocab, context=128, n_layer=1, n_head=2, n_embd=16)
    return GPT(shape).initialize(torch.Generator().manual_seed(seed)).eval()


def test_a_log_ratio_is_the_difference_of_two_log_softmaxes() -> None:
    policy, base = model(0), model(1)
    prompt, response = [5, 6, 7], [8, 9, TOKENIZER.eos_id]
    found = before_after.log_ratios(policy, base, prompt, response, TOKENIZER.eos_id)
    with torch.no_grad():
        rows = [one(torch.tensor([prompt + response])).log_softmax(-1)[0] for one in (policy, base)]
    expected = [
        float(rows[0][2 + t, token] - rows[1][2 + t, token]) for t, token in enumerate(response)
    ]
    assert found == pytest.approx(expected, abs=1e-5)


def test_the_picture_holds_each_prompt_twice_answered_and_escapes_markup() -> None:
    records = list(reviews.prompts("test"))[:2]
    svg = before_after.picture(model(0), model(1), TOKENIZER, records)
    assert svg == before_after.picture(model(0), model(1), TOKENIZER, records)
    assert all(svg.count(record.prompt.strip()) == 1 for record in records)
    assert len(re.findall(r"before: gold reward [01]\.\d\d<", svg)) == 2
    assert len(re.findall(r"after GRPO: gold reward [01]\.\d\d<", svg)) == 2
    assert len(re.findall(r"[✓✗] on topic", svg)) == 4
    pieces = re.findall(r'<rect x="([\d.]+)" y=.+? width="([\d.]+)"', svg)
    assert max(float(x) + float(width) for x, width in pieces) <= before_after.WIDTH
    shown = before_after.drawn([dict(y=1, label="<b>&")], height=9)
    assert "&lt;b&gt;&amp;" in shown


def test_the_answer_shown_is_the_median_of_fifteen() -> None:
    record = reviews.prompts("test")[0]
    shown, judged = before_after.typical_answer(model(0), TOKENIZER, record, 0)
    asked = [TOKENIZER.encode(record.prompt)] * 15
    rows = generate(
        model(0), asked, SamplingParams(max_new_tokens=48), make_generator(0, "front page 0"),
        eos_id=TOKENIZER.eos_id,
    ).token_lists()  # fmt: skip
    gold = [reviews.gold_reward(record, TOKENIZER.decode(r), TOKENIZER.eos_id in r) for r in rows]
    assert shown in rows
    assert sum(g < judged.reward for g in gold) <= 7 and sum(g > judged.reward for g in gold) <= 7
