"""Heads and frozen models under bfloat16 autocast: log-probs, values and rewards keep their digits."""

from __future__ import annotations

import copy

import pytest
import torch

from data.collate import collate_responses
from gpt.generate import SamplingParams, generate
from gpt.log_probs import forward_kl, full_kl, token_log_probs, token_scores
from gpt.log_probs import token_scores_and_kl as scores_and_kl
from gpt.lora import linears_to_bfloat16
from gpt.model import GPT, GPTConfig, head_product
from reward_model.scalar_head import RewardModel
from rl.actor_critic import ValueModel

V, EOS = 33, 32
PROMPTS = [[3, 1], [5], [2, 2, 6, 1], [4, 0, 1]]
RESPONSES = [[1, 5, 32], [6, 6, 2, 4, 9, 30], [7, 7], [0, 11, 12, 13, 32]]
BATCH = collate_responses(PROMPTS, RESPONSES, EOS)
MASK = BATCH.response_mask


def autocast() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def gpt_at_the_published_height(seed: int = 0) -> GPT:
    """Logits between about -110 and -75, as those of GPT-2's weights.

    One component of the last LayerNorm is 32 for every prefix, and the head's weights there are -3.
    """
    generator = torch.Generator().manual_seed(seed)
    model = GPT(GPTConfig(V, 16, n_layer=2, n_head=2, n_embd=32)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.15)
        model.wte.weight.mul_(4)
        model.wte.weight[:, 0] = -3
        model.ln_f.weight.fill_(1)
        model.ln_f.weight[0], model.ln_f.bias[0] = 0, 32
    return model


MODEL, OTHER = gpt_at_the_published_height(0), gpt_at_the_published_height(1)


def log_probs_of(model: GPT) -> torch.Tensor:
    """(N, S, V) by a head of float64 on the hidden states that autocast computes."""
    with torch.no_grad(), autocast():
        hidden = model.hidden(BATCH.tokens)
    return (hidden.double() @ model.wte.weight.double().T).log_softmax(-1)


def at_responses(per_column: torch.Tensor) -> torch.Tensor:
    """(N, S, ...) at the columns that predict the response tokens, (N, T, ...)."""
    rows = torch.arange(len(BATCH))[:, None]
    return per_column[rows, BATCH.predicting_columns]


@pytest.mark.parametrize("chunk_elements", [2 * V, 10**9])
def test_policy_heads_are_float32_under_autocast(chunk_elements, monkeypatch):
    """Every way to a log-prob, an entropy or a KL, against the head in float64; was off by 0.1."""
    log_p, log_other = at_responses(log_probs_of(MODEL)), at_responses(log_probs_of(OTHER))
    chosen = log_p.gather(2, BATCH.response_tokens[..., None])[..., 0] * MASK
    entropy = -(log_p.exp() * log_p).sum(-1) * MASK
    kl = (log_p.exp() * (log_p - log_other)).sum(-1) * MASK
    forward = (log_other.exp() * (log_other - log_p)).sum(-1) * MASK
    monkeypatch.setattr("gpt.log_probs.CHUNK_ELEMENTS", chunk_elements)
    monkeypatch.setattr("gpt.model.rounds_factors", lambda device: False)
    with autocast():
        found = {
            "log_probs": (token_log_probs(MODEL, BATCH), chosen),
            "scores": (token_scores(MODEL, BATCH).log_probs, chosen),
            "entropy": (token_scores(MODEL, BATCH).entropy, entropy),
            "bonus": (token_scores(MODEL, BATCH, entropy_gradient=True).entropy, entropy),
            "kl": (full_kl(MODEL, OTHER, BATCH), kl),
            "both": (scores_and_kl(MODEL, OTHER, BATCH)[1], kl),
            "beside": (scores_and_kl(MODEL, OTHER, BATCH)[0].log_probs, chosen),
            "beside, entropy": (scores_and_kl(MODEL, OTHER, BATCH)[0].entropy, entropy),
            "forward_kl": (forward_kl(MODEL, OTHER, BATCH), forward),
        }
    for name, (value, expected) in found.items():
        assert value.dtype == torch.float32, name
        torch.testing.assert_close(value.double(), expected, rtol=1e-4, atol=1e-4, msg=name)


