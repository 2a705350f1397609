"""GPT-2 against a slow forward pass written from the formulas; padding, cache, init, dropout."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from toys import close, flat_gradient, randomized

from data.collate import left_pad, right_pad
from gpt.model import GPT, GPTConfig, KVCache

CONFIG = GPTConfig(vocab_size=11, context=12, n_layer=2, n_head=2, n_embd=8)
ROWS = [[3, 1, 4], [1, 5, 9, 2, 6], [5, 3]]


def random_gpt(config: GPTConfig = CONFIG, seed: int = 0) -> GPT:
    """Every parameter random and large, biases and gains too, so that none can be left out."""
    return randomized(GPT(config).double().eval(), seed)


MODEL = random_gpt()


# The architecture, one row, one head and one query at a time.


def slow_layer_norm(x, weights, name):
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    gain, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return (x - mean) / (variance + 1e-5).sqrt() * gain + bias


def slow_linear(x, weights, name):
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def slow_gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def slow_attention(x, weights, name, heads):
    query, key, value = slow_linear(x, weights, f"{name}.c_attn").chunk(3, dim=-1)  # each (S, D)
    width = x.shape[1] // heads
    out = torch.zeros_like(x)
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        for i in range(len(x)):
            scores = key[: i + 1, part] @ query[i, part] / math.sqrt(width)
            out[i, part] = scores.softmax(0) @ value[: i + 1, part]
    return slow_linear(out, weights, f"{name}.c_proj")


def slow_logits(model: GPT, row: list[int]) -> torch.Tensor:
    weights = model.state_dict()
    x = weights["wte.weight"][row] + weights["wpe.weight"][: len(row)]
    for layer in range(model.config.n_layer):
        name = f"h.{layer}"
        normed = slow_layer_norm(x, weights, f"{name}.ln_1")
        x = x + slow_attention(normed, weights, f"{name}.attn", model.config.n_head)
        normed = slow_layer_norm(x, weights, f"{name}.ln_2")
        inner = slow_linear(normed, weights, f"{name}.mlp.c_fc")
        x = x + slow_linear(slow_gelu(inner), weights, f"{name}.mlp.c_proj")
    return slow_layer_norm(x, weights, "ln_f") @ weights["wte.weight"].T


def test_logits_against_the_formulas():
    close(MODEL(torch.tensor([ROWS[1]]))[0], slow_logits(MODEL, ROWS[1]))


# Causality and padding


@pytest.mark.parametrize("filler", [0, 7])
def test_padded_rows_equal_unpadded_rows(filler):
    left, left_mask = left_pad(ROWS, filler)
    right, right_mask = right_pad(ROWS, filler)
    padded_left, padded_right = MODEL(left, left_mask), MODEL(right, right_mask)
    without_mask = MODEL(right)
    assert padded_left.isfinite().all()
    for i, row in enumerate(ROWS):
        alone = MODEL(torch.tensor([row]))[0]
        close(padded_left[i, left_mask[i]], alone)
        close(padded_right[i, right_mask[i]], alone)
        close(without_mask[i, : len(row)], alone)


# The cache


def continued(cache: KVCache, tokens: torch.Tensor, sizes: list[int], mask=None) -> torch.Tensor:
    """Hidden states of `tokens`, fed in pieces of these sizes."""
    pieces = []
    for piece in tokens.split(sizes, dim=1):
        end = cache.length + piece.shape[1]
        pieces.append(MODEL.hidden(piece, None if mask is None else mask[:, :end], cache))
        assert cache.length == end
    return torch.cat(pieces, dim=1)


TOKENS = torch.randint(0, 11, (4, 9), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("padding", [[0, 0, 0, 0], [0, 3, 1, 4]])
@pytest.mark.parametrize("sizes", [[1] * 9, [4, 3, 2], [5, 1, 1, 2], [9]])
def test_cache_equals_no_cache(sizes, padding):
    """Also of rows that are padded on the left."""
    mask = torch.arange(9) >= torch.tensor(padding)[:, None]
    hidden = continued(MODEL.new_cache(4, 9), TOKENS, sizes, mask if any(padding) else None)
    for i, start in enumerate(padding):
        close(hidden[i, start:], MODEL.hidden(TOKENS[i : i + 1, start:])[0])


# Too long rows


def test_a_row_that_is_too_long_is_refused():
    zeros = torch.zeros(1, 14, dtype=torch.long)
    cache = MODEL.new_cache(1, 13)
    MODEL.hidden(zeros[:, :12], None, cache)
    for call in (
        lambda: MODEL(zeros[:, :13]),
        lambda: MODEL(zeros, torch.tensor([[0] + [1] * 13]).bool()),
        lambda: MODEL(zeros.repeat(2, 1), torch.tensor([[0] + [1] * 13, [0] * 13 + [1]]).bool()),
        lambda: MODEL.hidden(zeros[:, :1], None, cache),
    ):
        with pytest.raises(ValueError, match="13 .* 12"):
            call()


def test_padding_takes_no_positions():
    """15 columns, 12 positions: what counts is the row's real length."""
    row = torch.arange(12)[None] % 11
    tokens = torch.cat([torch.zeros(1, 3, dtype=torch.long), row], dim=1)
    mask = torch.arange(15)[None] >= 3
    close(MODEL(tokens, mask)[:, 3:], MODEL(row))


# Shapes and initialisation


def test_initialisation():
    """Residual projections 0.02 / sqrt(2 * 8 layers) = 0.005; standard errors are below 1.5 %."""
    config = GPTConfig(vocab_size=200, context=64, n_layer=8, n_head=4, n_embd=64)
    model = GPT(config).initialize(torch.Generator().manual_seed(0))
    for name, parameter in model.state_dict().items():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "ln_" in name:
            assert (parameter == 1).all(), name
        else:
            std = 0.01 if name == "wpe.weight" else 0.005 if "c_proj" in name else 0.02
            assert float(parameter.std()) == pytest.approx(std, rel=0.06), name
            assert abs(float(parameter.mean())) < 0.06 * std, name


# Activation checkpointing


def gradient_with(gradient_checkpointing: bool, config: GPTConfig) -> torch.Tensor:
    model = GPT(config).initialize(torch.Generator().manual_seed(0)).train()
    model.gradient_checkpointing = gradient_checkpointing
    mask = torch.ones_like(TOKENS).bool()
    mask[1, :3] = False
    torch.manual_seed(1)  # of the dropout
    (model(TOKENS).logsumexp(-1).sum() + model(TOKENS, mask)[:, -1].square().sum()).backward()
    return flat_gradient(model)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_checkpointed_blocks_give_the_same_gradients_bit_for_bit(dropout):
    config = replace(CONFIG, dropout=dropout)
    kept, computed_again = (gradient_with(on, config) for on in (False, True))
    assert torch.equal(kept, computed_again) and kept.any()
