"""Adapters in PEFT's format, against its documentation and, where it is installed, the package."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gpt.lora import (
    adapters,
    add_adapters,
    fit_for_training,
    load_adapter,
    save_adapter,
    trunk_to_train,
)
from gpt.model import GPT, GPTConfig
from gpt.published.pretrained import save_gpt2
from harness.errors import UserError

SHAPE = GPTConfig(vocab_size=11, context=12, n_layer=2, n_head=2, n_embd=8)
TOKENS = torch.randint(0, 11, (3, 9), generator=torch.Generator().manual_seed(2))


def base_gpt(config: GPTConfig = SHAPE) -> GPT:
    model = GPT(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return model


def adapted(rank: int = 3, alpha: float = 12.0, **options) -> GPT:
    generator = torch.Generator().manual_seed(1)
    model = add_adapters(base_gpt(), rank, alpha, generator, **options)
    with torch.no_grad():
        for layer in adapters(model).values():
            layer.lora_B.copy_(torch.randn(layer.lora_B.shape, generator=generator) / 4)
    return model


# What is read


@pytest.mark.parametrize("options", [{}, dict(projections=["attn.c_attn"]), dict(alpha=5.0)])
def test_what_was_written_is_read_back_bit_for_bit(tmp_path, options):
    """c_attn alone is PEFT's default for GPT-2."""
    model = adapted(**options)
    save_adapter(tmp_path, model, "gpt2")
    opened = load_adapter(base_gpt(), tmp_path)
    assert torch.equal(opened(TOKENS), model(TOKENS))
    assert not torch.equal(opened(TOKENS), base_gpt()(TOKENS))
    assert adapters(opened).keys() == adapters(model).keys()


def edited(folder: Path, **changes) -> None:
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(use_dora=True),
            "use_dora is True, which is not read here: pass a plain LoRA adapter",
        ),
        (dict(use_rslora=True), "use_rslora is True"),
        (dict(bias="all"), "bias is 'all'"),
        (dict(rank_pattern={"c_fc": 2}), "rank_pattern is {'c_fc': 2}"),
        (dict(modules_to_save=["lm_head"]), "modules_to_save is ['lm_head']"),
        (dict(peft_type="IA3"), "peft_type is 'IA3'"),
        (dict(r=None), "is no LoRA's config"),
        (dict(r=4), "says rank 4 and alpha 12.0, the tensors have rank 3"),
        (dict(r=10**12), "says rank 1000000000000"),
        (dict(r=-1), "says rank -1"),
        (dict(lora_alpha=float("nan")), "alpha nan"),
        (dict(lora_alpha=0), "alpha 0.0"),
        (dict(lora_alpha=10**400), "is no LoRA's config"),
    ],
)
def test_another_kind_of_adapter_is_refused_in_one_sentence(tmp_path, changes, message):
    save_adapter(tmp_path, adapted(), "gpt2")
    edited(tmp_path, **changes)
    with pytest.raises(UserError, match=re.escape(message)) as refused:
        load_adapter(base_gpt(), tmp_path)
    assert "\n" not in str(refused.value)


def test_files_that_are_missing_damaged_or_of_another_model_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"no adapter_config\.json in .*save_p"):
        load_adapter(base_gpt(), tmp_path)
    save_adapter(tmp_path, adapted(), "gpt2")
    deeper = GPTConfig(vocab_size=11, context=12, n_layer=3, n_head=2, n_embd=8)
    with pytest.raises(UserError, match=r"h\.2\.attn\.c_attn\.lora_A is"):
        load_adapter(base_gpt(deeper), tmp_path)
    with pytest.raises(UserError, match="has rank 3: give --lora-rank 3"):
        load_adapter(base_gpt(), tmp_path, rank=8)
    path = tmp_path / "adapter_model.safetensors"
    save_file({"base_model.model.model.layers.0.q_proj.lora_A.weight": torch.ones(2, 2)}, path)
    with pytest.raises(UserError, match=r"only attn\.c_attn, .* are read"):
        load_adapter(base_gpt(), tmp_path)
    path.write_bytes(b"nothing")
    with pytest.raises(UserError, match="is not a safetensors file"):
        load_adapter(base_gpt(), tmp_path)
    path.unlink()
    with pytest.raises(UserError, match=r"no adapter_model\.safetensors in"):
        load_adapter(base_gpt(), tmp_path)


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


@pytest.mark.parametrize("targets", [["c_attn"], ["c_attn", "c_fc", "c_proj"]])
def test_we_open_an_adapter_of_peft_and_compute_the_same(tmp_path, peft, published, targets):
    config = peft.LoraConfig(
        r=2, lora_alpha=6, target_modules=targets, fan_in_fan_out=True, task_type="CAUSAL_LM"
    )
    theirs = peft.get_peft_model(published, config).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)
        expected = theirs(TOKENS).logits
    theirs.save_pretrained(tmp_path / "adapter")
    ours = load_adapter(base_gpt(), tmp_path / "adapter")
    assert len(adapters(ours)) == (2 if targets == ["c_attn"] else 8)
    with torch.no_grad():
        torch.testing.assert_close(ours(TOKENS), expected, rtol=0, atol=1e-4)


# The flags


@dataclass
class Flags:
    checkpoint_blocks: bool = False
    lora_rank: int = 0
    lora_alpha: float | None = None
    seed: int = 0


def test_a_model_is_fitted_as_the_flags_ask(tmp_path, capsys):
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
    save_adapter(tmp_path, adapted(), "gpt2")
    continued = fit_for_training(Flags(lora_rank=3), base_gpt(), tmp_path)
    assert torch.equal(continued(TOKENS), adapted()(TOKENS))


def test_a_critic_over_a_frozen_model_trains_a_whole_copy_or_adapters_alone():
    scorer = base_gpt().requires_grad_(False)
    whole, light = trunk_to_train(Flags(), scorer), trunk_to_train(Flags(lora_rank=2), scorer)
    assert whole.wte.weight is not scorer.wte.weight and whole.wte.weight.requires_grad
    assert light.wte.weight is scorer.wte.weight and len(adapters(light)) == 8
    assert not adapters(scorer) and torch.equal(light(TOKENS), scorer(TOKENS))
