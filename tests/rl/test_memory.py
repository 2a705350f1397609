"""The formula of rl.memory: its parts against real models, its sum against a measured peak."""

from __future__ import annotations

import pytest
from memory import peaks

from gpt.model import GPT, preset_config
from rl.memory import MemoryConfig, memory, parameters, shape_of


def test_the_weights_are_those_of_a_real_model() -> None:
    shape = shape_of("tiny")
    assert parameters(shape) == GPT(shape).parameter_count()
    assert parameters(preset_config("gpt2-xl", 50257)) == 1_557_611_200  # the published 1.5B
    whole = memory(MemoryConfig("tiny", "ppo"))["update"]  # policy, critic; reference, reward model
    assert whole["weights"] == 4 * 4 * parameters(shape)
    assert whole["gradients"] == whole["weights"] / 2 and whole["Adam"] == whole["weights"]


@pytest.mark.parametrize("engine", ["grpo", "ppo"])
def test_a_measured_peak_is_near_the_forecast(engine) -> None:
    """A copy of the weights, a gradient or a moment too many is 9% of the sum or more."""
    flags = dict(prompts_per_step=4, group_size=2, micro_batch_size=2, max_new_tokens=24)
    measured, forecast = peaks(MemoryConfig("tiny", engine, prompt_tokens=8, **flags))
    assert measured == pytest.approx(forecast, rel=0.07)