def test_rounded_factors_do_not_round_the_logits():
    """A CPU with products of bfloat16 rounds them under autocast; another one rounds nothing."""
    with torch.no_grad(), autocast():
        found, hidden = token_log_probs(MODEL, BATCH), MODEL.hidden(BATCH.tokens)
    near = []
    for rounded in (lambda x: x, torch.Tensor.bfloat16):
        logits = rounded(hidden).double() @ rounded(MODEL.wte.weight).double().T.detach()
        expected = at_responses(logits.log_softmax(-1)).gather(2, BATCH.response_tokens[..., None])
        near.append(float(((found - expected[..., 0]) * MASK).abs().max()))
    assert min(near) < 1e-4
    weight = MODEL.wte.weight.detach().repeat(8, 8)  # outside of heads products stay exact
    exact = weight.double() @ weight.double().T
    torch.testing.assert_close((weight @ weight.T).double(), exact, rtol=1e-5, atol=1e-4)


def test_value_and_reward_heads_are_float32_under_autocast():
    """Values near -80: bfloat16 would step by 0.5."""
    critic, reward = ValueModel.from_policy(MODEL), RewardModel.from_policy(MODEL, "last_token")
    for model in (critic, reward):
        model.head.weight.data.copy_(MODEL.wte.weight[:1])
        model.head.bias.data.fill_(0.3)
    with torch.no_grad(), autocast():
        hidden = MODEL.hidden(BATCH.tokens).double()
        values, scores = critic(BATCH), reward.token_scores(BATCH)
    expected = hidden @ MODEL.wte.weight[0].double() + 0.3  # (N, S)
    rows = torch.arange(len(BATCH))[:, None]
    for found, columns in ((values, BATCH.predicting_columns), (scores, BATCH.response_columns)):
        assert found.dtype == torch.float32
        there = expected[rows, columns] * MASK
        torch.testing.assert_close(found.double(), there, atol=1e-4, rtol=0)


HALF, WHOLE = torch.bfloat16, torch.float32


@pytest.mark.parametrize("dtypes", [(HALF, WHOLE), (WHOLE, HALF), (HALF, HALF)])
def test_a_head_computes_in_float32_whatever_its_factors_are_kept_in(dtypes):
    """Only what they have lost is lost: no logit near -100 is rounded to bfloat16's half."""
    hidden, weight = (
        (5 * torch.randn(4, 32, generator=torch.Generator().manual_seed(i))).to(dtype)
        for i, dtype in enumerate(dtypes)
    )
    bias = torch.tensor([-100.25, 0.0, 100.25, 1.0]).to(dtypes[1])
    found = head_product(hidden, weight, bias)
    assert found.dtype == torch.float32
    exact = hidden.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-3)


def test_a_frozen_model_with_linear_layers_in_bfloat16_is_under_autocast_the_model_it_was():
    """Scores, samples and rewards, bit for bit."""
    generator = torch.Generator().manual_seed(1)
    whole = RewardModel.from_policy(MODEL, generator=generator).requires_grad_(False)
    results = []
    for model in (whole, linears_to_bfloat16(copy.deepcopy(whole))):
        with autocast():
            sampled = generate(
                model.gpt, PROMPTS, SamplingParams(max_new_tokens=8),
                torch.Generator().manual_seed(2), eos_id=EOS, samples_per_prompt=3,
            )  # fmt: skip
            drawn = [value for value in vars(sampled).values() if value is not None]
            results.append([*token_scores(model.gpt, BATCH), model(BATCH), *drawn])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
