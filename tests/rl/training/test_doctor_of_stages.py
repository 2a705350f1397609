"""The doctor after pre-training, fine-tuning and a reward model: small runs on letters.

Each stage is trained as it is, which raises no alarm, and with a fault that a rule has to name.
"""

from __future__ import annotations

import dataclasses
import json
import random
from dataclasses import asdict
from typing import Any

import bug_zoo
import torch

from data.collate import ResponseBatch, collate_documents
from gpt import finetuning, pretraining
from gpt.finetuning import Example, FinetuningConfig
from gpt.pretraining import PretrainingConfig
from harness.metric_log import MetricLog
from harness.report.rules import examine
from reward_model.accuracy_report import preference_report, score_pairs
from reward_model.pairs import TokenPair
from reward_model.reward_model_training import RewardModelConfig, train
from reward_model.scalar_head import RewardModel

Rows = list[dict[str, Any]]


def letters(rng: random.Random, count: int = 10) -> list[int]:
    """A text in which each letter is the next of the alphabet, or the same: something to learn."""
    text = [rng.randrange(8)]
    while len(text) < count:
        text.append((text[-1] + rng.randrange(2)) % 8)
    return text


class Letters:
    """Endless letters as a corpus."""

    description, tokens_per_batch = "letters", 9.0 * 16

    def batch(self, index: int) -> ResponseBatch:
        rng = random.Random(index)
        return collate_documents([letters(rng) for _ in range(16)])

    def held_out_batches(self) -> list[ResponseBatch]:
        return [self.batch(10_000)]


def flags(config: Any) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(config), default=str))


def rules(config: Any, rows: Rows, results: dict[str, Any] | None = None) -> set[str]:
    return {finding.rule for finding in examine(rows, flags(config), results)}


# --- pre-training ---------------------------------------------------------------------------------

PRETRAINING = PretrainingConfig(steps=40, lr=3e-3, warmup=5, eval_every=10)


def pretrained(config: PretrainingConfig) -> Rows:
    return pretraining.train(config, bug_zoo.small_gpt(), Letters(), MetricLog(config.steps))


def test_pretraining_is_silent_on_a_good_run_and_names_a_learning_rate_that_is_too_high() -> None:
    assert rules(PRETRAINING, pretrained(PRETRAINING)) == set()
    hot = dataclasses.replace(PRETRAINING, lr=1.0, max_norm=1e3)
    assert "nothing_learned" in rules(hot, pretrained(hot))  # though it ends near where it began


# --- fine-tuning ----------------------------------------------------------------------------------

FINETUNING = FinetuningConfig(lr=1e-3, warmup=5, eval_every=10, batch_size=16)


def answers(count: int, seed: int = 0) -> list[Example]:
    rng = random.Random(seed)
    return [([rng.randrange(8)], [*rng.choices(range(8), k=8), 8]) for _ in range(count)]


def finetuned(config: FinetuningConfig, examples: list[Example], steps: int = 40) -> Rows:
    torch.manual_seed(0)
    model, held_out = bug_zoo.small_gpt(), answers(32, 1)
    return finetuning.train(config, model, examples, held_out, MetricLog(steps), eos_id=8)


def test_fine_tuning_is_silent_on_many_answers_and_finds_that_a_few_are_memorised() -> None:
    assert rules(FINETUNING, finetuned(FINETUNING, answers(2000))) == set()
    again_and_again = dataclasses.replace(FINETUNING, lr=1e-2)
    assert rules(again_and_again, finetuned(again_and_again, answers(16), 80)) == {"memorising"}


# --- reward model ---------------------------------------------------------------------------------

REWARD = RewardModelConfig(lr=3e-3, warmup=5, batch_size=16, pooling="mean_score")


def preferences(count: int, label: str, seed: int) -> list[TokenPair]:
    """Answers with more of the letter a win, or (label "coin") either."""
    rng = random.Random(seed)
    pairs = []
    for number in range(count):
        a, b = ([*rng.choices(range(8), k=rng.randrange(4, 12)), 8] for _ in range(2))
        order = rng.random() - 0.5 if label == "coin" else a.count(0) - b.count(0)
        better, worse = (a, b) if order > 0 else (b, a)
        pairs.append(TokenPair([number % 8, seed % 8, number // 8 % 8], better, worse, {}))
    return pairs


def rewarded(
    config: RewardModelConfig, label: str, count: int = 1600, steps: int = 40
) -> tuple[Rows, dict[str, Any]]:
    model = RewardModel.from_policy(
        bug_zoo.small_gpt(), config.pooling, torch.Generator().manual_seed(0)
    )
    held_out = preferences(300, label, 1)
    rows = train(model, preferences(count, label, 0), config, MetricLog(steps), eos_id=8)
    chosen, rejected, batch = score_pairs(model, held_out, 8)
    return rows, preference_report(chosen, rejected, batch.lengths, held_out).numbers


def test_a_reward_model_is_silent_where_it_learns() -> None:
    assert rules(REWARD, *rewarded(REWARD, "a")) == set()


def test_labels_by_a_coin_are_named() -> None:
    assert "nothing_learned" in rules(REWARD, *rewarded(REWARD, "coin"))


def test_pairs_that_are_known_by_heart_are_named() -> None:
    found = rules(REWARD, *rewarded(REWARD, "coin", count=24, steps=100))
    assert "memorising" in found and "nothing_learned" not in found
