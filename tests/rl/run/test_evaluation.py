"""Measuring a policy: paired samples, the KL, best of n and a comparison."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import toys
from toys import LETTERS

from data.records import PromptRecord
from data.sources import world_source
from gpt import stage
from gpt.generate import SamplingParams
from gpt.model import GPT
from harness.files import read_json, read_jsonl, write_json
from rl import loop
from rl.grpo_engine import GRPOConfig, main
from rl.rewards.reward import MadeOf, RuleReward
from rl.rewards.verifiable import VerifiableReward
from rl.run import evaluation
from rl.run.ending import ending
from rl.run.engine import answers_to_test
from rl.run.evaluation import (
    Conditions,
    Validation,
    compare,
    evaluate,
    measure_accuracy,
    standard_error,
)
from studies.best_of import best_of_n

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


# evaluate


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


def test_a_validation_measures_from_the_start_whatever_the_reference_is():
    policy, moved = fixed_gpt({"a": 0.8, "b": 0.2}), fixed_gpt({"a": 0.7, "b": 0.3})
    found = {}
    for start in (EVEN, None):
        validate = Validation(LETTERS, RECORDS, ONE_TOKEN, INDEX, start=start)
        found[start] = validate(policy, moved, 1)["validation/kl"]
    for start, kl in found.items():
        expected = evaluate(policy, LETTERS, RECORDS, ONE_TOKEN, INDEX, reference=start or moved)
        assert kl == pytest.approx(float(expected.kl.mean()))
    assert found[EVEN] != found[None]


# The price of an answer that was cut off


def test_an_answer_that_was_cut_off_pays_its_price_here_too():
    """Half of the answers end at once and are worth 0; the others are a "b", worth 1, and no more."""
    policy = fixed_gpt({"b": 0.5, ".": 0.5})
    how = Conditions.of(GRPOConfig(missing_eos_penalty=3.0))
    found = evaluate(policy, LETTERS, RECORDS, ONE_TOKEN, INDEX, gold=INDEX, conditions=how)
    assert 5 < int(found.has_eos.sum()) < 35
    worth = {"": (0.0, 0.0), "b": (1.0 - 3.0, 1.0)}
    both = list(zip(found.reward.tolist(), found.gold.tolist(), strict=True))
    assert both == [worth[text] for text in found.responses]


def test_a_run_prices_its_validations_and_its_test_each_of_prompts_of_its_own(
    tmp_path, monkeypatch
):
    """Two runs whose one step is too small to change an answer; no answer of theirs ends."""
    toys.saved_gpt(tmp_path / "start", context=128, n_embd=8)
    seen, trained, sample = [], set(), loop.sample_rollout

    def noted(policy, tokenizer, records, *more, **options):
        trained.update(record.prompt for record in records)
        return sample(policy, tokenizer, records, *more, **options)

    monkeypatch.setattr(loop, "sample_rollout", noted)
    for price in (0.0, 3.0):
        folder = main(
            GRPOConfig(
                model=str(tmp_path / "start"), reward="gold", steps=1, prompts_per_step=2, group_size=2,
                lr=1e-12, max_new_tokens=8, eval_prompts=4, test_prompts=4, device="cpu", ranks=1,
                missing_eos_penalty=price, out=tmp_path / f"price-{price}",
            )
        )  # fmt: skip
        (row,), report = read_jsonl(folder / "metrics.jsonl"), read_json(folder / "report.json")
        seen.append({"validation": row["validation/reward"], "training": row["reward"]})
        seen[-1] |= {name: report[name]["reward"] for name in ("before", "after")}
        assert row["validation/eos_rate"] == report["after"]["eos_rate"] == 0
        assert report["after"]["gold"] == pytest.approx(seen[0]["after"])
        for name, split in (("samples", "validation"), ("test_answers", "test")):
            of_split = {record.prompt for record in world_source("reviews").prompts(split)}
            asked = [answer["prompt"] for answer in read_jsonl(folder / f"{name}.jsonl")]
            assert len(asked) == 4 and of_split.issuperset(asked)
    assert trained and trained <= {
        record.prompt for record in world_source("reviews").prompts("train")
    }
    assert seen[1] == pytest.approx({name: value - 3 for name, value in seen[0].items()})


def test_the_error_of_a_mean_is_its_spread_over_the_root_of_their_number():
    assert standard_error(torch.tensor([1.0, 2.0, 3.0])) == pytest.approx(1 / math.sqrt(3))
    assert standard_error(torch.tensor([5.0])) == 0


@pytest.mark.parametrize(("ends", "greedy"), [(0.4, 0.0), (0.6, 1.0)])
def test_the_likeliest_answer_is_checked_beside_the_samples(ends, greedy):
    """Right is who ends at once; of four samples one is with 1 - (1 - ends)^4."""
    policy = fixed_gpt({"a": 1 - ends, ".": ends})
    check = VerifiableReward(lambda record, text, ended: float(text == ""), "nothing")
    found = measure_accuracy(policy, LETTERS, RECORDS, ONE_TOKEN, check, k=4)
    assert found["greedy_accuracy"] == greedy
    assert found["pass@1"] == pytest.approx(ends, abs=0.1)
    assert found["pass@4"] == pytest.approx(1 - (1 - ends) ** 4, abs=0.1)


def test_the_tries_of_a_prompt_are_counted_for_it_alone():
    """Every answer to 5 of 40 prompts is right, and none to another one: more tries find no more."""
    check = VerifiableReward(lambda record, text, ended: float(record.prompt[0] == "a"), "a prompt")
    found = measure_accuracy(fixed_gpt({".": 1.0}), LETTERS, RECORDS, ONE_TOKEN, check, k=4)
    assert found == {"pass@1": 1 / 8, "pass@4": 1 / 8, "greedy_accuracy": 1 / 8}


# A run that is cut and resumed


def test_steps_that_are_done_again_leave_their_answers_once(tmp_path, monkeypatch):
    """Validated at each step, saved after the second, ended after the third."""
    toys.saved_gpt(tmp_path / "start", context=128, n_embd=8)
    config = GRPOConfig(
        model=tmp_path / "start", reward="gold", steps=4, prompts_per_step=2, group_size=2,
        max_new_tokens=6, eval_every=1, eval_prompts=2, test_prompts=2, save_every=2,
        device="cpu", ranks=1, out=tmp_path / "whole",
    )  # fmt: skip
    cut = replace(config, out=tmp_path / "cut")
    main(config)
    with monkeypatch.context() as patch, pytest.raises(toys.Crash):
        patch.setattr(stage, "MetricLog", type("Log", (toys.CrashingLog,), {"last": 3}))
        main(cut)
    main(replace(cut, resume=True))
    for name in ("samples.jsonl", "tokens.jsonl", "test_answers.jsonl"):
        whole, resumed = ((run.out / name).read_text() for run in (config, cut))
        assert whole == resumed and whole


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
    again, other = (
        best_of_n(policy, LETTERS, RECORDS, ONE_TOKEN, INDEX, 5, gold=GOLD, conditions=how)[0]
        for how in (Conditions(micro_batch_size=5), Conditions(micro_batch_size=5, seed=1))
    )
    assert torch.equal(again, reward) and not torch.equal(other, reward)
    assert float(reward.mean()) > 5  # of five uniform draws from 0..7 the largest averages 5.9


# Validation and comparison


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


def test_a_gain_is_paired_over_prompts():
    """Gains of 1, 0, 1 and 2: their mean 1, their spread sqrt(2 / 3), of four 1.96 / 2 of it each side."""
    asked = evaluate(EVEN, LETTERS, RECORDS[:4], ONE_TOKEN, None)
    before = replace(asked, reward=torch.tensor([10.0, 1.0, -20.0, 3.0]))
    after = replace(asked, reward=torch.tensor([11.0, 1.0, -19.0, 5.0]))
    found = evaluation.Comparison(before, after, "", "GRPO")
    assert found.change("reward") == pytest.approx((1.0, 0.19983, 1.80017), abs=1e-4)
    assert found.numbers["reward_change_high"] == pytest.approx(1.80017, abs=1e-4)
    assert found.change("gold") is None


def test_the_end_of_a_run_names_what_can_be_doubted(tmp_path):
    """The KL per token of all tokens; chance; cut-off answers; halved ones; a judge's own report."""
    asked = evaluate(EVEN, LETTERS, RECORDS[:4], ONE_TOKEN, None)
    parts = dict(lengths=torch.tensor([1, 1, 1, 5]), has_eos=torch.tensor([True] * 4))
    before = replace(
        asked, reward=torch.zeros(4), lengths=torch.full((4,), 20), has_eos=parts["has_eos"]
    )
    after = replace(asked, reward=torch.ones(4), kl=torch.tensor([0.0, 0, 0, 4]), **parts)
    found = evaluation.Comparison(before, after, "", "GRPO")
    task = SimpleNamespace(reward_fn=INDEX, gold=None)
    run, config = tmp_path / "steered", GRPOConfig(model="mine")
    rose, cost, doubts, _, *commands = ending(found, config, task, run)
    assert "+1.000" in rose and "chance" not in rose
    assert "1.00 nats" in cost and "0.500 a token" in cost
    assert doubts.count(";") == 1 and "half" in doubts
    assert all(str(run) in line for line in commands) and "--against mine" in commands[1]
    worse = replace(after, reward=torch.tensor([2.0, -1, 0, 0]), has_eos=~parts["has_eos"])
    rose, _, doubts, *_ = ending(replace(found, after=worse), config, task, run)
    assert "chance" in rose and "100%" in doubts
    write_json(
        tmp_path / "judge" / "report.json", {"accuracy": 0.6, "accuracy_interval": [0.5, 0.7]}
    )
    learned = SimpleNamespace(components=MadeOf(reward_models=(None,)))
    config = GRPOConfig(model="mine", reward_model=(str(tmp_path / "judge"),))
    judged = ending(found, config, SimpleNamespace(reward_fn=learned, gold=None), run)[2]
    assert "0.60" in judged
    ruled = ending(found, config, SimpleNamespace(reward_fn=INDEX, gold=INDEX), run)
    assert "gold" not in ruled[0] and not ruled[2].startswith(doubts[:30])


