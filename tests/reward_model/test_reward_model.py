"""The scalar head: which hidden state it reads, how token scores are pooled, what a file keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import toys

from data.collate import ResponseBatch, collate_responses
from gpt.model import GPT, GPTConfig
from harness.errors import UserError
from reward_model.scalar_head import RewardModel, load_reward_model, save_reward_model

V, EOS = 9, 0
PROMPTS = [[3, 1, 7], [5], [2, 2, 6, 1, 8]]
RESPONSES = [[1, 5, EOS], [6, 6, 2, 4], [EOS]]  # ended, cut off, empty


def reward_model(pooling: str = "mean_score") -> RewardModel:
    policy = toys.random_gpt(V, 16, dtype=torch.float64)
    return RewardModel.from_policy(policy, pooling, toys.seeded(1)).double()


def batch_of(prompts=PROMPTS, responses=RESPONSES) -> ResponseBatch:
    return collate_responses(prompts, responses, EOS)


def test_from_a_policy_the_trunk_is_a_copy_of_its_weights():
    """Of which nothing is shared; the head is drawn from its own numbers, without a bias."""
    policy = toys.random_gpt(V, 16, n_embd=32)
    model, other = (RewardModel.from_policy(policy, generator=toys.seeded(i)) for i in (1, 2))
    assert torch.equal(toys.weights(model.gpt), toys.weights(policy))
    assert not torch.equal(model.head.weight, other.head.weight) and not model.head.bias.any()
    assert 0.5 < float(model.head.weight.detach().std()) * 33**0.5 < 1.5
    with torch.no_grad():
        model.gpt.wte.weight.add_(1)
    assert not torch.equal(model.gpt.wte.weight, policy.wte.weight)
    assert torch.equal(other.gpt.wte.weight, policy.wte.weight)


@pytest.mark.parametrize(("pooling", "expected"), [("mean_score", -0.75), ("last_token", -1.25)])
def test_pooling_literals(pooling, expected):
    """Columns: the prompt, and tokens that score -0.25, -1.25 and -49.75; the last may be padding."""
    model = RewardModel(GPT(GPTConfig(V, context=8, n_layer=1, n_head=1, n_embd=2)), pooling)
    model.head.weight.data = torch.tensor([[0.5, -1.0]])
    model.head.bias.data = torch.tensor([0.25])
    h = torch.tensor([[[1.0, 0], [3, 2], [5, 4], [100, 100]]])
    model.gpt.hidden = lambda tokens: h.expand(2, 4, 2)
    batch = batch_of([[1], [0]], [[2, 2], [2, 2, 2]])
    assert model.token_scores(batch).tolist() == [[-0.25, -1.25, 0.0], [-0.25, -1.25, -49.75]]
    assert model.raw_scores(batch)[0].item() == expected
    model.mean.fill_(1.0)
    model.std.fill_(4.0)
    assert model(batch)[0].item() == (expected - 1) / 4


@pytest.mark.parametrize("pooling", ["mean_score", "last_token"])
def test_neither_padding_nor_neighbours_nor_order_matter(pooling):
    model = reward_model(pooling)
    alone = torch.cat([model(batch_of([p], [r])) for p, r in zip(PROMPTS, RESPONSES, strict=True)])
    together = batch_of()
    torch.testing.assert_close(model(together), alone, rtol=0, atol=1e-10)
    order = [2, 0, 1]
    shuffled = batch_of([PROMPTS[i] for i in order], [RESPONSES[i] for i in order])
    torch.testing.assert_close(model(shuffled), alone[order], rtol=0, atol=1e-10)
    columns = torch.arange(together.tokens.shape[1])
    padding = columns[None] >= (together.prompt_lengths + together.lengths)[:, None]
    garbage = replace(
        together,
        tokens=torch.cat([together.tokens.masked_fill(padding, 7), torch.full((3, 2), 4)], 1),
        response_tokens=together.response_tokens.masked_fill(~together.response_mask, 5),
    )
    torch.testing.assert_close(model(garbage), alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize("micro_batch_size", [2, 64])
def test_normalize_on_makes_mean_zero_and_spread_one(micro_batch_size):
    responses = [[i, i + 1, 2, EOS] for i in range(1, 8)] + RESPONSES[:2]
    model, batch = reward_model(), batch_of(PROMPTS * 3, responses)
    raw = model.raw_scores(batch).detach()
    model.normalize_on(batch, micro_batch_size)
    scores = model(batch).detach()
    assert float(scores.mean()) == pytest.approx(0, abs=1e-6)
    assert float(scores.std()) == pytest.approx(1, abs=1e-6)
    assert float(model.mean) == pytest.approx(sum(raw.tolist()) / 9, abs=1e-6)
    torch.testing.assert_close(model.raw_scores(batch), raw, rtol=0, atol=0)


@pytest.mark.parametrize("pooling", ["mean_score", "last_token"])
def test_a_checkpoint_keeps_pooling_normalisation_and_tokenizer(tmp_path, pooling):
    tokenizer = toys.GLASSBOX
    model = RewardModel.from_policy(toys.glassbox_gpt(context=16), pooling)
    batch = batch_of()
    model.normalize_on(batch)
    save_reward_model(tmp_path / "model.safetensors", model, tokenizer)
    loaded, its_tokenizer = load_reward_model(tmp_path)  # a run folder does as well as a file
    assert loaded.pooling == pooling
    assert its_tokenizer.fingerprint == tokenizer.fingerprint
    assert torch.equal(loaded(batch), model(batch))
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    model.std.zero_()
    save_reward_model(tmp_path / "model.safetensors", model, tokenizer)
    with pytest.raises(UserError):
        load_reward_model(tmp_path)


@pytest.mark.parametrize("pooling", ["mean_score", "last_token"])
def test_prefix_scores_are_the_rewards_of_the_shorter_responses(pooling):
    """Each prefix cut off there and scored on its own; 0 at padding."""
    model = reward_model(pooling)
    model.mean.fill_(0.3)
    model.std.fill_(2.0)
    batch = batch_of()
    scores = model.prefix_scores(batch)
    for i, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        for t in range(len(response)):
            alone = model(batch_of([prompt], [response[: t + 1]]))
            torch.testing.assert_close(scores[i, t], alone[0], rtol=0, atol=1e-12)
        assert scores[i, len(response) :].tolist() == [0.0] * (4 - len(response))
