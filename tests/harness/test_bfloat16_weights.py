"""A frozen model whose linear layers are in bfloat16 is, under autocast, the model it was."""

from __future__ import annotations

import copy

import torch
from toys import randomized

from data.collate import collate_responses
from gpt.generate import SamplingParams, generate
from gpt.log_probs import token_scores
from gpt.lora import linears_to_bfloat16
from gpt.model import GPT, GPTConfig
from reward_model.scalar_head import RewardModel

EOS = 0
BATCH = collate_responses([[3, 1], [5], [2, 2, 6]], [[1, 5, 0], [6, 2, 4, 4], [0]], EOS)


def random_gpt() -> GPT:
    return randomized(
        GPT(GPTConfig(11, context=16, n_layer=2, n_head=2, n_embd=16)).eval(), 0
    ).requires_grad_(False)


def autocast() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def test_scores_samples_and_rewards_are_the_same_bit_for_bit_under_autocast():
    whole = RewardModel.from_policy(random_gpt(), generator=torch.Generator().manual_seed(1))
    whole.requires_grad_(False)
    half = linears_to_bfloat16(copy.deepcopy(whole))
    results = []
    for model in (whole, half):
        with autocast():
            sampled = generate(
                model.gpt, [[1, 2], [3]], SamplingParams(max_new_tokens=8),
                torch.Generator().manual_seed(2), eos_id=EOS, samples_per_prompt=3,
            )  # fmt: skip
            drawn = [value for value in vars(sampled).values() if value is not None]
            results.append([*token_scores(model.gpt, BATCH), model(BATCH), *drawn])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
