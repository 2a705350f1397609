"""Frozen copies: references and starts."""

from __future__ import annotations

import torch
import torch.nn as nn

from gpt.model import GPT, GPTConfig
from harness.frozen_copy import frozen_copy

SHAPE = GPTConfig(vocab_size=11, context=8, n_layer=2, n_head=2, n_embd=8, dropout=0.5)


def test_a_frozen_copy_stays_when_the_model_moves_and_has_no_gradient_or_dropout():
    model = GPT(SHAPE).initialize(torch.Generator().manual_seed(0)).train()
    copied = frozen_copy(model)
    before = [parameter.clone() for parameter in model.parameters()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert all(map(torch.equal, copied.parameters(), before))
    assert not any(parameter.requires_grad for parameter in copied.parameters())
    assert not any(module.training for module in copied.modules())
    assert model.training and all(parameter.requires_grad for parameter in model.parameters())


def test_what_is_frozen_already_is_shared():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    copied = frozen_copy(model)
    assert copied[0].weight is model[0].weight and copied[0].bias is model[0].bias
    assert copied[1].weight is not model[1].weight and model[1].weight.requires_grad
