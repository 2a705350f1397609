"""The formula of rl.memory: its parts against real models, its sum against a measured peak."""

from __future__ import annotations

import pytest
import torch
from memory import peaks
from toys import kept_for_backward

from gpt.lora import add_adapters
from gpt.model import GPT, GPTConfig, KVCache, preset_config
from rl.memory import MemoryConfig, memory, parameters, shape_of


def test_the_weights_are_those_of_a_real_model() -> None:
    shape = shape_of("tiny")
    assert parameters(shape) == GPT(shape).parameter_count()
    assert parameters(preset_config("gpt2-xl", 50257)) == 1_557_611_200  # the published 1.5B
    whole = memory(MemoryConfig("tiny", "ppo"))["update"]  # policy, critic; reference, reward model
    assert whole["weights"] == 4 * 4 * parameters(shape)
    assert whole["gradients"] == whole["weights"] / 2 and whole["Adam"] == whole["weights"]


def test_adapters_are_those_of_a_real_model() -> None:
    model = GPT(shape_of("tiny"))
    add_adapters(model, rank=5)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert memory(MemoryConfig("tiny", lora_rank=5))["update"]["Adam"] == 2 * 4 * trained


def test_the_cache_is_that_of_a_real_one() -> None:
    flags = MemoryConfig("tiny", prompt_tokens=5, max_new_tokens=6, prompts_per_step=3)
    real = KVCache(
        shape_of("tiny"), rows=24, columns=11, device=torch.device("cpu"), dtype=torch.float32
    )
    stored = real.keys.nbytes + real.values.nbytes
    assert memory(flags)["sampling"]["cache"] == stored


@pytest.mark.parametrize("checkpoint", [False, True])
def test_activations_are_those_that_autograd_keeps(checkpoint: bool) -> None:
    """A layer more costs what the formula says, within the few numbers a LayerNorm keeps of a row."""
    sizes = []
    for layers in (2, 3):
        shape = GPTConfig(vocab_size=31, context=64, n_layer=layers, n_head=2, n_embd=128)
        model = GPT(shape).initialize()
        model.checkpoint_blocks = checkpoint
        sizes.append(kept_for_backward(model, torch.randint(31, (4, 64))))
    per_layer = 4 if checkpoint else 64
    assert (sizes[1] - sizes[0]) / (4 * 64 * 128) == pytest.approx(per_layer, rel=0.06)


@pytest.mark.parametrize("engine", ["grpo", "ppo"])
def test_a_measured_peak_is_near_the_forecast(engine) -> None:
    """A copy of the weights, a gradient or a moment too many is 9% of the sum or more."""
    flags = dict(prompts_per_step=4, group_size=2, micro_batch_size=2, max_new_tokens=24)
    measured, forecast = peaks(MemoryConfig("tiny", engine, prompt_tokens=8, **flags))
    assert measured == pytest.approx(forecast, rel=0.07)
