"""Measuring a policy: paired samples, win rates, best of n and tables."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import toys
from toys import LETTERS

from data.records import PromptRecord
from gpt.generate import SamplingParams
from gpt.model import GPT
from harness.files import read_jsonl
from rl.rewards.sources import RuleReward
from rl.training.evaluation import (
    Comparison,
    Conditions,
    Evaluation,
    Validation,
    best_of_n,
    compare,
    evaluate,
)

RECORDS = [PromptRecord("abcdefgh"[i % 8] + "abcdefgh"[i // 8]) for i in range(40)]
ONE_TOKEN = SamplingParams(max_new_tokens=1)
# The mean index of a response's letters; the true objective is its negative.
INDEX = RuleReward(lambda record, text, ended: sum(map(ord, text)) - 97.0 * len(text), "index")
GOLD = RuleReward(lambda record, text, ended: -(sum(map(ord, text)) - 97.0 * len(text)), "gold")


def fixed_gpt(probs: dict[str, float]) -> GPT:
    """A GPT that draws from these probabilities whatever it reads."""
    every = [probs.get(letter, 0.0) for letter in "abcdefgh. "]
    return toys.fixed_gpt(every, 16, torch.float32).requires_grad_(False)


EVEN = fixed_gpt({"a": 0.5, "b": 0.5})


def result(
    reward=(1.0, 2.0, 3.0), gold=(0.1, 0.3, 0.8), kl=(0.5, 1.5, 1.0), lengths=(2, 3, 4)
) -> Evaluation:
    return Evaluation(
        records=[PromptRecord(f"prompt {i}\n") for i in range(len(reward))],
        responses=[f" response {i}" for i in range(len(reward))],
        lengths=torch.tensor(lengths),
        has_eos=torch.tensor([True, True, False]),
        reward=torch.tensor(reward),
        gold=None if gold is None else torch.tensor(gold),
        kl=None if kl is None else torch.tensor(kl),
    )


# evaluate


def test_one_response_per_prompt_in_their_order(monkeypatch):
    monkeypatch.setattr(Conditions, "prompts", 16)  # three batches
    measured = evaluate(EVEN, LETTERS, RECORDS, ONE_TOKEN, INDEX, gold=GOLD)
    assert measured.records == RECORDS
    assert measured.reward.tolist() == [float(text == "b") for text in measured.responses]
    assert torch.equal(measured.gold, -measured.reward)
    assert measured.kl is None and measured.lengths.tolist() == [1] * 40
    assert 10 < measured.reward.sum() < 30


def test_the_same_seed_pairs_the_random_numbers():
    """Two policies that differ in a per mille answer alike; another seed answers otherwise."""
    near = fixed_gpt({"a": 0.501, "b": 0.499})
    first = evaluate(EVEN, LETTERS, RECORDS, ONE_TOKEN, INDEX, conditions=Conditions(seed=5))
    paired = evaluate(near, LETTERS, RECORDS, ONE_TOKEN, INDEX, conditions=Conditions(seed=5))
    other = evaluate(EVEN, LETTERS, RECORDS, ONE_TOKEN, INDEX, conditions=Conditions(seed=6))
    assert sum(a != b for a, b in zip(first.responses, paired.responses, strict=True)) <= 1
    assert sum(a != b for a, b in zip(first.responses, other.responses, strict=True)) > 5


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_kl_is_the_log_ratio_of_the_whole_response(temperature):
    """Three tokens of a (0.8 against 0.5) and b (0.2 against 0.5), at the sampler's temperature."""
    policy = fixed_gpt({"a": 0.8, "b": 0.2})
    params = SamplingParams(temperature, max_new_tokens=3)
    measured = evaluate(policy, LETTERS, RECORDS, params, INDEX, reference=EVEN)
    a, b = 0.8 ** (1 / temperature), 0.2 ** (1 / temperature)
    ratio = {"a": math.log(a / (a + b) / 0.5), "b": math.log(b / (a + b) / 0.5)}
    expected = [sum(ratio[letter] for letter in text) for text in measured.responses]
    torch.testing.assert_close(measured.kl, torch.tensor(expected), rtol=0, atol=1e-5)
    assert (measured.lengths == 3).all() and not measured.has_eos.any()


