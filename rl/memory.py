"""What a run of GRPO or PPO holds in memory at its peak, from the shapes alone.

    python -m rl.memory --preset gpt2
    python -m rl.memory --preset gpt2-xl --engine ppo --lora-rank 16 --checkpoint-blocks

Bytes of tensors in float32, without what PyTorch, CUDA and gaps between tensors take. docs/lora.md
has measured peaks. Letters: V vocabulary, C context, D width, L layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from data.sources import from_preset
from gpt.log_probs import CHUNK_ELEMENTS
from gpt.model import GPTConfig, Preset, preset_config
from gpt.tokenizer import load_tokenizer
from gpt.tokenizer_training import OWN_VOCABULARY
from harness.command_line import run_command
from harness.flags import AtLeastOne, Count
from rl import grpo_engine, ppo_engine

FLOAT = 4
ENGINES = {"grpo": grpo_engine.ENGINE, "ppo": ppo_engine.ENGINE}


@dataclass(frozen=True)
class MemoryConfig:
    """Compute the memory of a run of GRPO or PPO with a reward model of the policy's size."""

    preset: Preset = "gpt2"
    """Size of all models."""
    engine: Literal["grpo", "ppo"] = "grpo"
    """ppo trains a critic, too."""
    prompt_tokens: AtLeastOne = 128
    """Tokens of the longest prompt."""
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
    checkpoint_blocks: bool = False
    """Compute activations again in the backward pass."""


def shape_of(preset: Preset) -> GPTConfig:
    """The preset's shape with the vocabulary that its models have."""
    if preset in ("tiny", "study"):
        return preset_config(preset, load_tokenizer("glassbox").n_vocab)
    return preset_config(preset, OWN_VOCABULARY if preset == "own" else 50257)


def config_of(flags: MemoryConfig) -> Any:
    """The engine's config: its preset, with the flags that are given."""
    engine, ours = ENGINES[flags.engine], ("preset", "engine", "prompt_tokens")
    given = {k: v for k, v in vars(flags).items() if k not in ours and v is not None}
    return from_preset(engine.config, engine.presets, flags.preset, **given)


def parameters(shape: GPTConfig) -> int:
    """VD + CD + L (12 D^2 + 13 D) + 2D, the tied head counted once."""
    V, C, D, L = shape.vocab_size, shape.context, shape.n_embd, shape.n_layer
    return V * D + C * D + L * (12 * D * D + 13 * D) + 2 * D


def memory(flags: MemoryConfig) -> dict[str, dict[str, int]]:
    """The bytes of every part while the run samples and while it updates: one of them is its peak."""
    shape, config = shape_of(flags.preset), config_of(flags)
    V, D, L = shape.vocab_size, shape.n_embd, shape.n_layer
    rows, answer = config.prompts_per_step * config.group_size, config.max_new_tokens
    tokens = min(flags.prompt_tokens + answer, shape.context)

    learners = 2 if flags.engine == "ppo" else 1  # policy and critic
    models = learners + 2  # a reference and a reward model, which stay as they are
    weights, trained, head = models * parameters(shape), learners * parameters(shape), V * D
    if config.lora_rank:  # at D x 3D, D x D, D x 4D and 4D x D of each layer
        adapter = 16 * config.lora_rank * D * L
        # Policy and reward model lend their weights to the others.
        weights = 2 * parameters(shape) + (models - 1) * adapter
        trained, head = learners * adapter, 0
    held = {"weights": weights, "gradients": trained, "Adam": 2 * trained}

    sampling = {
        "cache": 2 * L * D * rows * tokens,  # keys and values
        "logits": 4 * rows * V,  # logits, over the temperature, softmax, running sum
    }

    at_once = min(config.micro_batch_size, math.ceil(rows / config.minibatches))
    # For its backward pass a block keeps 16 numbers for each token and unit of the width, or its input
    # alone, and then one block at a time is computed again. The last 1 is the final LayerNorm's.
    kept = (L + 16 if config.checkpoint_blocks else 16 * L) + 1
    chunk = min(at_once * answer * V, max(CHUNK_ELEMENTS, V))  # of logits that are formed together
    update = {
        "activations": at_once * tokens * D * kept * learners,
        # Forward; backward with the head's gradient.
        "logits": max(4 * chunk, 2 * chunk + 2 * head),
    }
    return {
        name: {part: FLOAT * count for part, count in (held | phase).items()}
        for name, phase in (("sampling", sampling), ("update", update))
    }


def main(flags: MemoryConfig) -> None:
    """Print both sums and their parts."""
    for name, parts in memory(flags).items():
        sizes = ", ".join(f"{part} {size / 1e9:.2f}" for part, size in parts.items())
        print(f"{name:8} {sum(parts.values()) / 1e9:6.2f} GB: {sizes}")


if __name__ == "__main__":
    run_command(main, MemoryConfig)
