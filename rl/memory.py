"""What a run of GRPO or PPO holds in memory at its peak, told before it starts.

    python -m rl.memory runs/smollm2 --data instructions      a run's folder, or published weights
    python -m rl.memory gpt2                                  a preset
    python -m rl.memory gpt2-xl --engine ppo --lora-rank 16 --gradient-checkpointing

The sizes of tensors follow from the shapes, but for what autograd keeps: one block is run, on a CPU, and
asked. docs/lora.md has measured peaks. Letters: V vocabulary, D width, L layers, P weights of a model,
T those of them that are trained.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from data.collate import ResponseBatch, collate_responses
from data.sources import USUAL, Data
from gpt.checkpoint import build
from gpt.folder import ModelFolder
from gpt.log_probs import CHUNK_ELEMENTS, response_hidden
from gpt.lora import add_adapters
from gpt.model import GPT, PRESETS, GPTConfig
from gpt.recipes import config_of
from harness.command_line import run_command
from harness.device import precision, shapes_alone
from harness.flags import AtLeastOne, Count
from rl import grpo_engine, ppo_engine

ENGINES = {"grpo": grpo_engine.ENGINE, "ppo": ppo_engine.ENGINE}
# Beside the tensors: Python with PyTorch, and the gaps that the C library's heap leaves between them.
PROCESS, GAPS = 0.35e9, 0.2


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


def engine_config(flags: MemoryConfig) -> Any:
    """The engine's config: its preset, with the flags that are given."""
    engine, ours = ENGINES[flags.engine], ("model", "engine", "prompt_tokens", "reward_models")
    given = {k: v for k, v in vars(flags).items() if k not in ours and v is not None}
    named = {"preset" if flags.model in PRESETS else "model": flags.model}
    return config_of(engine.config, **named, **given)


def numbers(shape: GPTConfig, lora_rank: int = 0) -> tuple[int, int, int]:
    """A model's weights, those of them in linear layers, and LoRA's; the tied head is counted once."""
    with shapes_alone():
        model = build(shape)
    linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
    widths = sum(m.in_features + m.out_features for m in linear)
    return (
        model.parameter_count(),
        sum(p.numel() for m in linear for p in m.parameters()),
        lora_rank * widths,
    )


def forward_batch(config: Any, prompt_tokens: int, context: int) -> ResponseBatch:
    """The largest forward of an update: whole groups, all rows of full length."""
    rows = config.prompts_per_step * config.group_size
    at_once = min(config.micro_batch_size, math.ceil(rows / config.minibatches))
    prompt = max(min(prompt_tokens, context - config.max_new_tokens), 1)
    prompts = [[1 + row // config.group_size] * prompt for row in range(at_once)]
    return collate_responses(prompts, [[1] * config.max_new_tokens] * at_once, 0)


def kept(shape: GPTConfig, config: Any, batch: ResponseBatch, layers: int) -> int:
    """Bytes that a forward of a model of so many layers keeps for its backward, without its weights."""
    vocabulary = 2 + int(batch.tokens.max())
    model: GPT = build(replace(shape, n_layer=layers, vocab_size=vocabulary)).eval()
    model.gradient_checkpointing = config.gradient_checkpointing
    if config.lora_rank:
        add_adapters(model, config.lora_rank)
        model.wte.requires_grad_(True)  # one block alone would have no gradient before its adapters
    held: dict[int, Tensor] = {}

    def keep(x: Tensor) -> Tensor:
        held[x.untyped_storage().data_ptr()] = x.detach()
        return held[x.untyped_storage().data_ptr()]

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        with precision(model.device, config.precision):
            hidden = response_hidden(model, batch, batch.predicting_columns)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    del hidden
    return sum(x.untyped_storage().nbytes() for at, x in held.items() if at not in weights)


def activations(shape: GPTConfig, config: Any, batch: ResponseBatch) -> int:
    """What all layers keep, from one and two of them; a checkpointed block is computed again, whole."""
    one, two = (kept(shape, config, batch, layers) for layers in (1, 2))
    again = kept(shape, replace(config, gradient_checkpointing=False), batch, 1) - one
    return one + (two - one) * (shape.n_layer - 1) + (again if config.gradient_checkpointing else 0)


def memory(flags: MemoryConfig) -> dict[str, dict[str, int]]:
    """The bytes of every part while the run samples and while it updates: one of them is its peak."""
    shape, config = shape_of(flags.model), engine_config(flags)
    V, D, L = shape.vocab_size, shape.n_embd, shape.n_layer
    P, linear, adapters = numbers(shape, config.lora_rank)
    rows = config.prompts_per_step * config.group_size
    half = config.precision == "bfloat16"
    frozen = 4 * P - 2 * linear * half  # a model that is only read

    learners = 2 if flags.engine == "ppo" else 1  # policy and critic
    T, head = learners * P, V * D
    weights = learners * 4 * P + frozen * (1 + flags.reward_models)  # 1: the start
    if config.lora_rank:  # policy, start and critic lend each other the frozen weights
        T, head = learners * adapters, 0
        weights = 4 * P + 4 * (learners + 1) * adapters + frozen * flags.reward_models
    held = {"weights": weights, "Adam": 8 * T}
    if config.kl_limits:  # the policies before and after the newest update
        held["KL limit"] = 2 * 4 * (adapters if config.lora_rank else P)

    batch = forward_batch(config, flags.prompt_tokens, shape.context)
    columns, number = batch.tokens.shape[1], 2 if half else 4
    evaluated = min(max(config.eval_prompts, config.test_prompts), 8 * config.micro_batch_size, 256)
    answers = max(rows, evaluated)
    width = shape.head_width * shape.cached_heads
    sampling = {
        "cache": 2 * number * L * width * answers * columns,  # keys and values
        "logits": 4 * 4 * answers * V,  # logits, over the temperature, softmax, running sum
    }

    several = len(batch) < math.ceil(rows / config.minibatches)  # forwards of an optimizer step
    # Of the logits that are formed together.
    chunk = min(batch.response_mask.numel() * V, max(CHUNK_ELEMENTS, V))
    update = {
        "gradients": 4 * T if several else 0,
        "activations": activations(shape, config, batch) * learners,
        # Of the forward; of the backward, with the head's gradient.
        "logits": max(4 * 4 * chunk, 4 * (2 * chunk + 2 * head)),
    }
    if sum(update.values()) < 4 * T:  # the end of the backward pass, where nothing else is left
        update = {"gradients": 4 * T}
    return {"sampling": held | sampling, "update": held | update}


def resident(parts: dict[str, dict[str, int]]) -> float:
    """The process's peak on a CPU, in bytes, of what `memory` gives."""
    return PROCESS + (1 + GAPS) * max(sum(phase.values()) for phase in parts.values())


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