@pytest.mark.parametrize(("chat", "shown"), [(None, 1.3), (object(), 0.7)])
def test_examples_are_at_the_temperature_of_use_and_greedy(monkeypatch, chat, shown):
    """Of a chat model colder than it was trained; both models draw by the same random numbers."""
    tokenizer = replace(LETTERS, chat=chat)
    task = SimpleNamespace(
        policy=fixed_gpt({"a": 0.4, "b": 0.6}), tokenizer=tokenizer, reward_fn=INDEX, gold=None,
        prompts={"test": RECORDS},
    )  # fmt: skip
    used, sampled = [], evaluation.sample_rollout

    def noted(policy, tokenizer, records, params, *more):
        used.append((params.temperature, params.greedy, len(records)))
        return sampled(policy, tokenizer, records, params, *more)

    monkeypatch.setattr(evaluation, "sample_rollout", noted)
    trained = SamplingParams(1.3, max_new_tokens=3)
    found = compare(fixed_gpt({"a": 0.6, "b": 0.4}), task, trained, 20, after="GRPO")
    assert used[:2] == [(1.3, False, 20)] * 2
    assert [(t, greedy) for t, greedy, _ in used[2:]] == [(shown, False)] * 2 + [(1.3, True)] * 2
    assert found.examples["greedy"] == [["aaa"] * 3, ["bbb"] * 3]
    assert [*found.examples] == [f"temperature {shown:g}", "greedy"]
    lines = found.text().splitlines()
    assert sum("aaa" in line for line in lines if "greedy" in line) == 3


@pytest.mark.parametrize("checked", [False, True])
def test_a_run_counts_every_answer_of_its_test_before_it_starts(monkeypatch, checked):
    gold = (
        VerifiableReward(lambda record, text, ended: float(text == "a"), "a") if checked else INDEX
    )
    task = SimpleNamespace(
        policy=EVEN, tokenizer=LETTERS, reward_fn=INDEX, gold=gold, prompts={"test": RECORDS}
    )
    rows = []
    sampled = evaluation.sample_rollout

    def counted(*arguments):
        rows.append(len(rollout := sampled(*arguments)))
        return rollout

    monkeypatch.setattr(evaluation, "sample_rollout", counted)
    compare(EVEN, task, ONE_TOKEN, 7, after="GRPO")
    assert sum(rows) == 2 * answers_to_test(SimpleNamespace(test_prompts=7), task)
