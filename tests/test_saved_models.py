"""The small models that are kept for the pages: they load, they write, they judge, they fit."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import saved_models as kept
import torch

from data import reviews
from data.records import PreferenceRecord
from gpt.checkpoint import save_gpt
from gpt.generate import SamplingParams
from gpt.model import GPT, GPTConfig
from harness.paths import MODEL_FILE
from harness.seeds import make_generator
from reward_model.pairs import collate_pairs, encode_pair
from reward_model.scalar_head import RewardModel, save_reward_model
from rl.batches.rollout import Rollout, sample_rollout
from rl.rewards.sources import RuleReward

GOLD = RuleReward(reviews.gold_reward, "gold reward")
SHORT = SamplingParams(max_new_tokens=48)


def sampled(model: GPT, prompts: int = 48, per_prompt: int = 1) -> Rollout:
    tokenizer = kept.base()[1]
    records = reviews.prompts("test")[:prompts]
    return sample_rollout(
        model, tokenizer, records, SHORT, per_prompt, make_generator(0, "sampling")
    )


@cache
def gold_of(name: str) -> float:
    """Mean gold reward of 48 responses to test prompts."""
    model = getattr(kept, name)()[0] if name != "untrained" else untrained()
    return float(GOLD(sampled(model)).mean())


def untrained() -> GPT:
    return GPT(kept.base()[0].config).initialize(make_generator(0, "weights")).eval()


def test_the_base_writes_reviews_and_the_untrained_model_does_not() -> None:
    assert gold_of("untrained") < 0.1
    assert gold_of("base") > 0.35


def test_the_policy_is_better_than_the_base() -> None:
    assert gold_of("policy") > gold_of("base") + 0.25


def test_the_reward_model_judges_fresh_pairs() -> None:
    """In more than 0.8 of the pairs the response with the higher gold reward scores higher."""
    base, tokenizer = kept.base()
    judge, _ = kept.reward_model()
    rollout = sampled(base, prompts=100, per_prompt=2)
    gold = GOLD(rollout)
    responses = rollout.responses
    pairs, rng = [], random.Random(0)
    for i in range(0, len(rollout), 2):
        better, worse = (i, i + 1) if gold[i] > gold[i + 1] else (i + 1, i)
        if gold[better] > gold[worse] and responses[i] != responses[i + 1]:
            record = PreferenceRecord(
                rollout.records[i].prompt, responses[better], responses[worse], {}
            )
            pairs.append(encode_pair(record, tokenizer))
    rng.shuffle(pairs)
    scores = judge(collate_pairs(pairs, tokenizer.eos_id))
    margins = scores[: len(pairs)] - scores[len(pairs) :]
    assert len(pairs) > 60
    assert float((margins > 0).float().mean()) > 0.8


def test_a_descendant_survives_storing() -> None:
    """8 bits of each row's largest change: no weight is off by more than half a step of it."""
    generator = torch.Generator().manual_seed(0)
    base = {"w": torch.randn(5, 7, generator=generator), "b": torch.zeros(5)}
    trained = {"w": base["w"] + 0.1 * torch.randn(5, 7, generator=generator), "b": torch.ones(5)}
    trained["head"] = torch.randn(1, 7, generator=generator)
    again = kept.add_difference(base, kept.difference(base, trained))
    assert again.keys() == trained.keys()
    assert torch.equal(again["b"], trained["b"]) and torch.equal(again["head"], trained["head"])
    half_a_step = (trained["w"] - base["w"]).abs().amax(1, keepdim=True) / 254
    assert ((again["w"] - trained["w"]).abs() <= half_a_step + 1e-6).all()
    assert not torch.equal(again["w"], base["w"])


def test_what_is_kept_of_a_run_is_what_it_trained(tmp_path: Path, monkeypatch) -> None:
    """The base in bfloat16; its descendants add their changes to that, not to the base of the run."""
    tokenizer = kept.base()[1]
    shape = GPTConfig(tokenizer.n_vocab, context=16, n_layer=1, n_head=1, n_embd=8)
    base = GPT(shape).initialize(make_generator(0, "weights"))
    trained = GPT(shape).initialize(make_generator(0, "weights"))
    with torch.no_grad():
        for weight in trained.parameters():
            weight.mul_(1.001)
    judge = RewardModel.from_policy(trained, "last_token", make_generator(0, "head"))
    save_gpt(tmp_path / "pretraining" / MODEL_FILE, base, tokenizer)
    save_gpt(tmp_path / "grpo" / MODEL_FILE, trained, tokenizer)
    save_reward_model(tmp_path / "reward_model" / MODEL_FILE, judge, tokenizer)
    kept.keep(tmp_path, tmp_path)
    for name in kept.FILES:
        monkeypatch.setitem(kept.FILES, name, tmp_path / f"{name}.safetensors")
    rounded = base.wte.weight.to(torch.bfloat16).float()
    assert torch.equal(kept.base()[0].wte.weight, rounded)
    half_a_step = (trained.wte.weight - rounded).abs().amax(1, keepdim=True) / 254
    for again in (kept.policy()[0], kept.reward_model()[0].gpt):
        assert ((again.wte.weight - trained.wte.weight).abs() <= half_a_step + 1e-8).all()
