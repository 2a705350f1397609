"""What rl.memory says: its parts against real models, its sum against a measured peak."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from memory import peaks
from toys import kept_for_backward

from gpt.checkpoint import save_gpt
from gpt.llama import Llama, LlamaConfig
from gpt.lora import add_adapters
from gpt.model import GPT, GPTConfig, KVCache, preset_config
from gpt.published import save_gpt2
from gpt.tokenizer import load_tokenizer
from harness.errors import UserError
from harness.paths import MODEL_FILE
from rl.memory import MemoryConfig, activations, config_of, forward_batch, memory, numbers, shape_of


def test_the_weights_are_those_of_a_real_model() -> None:
    shape = shape_of("tiny")
    assert numbers(shape)[0] == GPT(shape).parameter_count()
    assert numbers(preset_config("gpt2-xl", 50257))[0] == 1_557_611_200  # the published 1.5B
    whole = memory(MemoryConfig("tiny", "ppo"))["update"]  # policy, critic; reference, reward model
    assert whole["weights"] == 4 * 4 * numbers(shape)[0]
    assert whole["gradients"] == whole["weights"] / 2 and whole["Adam"] == whole["weights"]


def test_adapters_are_those_of_a_real_model() -> None:
    model = GPT(shape_of("tiny"))
    add_adapters(model, rank=5)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert memory(MemoryConfig("tiny", lora_rank=5))["update"]["Adam"] == 2 * 4 * trained


def test_the_cache_is_that_of_a_real_one() -> None:
    sizes = dict(prompts_per_step=3, micro_batch_size=3)  # of which 8 are evaluated together
    flags = MemoryConfig("tiny", prompt_tokens=5, max_new_tokens=6, **sizes)
    real = KVCache(
        shape_of("tiny"), rows=24, columns=11, device=torch.device("cpu"), dtype=torch.float32
    )
    stored = real.keys.nbytes + real.values.nbytes
    assert memory(flags)["sampling"]["cache"] == stored


@pytest.mark.parametrize("flags", [{}, {"checkpoint_blocks": True}, {"lora_rank": 2}], ids=str)
def test_activations_are_those_of_all_layers(flags) -> None:
    """Two small models are asked, and what they say is true of a deeper one."""
    case = MemoryConfig("tiny", group_size=2, micro_batch_size=4, max_new_tokens=9, **flags)
    config, shape = config_of(case), GPTConfig(5, 64, n_layer=4, n_head=2, n_embd=64)
    batch = forward_batch(config, 20, shape.context)
    model = GPT(shape)
    model.checkpoint_blocks = config.checkpoint_blocks
    if config.lora_rank:
        add_adapters(model, config.lora_rank)
    real = kept_for_backward(model, batch.shared.tokens, batch.shared)
    said = activations(shape, config, batch)
    if config.checkpoint_blocks:  # and one block as its backward computes it again
        block = GPT(replace(shape, n_layer=1))
        real += kept_for_backward(block, batch.shared.tokens, batch.shared)
    assert said == pytest.approx(real, rel=0.08)


def llama(folder: Path) -> str:
    shape = LlamaConfig(300, 64, n_layer=3, n_head=4, n_embd=64, n_key_head=2, n_inner=160)
    save_gpt2(Llama(shape), folder)
    return str(folder)


def test_the_shape_is_read_from_folders_of_published_weights_and_of_runs(tmp_path) -> None:
    assert numbers(shape_of(llama(tmp_path / "hub")))[0] == 300 * 64 + 3 * 43_136 + 64
    model = GPT(preset_config("tiny", load_tokenizer("glassbox").n_vocab))
    save_gpt(tmp_path / MODEL_FILE, model, load_tokenizer("glassbox"))
    assert shape_of(str(tmp_path)) == shape_of(str(tmp_path / MODEL_FILE)) == model.config
    with pytest.raises(UserError):
        shape_of(str(tmp_path / "nothing"))


FLAGS = dict(prompts_per_step=4, group_size=2, micro_batch_size=2, max_new_tokens=24)


@pytest.mark.parametrize("engine", ["grpo", "ppo"])
def test_a_measured_peak_is_near_the_forecast(engine) -> None:
    """A copy of the weights, a gradient or a moment too many is 9% of the sum or more."""
    measured, forecast = peaks(MemoryConfig("tiny", engine, prompt_tokens=8, **FLAGS))
    assert measured == pytest.approx(forecast, rel=0.07)


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_a_llama_in_bfloat16_whose_groups_share_prompts(lora_rank, tmp_path) -> None:
    flags = FLAGS | dict(
        group_size=4, micro_batch_size=8, precision="bfloat16", lora_rank=lora_rank
    )
    case = MemoryConfig(llama(tmp_path), prompt_tokens=32, **flags)
    measured, forecast = peaks(case)
    assert measured == pytest.approx(forecast, rel=0.1)
