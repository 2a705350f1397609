"""The critic: where its values stand and how it starts."""

from __future__ import annotations

import torch
import toys

from data.collate import ResponseBatch, collate_responses
from gpt.model import GPT
from reward_model.scalar_head import RewardModel
from rl.actor_critic import ValueModel

EOS = 10


def small_gpt() -> GPT:
    return toys.random_gpt(12, 16, scale=0.3, n_embd=32)


def critic() -> ValueModel:
    model = ValueModel(small_gpt())
    torch.nn.init.normal_(model.head.weight, generator=toys.seeded())
    return model.eval()


def batch(*rows: tuple[list[int], list[int]]) -> ResponseBatch:
    prompts, responses = zip(*rows, strict=True)
    return collate_responses(prompts, responses, EOS)


PAIRS = [([1, 2, 3], [4, 5, EOS]), ([6], [7, EOS]), ([8, 9], [1, 1, 1, 1])]
ROWS = batch(*PAIRS)


def test_a_value_is_read_before_its_token():
    """Row by row, unpadded: V_t is the head at column p - 1 + t."""
    model = critic()
    values = model(ROWS)
    assert values.shape == ROWS.response_mask.shape
    for i, (prompt, response) in enumerate(PAIRS):
        hidden = model.gpt.hidden(torch.tensor([prompt + response]))[0]
        for t in range(len(response)):
            expected = model.head(hidden[len(prompt) - 1 + t])[0]
            torch.testing.assert_close(values[i, t], expected)
    assert not values[~ROWS.response_mask].any()


def test_from_the_policy_every_value_is_zero_and_the_trunks_are_apart():
    policy = small_gpt().train()
    model = ValueModel.from_policy(policy)
    assert not model(ROWS).any()
    assert not any(module.training for module in model.modules())  # no dropout in its values
    assert all(parameter.requires_grad for parameter in model.parameters())
    with torch.no_grad():
        model.gpt.wte.weight.add_(1)
    assert not torch.equal(model.gpt.wte.weight, policy.wte.weight)


def test_from_the_reward_model_the_value_is_its_score_so_far():
    """On the normalised scale: V_t is what the reward model gives to the text before token t."""
    reward_model = RewardModel.from_policy(
        small_gpt(), "last_token", torch.Generator().manual_seed(1)
    )
    reward_model.mean.fill_(0.7)
    reward_model.std.fill_(2.5)
    model = ValueModel.from_reward_model(reward_model.requires_grad_(False).train())
    assert not any(module.training for module in model.modules())
    values = model(ROWS)
    reward_model.eval()
    expected = reward_model(batch(([1, 2, 3], [4, 5])))  # what was written before the EOS
    torch.testing.assert_close(values[0, 2], expected[0])
    assert values.requires_grad and abs(float(expected[0])) > 1e-3