def test_without_a_reward_everything_else_is_measured(monkeypatch):
    monkeypatch.setattr(Conditions, "prompts", 16)
    measured = evaluate(EVEN, LETTERS, RECORDS, ONE_TOKEN, None, reference=EVEN)
    scored = evaluate(EVEN, LETTERS, RECORDS, ONE_TOKEN, INDEX, reference=EVEN)
    assert measured.reward is None and measured.responses == scored.responses
    assert measured.summary() == {k: v for k, v in scored.summary().items() if k != "reward"}
    assert measured.sample_rows(1) == [
        {"prompt": RECORDS[0].prompt, "response": measured.responses[0]}
    ]
    lines = Comparison(measured, measured, "", "DPO").text(samples=0).splitlines()
    assert lines[3].split()[:3] == ["before", "-", "0.000"]


def test_no_prompts_are_refused():
    with pytest.raises(ValueError, match="no prompts to evaluate on"):
        evaluate(EVEN, LETTERS, [], ONE_TOKEN, INDEX)


def test_summary():
    assert result().summary() == pytest.approx(
        {
            "reward": 2.0,
            "response_length": 3.0,
            "eos_rate": 2 / 3,
            "gold": 0.4,
            "gold_error": math.sqrt((0.09 + 0.01 + 0.16) / 2 / 3),
            "kl": 1.0,
        }
    )
    assert set(result(gold=None, kl=None).summary()) == {"reward", "response_length", "eos_rate"}


# Best of n


def test_best_of_n_keeps_what_the_reward_likes_and_reports_its_gold():
    """Gold is the reward's negative here: picking by gold would return the smallest index."""
    policy = fixed_gpt(dict.fromkeys("abcdefgh", 1 / 8))
    seen: list[list[float]] = []

    def noted(record: PromptRecord, text: str, ended: bool) -> float:
        value = float("abcdefgh".index(text))
        seen.append([record.prompt, value])
        return value

    reward, gold = best_of_n(
        policy, LETTERS, RECORDS, ONE_TOKEN, RuleReward(noted, ""), 5, gold=GOLD,
        conditions=Conditions(micro_batch_size=5),  # 16 prompts at once
    )  # fmt: skip
    assert len(seen) == 5 * 40
    for i, record in enumerate(RECORDS):
        mine = seen[5 * i : 5 * i + 5]
        assert {prompt for prompt, _ in mine} == {record.prompt}
        assert float(reward[i]) == max(value for _, value in mine)
    assert torch.equal(gold, -reward)
    assert float(reward.mean()) > 5  # of five uniform draws from 0..7 the largest averages 5.9


# Validation and comparison


def test_validation_repeats_itself_and_keeps_samples(tmp_path):
    path = tmp_path / "samples.jsonl"
    validate = Validation(LETTERS, RECORDS, ONE_TOKEN, INDEX, GOLD, samples_path=path)
    policy = fixed_gpt({"a": 0.8, "b": 0.2})
    first, second = validate(policy, EVEN, 10), validate(policy, EVEN, 20)
    assert first == second
    assert set(first) == {f"validation/{name}" for name in result().summary()}
    assert first["validation/gold"] == -first["validation/reward"]
    rows = read_jsonl(path)
    assert [row["step"] for row in rows] == [10] * 8 + [20] * 8
    assert [row["prompt"] for row in rows[:8]] == [record.prompt for record in RECORDS[:8]]
    assert set(rows[0]) == {"step", "prompt", "response", "reward", "gold"}


def test_compare_asks_both_models_the_same_test_prompts():
    task = SimpleNamespace(
        policy=fixed_gpt({"a": 0.1, "b": 0.9}), tokenizer=LETTERS, reward_fn=INDEX, gold=INDEX,
        prompts={"test": RECORDS, "train": [], "validation": []},
    )  # fmt: skip
    comparison = compare(EVEN, task, ONE_TOKEN, 30, after="GRPO")
    before, after = comparison.before, comparison.after
    assert before.records == after.records == RECORDS[:30]
    assert not before.kl.any() and float(after.kl.mean()) > 0.1  # both from the start
    assert comparison.numbers["prompts"] == 30
    # With paired numbers b stays b: a prompt is won or drawn, never lost.
    assert comparison.numbers["win_rate"] == pytest.approx(
        0.5 + (float(after.reward.mean()) - float(before.reward.mean())) / 2
    )
    assert float(after.reward.mean()) > float(before.reward.mean()) + 0.1
