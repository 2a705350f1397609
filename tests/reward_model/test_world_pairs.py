"""Pairs of a generated world: what its annotator prefers, and how its answers are drawn."""

from __future__ import annotations

import random

import pytest
from toys import random_gpt

from data.worlds import reviews
from gpt.ranks import sample
from gpt.tokenizer import load_tokenizer
from reward_model.reward_model_training import RewardModelConfig
from reward_model.world_pairs import WorldAnnotator, sampled_pairs

GLASSBOX = load_tokenizer("glassbox")


def test_the_annotator_compares_gold_rewards_with_noise():
    record = reviews.prompts("train")[0]
    good = reviews.GREETINGS[0].format(name=record.meta["name"]) + (
        f" The {record.meta['item']} is great. I hope this helps."
    )
    bad = "Who cares?"
    annotator = WorldAnnotator(reviews)
    verdict = annotator(record, good, True, bad, False, random.Random(0))
    assert verdict.first_preferred
    assert verdict.gold == (
        reviews.gold_reward(record, good, True), reviews.gold_reward(record, bad, False)
    )  # fmt: skip
    rng = random.Random(1)
    same = [annotator(record, good, True, good, True, rng) for _ in range(400)]
    assert 160 < sum(v.first_preferred for v in same) < 240  # equal gold: a coin
    cut = annotator(record, good, True, good, False, rng).gold
    assert cut[0] - cut[1] == pytest.approx(0.15)  # the form counts only where the text ended


def test_held_out_answers_are_two_at_temperature_one_however_the_others_are_drawn(monkeypatch):
    used: list[tuple[float, int, float, int]] = []

    def spy(model, tokenizer, prompts, params, *args, **options):
        used.append((params.temperature, params.top_k, params.top_p, options["samples_per_prompt"]))
        return sample(model, tokenizer, prompts, params, *args, **options)

    monkeypatch.setattr("reward_model.pairs.sample", spy)
    config = RewardModelConfig(
        pairs=6, held_out_pairs=3, responses_per_prompt=6, borrowed_responses=1,
        repeated_responses=1, wide_temperature=1.7, max_response_tokens=4,
    )  # fmt: skip
    pairs, held_out = sampled_pairs(random_gpt(GLASSBOX.n_vocab, 64, scale=0.02), GLASSBOX, config)
    assert (len(pairs), len(held_out)) == (6, 3)
    assert used == [(1.0, 0, 1.0, 2), (1.7, 0, 1.0, 2), (1.0, 0, 1.0, 2)]
