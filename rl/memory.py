"""What a run of GRPO or PPO holds in memory at its peak, told before it starts.

    python -m rl.memory runs/smollm2 --data instructions      a run's folder, or published weights
    python -m rl.memory gpt2                                  a preset
    python -m rl.memory gpt2-xl --engine ppo --lora-rank 16 --gradient-checkpointing

gpt/memory.py computes it, and every command that trains asks it before its first step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from data.sources import USUAL, Data
from gpt.folder import ModelFolder
from gpt.memory import Parts, memory_of, numbers, resident
from gpt.model import PRESETS, GPTConfig
from gpt.recipes import config_of
from harness.command_line import run_command
from harness.flags import AtLeastOne, Count
from rl import grpo_engine, ppo_engine
from rl.run.config import RunFlags

ENGINES = {"grpo": grpo_engine.ENGINE, "ppo": ppo_engine.ENGINE}


@dataclass(frozen=True)
class MemoryConfig:
    """Compute the memory of a run of GRPO or PPO with a reward model of the policy's size."""

    model: str
    """A preset, or the policy: a run, a folder in Hugging Face's layout, hf://OWNER/NAME. All models have
    its size."""
    engine: Literal["grpo", "ppo"] = "grpo"
    """ppo trains a critic, too."""
    data: Data = USUAL
    """A world, whose settings the run has."""
    prompt_tokens: AtLeastOne = 128
    """Tokens of the longest prompt."""
    reward_models: Count = 1
    """How many pay; 0: a rule or a function does."""
    max_new_tokens: AtLeastOne | None = None
    """Tokens of the longest answer; default: the preset's. So for the flags below."""
    prompts_per_step: AtLeastOne | None = None
    """Prompts per rollout batch."""
    group_size: AtLeastOne | None = None
    """Responses per prompt."""
    micro_batch_size: AtLeastOne | None = None
    """Rows per forward pass."""
    lora_rank: Count | None = None
    """Rank of LoRA's adapters; 0 trains all weights."""
    precision: Literal["float32", "bfloat16"] | None = None
    """Precision of the computations; frozen models have their linear layers in it."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass."""


def shape_of(model: str) -> GPTConfig:
    """The shape of a preset, or of a model."""
    return PRESETS[model] if model in PRESETS else ModelFolder.open(model).shape


def engine_config(flags: MemoryConfig) -> RunFlags:
    """The engine's config: its preset, with the flags that are given."""
    engine, ours = ENGINES[flags.engine], ("model", "engine", "prompt_tokens", "reward_models")
    given = {k: v for k, v in vars(flags).items() if k not in ours and v is not None}
    named = {"preset" if flags.model in PRESETS else "model": flags.model}
    return config_of(engine.config, **named, **given)


def memory(flags: MemoryConfig) -> Parts:
    """`memory_of` of what the flags say."""
    shape, config = shape_of(flags.model), engine_config(flags)
    P, linear, _ = numbers(shape)
    judge = 4 * P - 2 * linear * (config.precision == "bfloat16")
    return memory_of(config, shape, flags.prompt_tokens, flags.reward_models * judge)


def main(flags: MemoryConfig) -> None:
    """Print both sums and their parts."""
    parts = memory(flags)
    for name, phase in parts.items():
        sizes = ", ".join(f"{part} {size / 1e9:.2f}" for part, size in phase.items())
        print(f"{name:8} {sum(phase.values()) / 1e9:6.2f} GB: {sizes}")
    print(
        f"on a CPU about {resident(parts) / 1e9:.1f} GB resident, with Python and gaps between tensors"
    )


if __name__ == "__main__":
    run_command(main, MemoryConfig)
