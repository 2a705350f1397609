"""Adapters in PEFT's format, against its documentation and, where it is installed, the package."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import load_file

from gpt.lora import (
    adapters,
    add_adapters,
    fit_for_training,
    save_adapter,
    trunk_to_train,
)
from gpt.model import GPT, GPTConfig
from gpt.published.pretrained import save_gpt2

SHAPE = GPTConfig(vocab_size=11, context=12, n_layer=2, n_head=2, n_embd=8)
TOKENS = torch.randint(0, 11, (3, 9), generator=torch.Generator().manual_seed(2))


def base_gpt(config: GPTConfig = SHAPE) -> GPT:
    model = GPT(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return model


def adapted(rank: int = 3, alpha: float = 12.0) -> GPT:
    generator = torch.Generator().manual_seed(1)
    model = add_adapters(base_gpt(), rank, alpha, generator)
    with torch.no_grad():
        for layer in adapters(model).values():
            layer.lora_B.copy_(torch.randn(layer.lora_B.shape, generator=generator) / 4)
    return model


def test_the_files_are_those_of_peft(tmp_path):
    """Names, orientation and scale as its documentation has them; a model without one writes none."""
    save_adapter(tmp_path / "none", base_gpt(), "gpt2")
    assert not (tmp_path / "none").exists()
    model = adapted(rank=3, alpha=5.0)
    save_adapter(tmp_path, model, "gpt2")
    stored = load_file(tmp_path / "adapter_model.safetensors")
    assert len(stored) == 16
    for name, layer in adapters(model).items():
        for matrix in ("lora_A", "lora_B"):
            key = f"base_model.model.transformer.{name}.{matrix}.weight"
            assert torch.equal(stored[key], getattr(layer, matrix))
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["fan_in_fan_out"]) == (3, 5, True)
    assert config["target_modules"] == ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"]


# The package itself


@pytest.fixture
def peft():
    return pytest.importorskip("peft", reason="peft, which the product does not need, is not here")


@pytest.fixture
def published(tmp_path):
    """The base as transformers opens it."""
    transformers = pytest.importorskip("transformers")
    save_gpt2(base_gpt(), tmp_path / "base")
    return transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "base").eval()


def test_peft_opens_our_adapter_and_computes_the_same(tmp_path, peft, published):
    model = adapted()
    save_adapter(tmp_path / "adapter", model, "gpt2")
    theirs = peft.PeftModel.from_pretrained(published, tmp_path / "adapter")
    with torch.no_grad():
        torch.testing.assert_close(theirs(TOKENS).logits, model(TOKENS), rtol=0, atol=1e-4)
        merged = theirs.merge_and_unload()
        torch.testing.assert_close(merged(TOKENS).logits, model(TOKENS), rtol=0, atol=1e-4)


# The flags


@dataclass
class Flags:
    checkpoint_blocks: bool = False
    lora_rank: int = 0
    lora_alpha: float | None = None
    seed: int = 0


def test_a_model_is_fitted_as_the_flags_ask(capsys):
    plain = fit_for_training(Flags(), base_gpt())
    assert not adapters(plain) and not plain.checkpoint_blocks and plain.wte.weight.requires_grad
    assert capsys.readouterr().out == ""
    flags = Flags(checkpoint_blocks=True, lora_rank=2, lora_alpha=5.0)
    model = fit_for_training(flags, base_gpt())
    assert model.checkpoint_blocks and {layer.scale for layer in adapters(model).values()} == {2.5}
    # 2 layers x rank 2 x (8 + 24, 8 + 8, 8 + 32, 32 + 8)
    assert capsys.readouterr().out == "LoRA: 512 weights are trained, 2,456 with the frozen\n"
    again = fit_for_training(flags, base_gpt())
    assert torch.equal(again.h[1].mlp.c_fc.lora_A, model.h[1].mlp.c_fc.lora_A)


def test_a_critic_over_a_frozen_model_trains_a_whole_copy_or_adapters_alone():
    scorer = base_gpt().requires_grad_(False)
    whole, light = trunk_to_train(Flags(), scorer), trunk_to_train(Flags(lora_rank=2), scorer)
    assert whole.wte.weight is not scorer.wte.weight and whole.wte.weight.requires_grad
    assert light.wte.weight is scorer.wte.weight and len(adapters(light)) == 8
    assert not adapters(scorer) and torch.equal(light(TOKENS), scorer(TOKENS))
