"""What training a model holds in memory at its peak, told before the first step.

The sizes of tensors follow from the shapes, but for what autograd keeps: one block is run, on a CPU, and
asked. docs/lora.md has measured peaks, and rl/memory.py is the command that prints all parts. Letters: V
vocabulary, D width, L layers, P weights of a model, T those of them that are trained.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from data.collate import collate_responses
from gpt.checkpoint import build
from gpt.folder import ModelFolder, weights_of
from gpt.log_probs import CHUNK_ELEMENTS, response_hidden
from gpt.lora import add_adapters
from gpt.model import GPT, PRESETS, GPTConfig
from gpt.recipes import ModelFlags
from harness.console import say_always
from harness.device import free_memory, precision, shapes_alone
from harness.flags import SMALL
from harness.ranks.collectives import world

# Beside the tensors: Python with PyTorch, and the gaps that the C library's heap leaves between them.
PROCESS, GAPS = 0.35e9, 0.2
PROMPT = 128  # tokens of the longest prompt, where no flag limits them
Parts = dict[str, dict[str, int]]
# Flags that save memory: first those that change no result, then that which rounds.
SAVING: dict[str, Any] = {
    "micro_batch_size": 2, "gradient_checkpointing": True, "precision": "bfloat16", "lora_rank": 16,
}  # fmt: skip


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


def rows_of_step(config: Any) -> float:
    """Rows of an optimizer step: answers that were sampled, examples, or both answers of pairs."""
    if hasattr(config, "group_size"):
        return config.prompts_per_step * config.group_size / config.minibatches
    pairs = hasattr(config, "pair_weighting") or hasattr(config, "reward_model")
    return config.batch_size * (2 if pairs else 1)


def answer_tokens(config: Any) -> int:
    """Tokens of the longest answer."""
    sampled: int = getattr(config, "max_new_tokens", 0)
    return sampled or config.max_response_tokens


@cache
def kept(
    shape: GPTConfig, lora_rank: int, checkpointed: bool, dtype: str, layers: int,
    rows: tuple[int, ...], prompt: int, answer: int,
) -> int:  # fmt: skip
    """Bytes that a forward of a model of so many layers keeps for its backward, without its weights.

    `rows` says which prompt each row has: rows of a prompt share it.
    """
    batch = collate_responses([[1 + row] * prompt for row in rows], [[1] * answer] * len(rows), 0)
    with shapes_alone():  # its numbers may be any
        model: GPT = build(replace(shape, n_layer=layers, vocab_size=2 + max(rows)))
    model.to_empty(device="cpu").eval()
    model.gradient_checkpointing = checkpointed
    if lora_rank:
        add_adapters(model, lora_rank)
        model.wte.requires_grad_(True)  # one block alone would have no gradient before its adapters
    held: dict[int, Tensor] = {}

    def keep(x: Tensor) -> Tensor:
        held[x.untyped_storage().data_ptr()] = x.detach()
        return held[x.untyped_storage().data_ptr()]

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        with precision(model.device, dtype):
            hidden = response_hidden(model, batch, batch.predicting_columns)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    del hidden
    return sum(x.untyped_storage().nbytes() for at, x in held.items() if at not in weights)


def activations(
    shape: GPTConfig, config: ModelFlags, rows: int, groups: int, prompt: int, answer: int
) -> int:
    """What all layers keep of so many rows of so many prompts, from one and two of each.

    And from one layer and two; a checkpointed block is computed again, whole.
    """
    again = config.gradient_checkpointing

    def of(*of_prompts: int) -> int:
        def of_layers(layers: int, checkpointed: bool) -> int:
            how = config.lora_rank, checkpointed, config.precision, layers
            return kept(shape, *how, of_prompts, prompt, answer)

        one, two = of_layers(1, again), of_layers(2, again)
        computed = of_layers(1, False) - one if again else 0
        return one + (two - one) * (shape.n_layer - 1) + computed

    one, other = of(0), of(0, 1)
    same = of(0, 0) if rows > groups else one  # else each row has a prompt of its own
    of_prompt, of_answer = other - same, same - one
    return one + (groups - 1) * of_prompt + (rows - 1) * of_answer


def memory_of(config: Any, shape: GPTConfig, prompt_tokens: int = PROMPT, others: int = 0) -> Parts:
    """The bytes of every part while a run samples and while it updates: one of them is its peak.

    `config` is a command's, `others` the bytes of models beside the trained one and its start.
    """
    V, D, L = shape.vocab_size, shape.n_embd, shape.n_layer
    P, linear, adapters = numbers(shape, config.lora_rank)
    half, steers = config.precision == "bfloat16", hasattr(config, "reward_model")

    learners = 2 if hasattr(config, "critic_lr") else 1  # policy and critic
    T, head = learners * P, V * D
    weights = learners * 4 * P + (4 * P - 2 * linear * half) * steers  # the start is only read
    if config.lora_rank:  # policy, start and critic lend each other the frozen weights
        T, head = learners * adapters, 0
        weights = 4 * P + 4 * (learners + steers) * adapters
    held = {"weights": weights + others, "Adam": 8 * T}
    if getattr(config, "kl_limits", None):  # the policy before the newest update
        held["KL limit"] = 4 * (adapters if config.lora_rank else P)

    answer = min(answer_tokens(config), shape.context - 1)
    prompt = max(min(prompt_tokens, shape.context - answer), 1)
    rows_of_update = math.ceil(rows_of_step(config))
    rows = min(config.micro_batch_size or rows_of_update, rows_of_update)  # of a forward
    groups = math.ceil(rows / getattr(config, "group_size", 1))
    columns, number = prompt + answer, 2 if half else 4
    sampling = {}
    if hasattr(config, "group_size"):
        evaluated = min(
            max(config.eval_prompts, config.test_prompts), 8 * config.micro_batch_size, 256
        )
        answers = max(config.prompts_per_step * config.group_size, evaluated)
        width = shape.head_width * shape.cached_heads
        sampling = {
            "cache": 2 * number * L * width * answers * columns,  # keys and values
            "logits": 2 * 4 * answers * V,  # logits and softmax, or this and its running sum
        }

    several = rows < rows_of_update  # forwards of an optimizer step
    # Of the logits that are formed together.
    chunk = min(rows * answer * V, max(CHUNK_ELEMENTS, V))
    update = {
        "gradients": 4 * T if several else 0,
        "activations": activations(shape, config, rows, groups, prompt, answer) * learners,
        # Of the forward; of the backward, with the head's gradient.
        "logits": max(4 * 4 * chunk, 4 * (2 * chunk + 2 * head)),
    }
    if sum(update.values()) < 4 * T:  # the end of the backward pass, where nothing else is left
        update = {"gradients": 4 * T}
    return {"sampling": held | sampling, "update": held | update}


def resident(parts: dict[str, dict[str, int]]) -> float:
    """The process's peak on a CPU, in bytes, of what `memory` gives."""
    return PROCESS + (1 + GAPS) * max(sum(phase.values()) for phase in parts.values())


def warn_of_memory(config: ModelFlags, device: torch.device) -> None:
    """Say in a sentence that a run will not fit, and which flags help; nothing of a small model.

    Rows of full length are assumed, and reward models and teachers as large as their files.
    """
    shape = ModelFolder.open(config.model).shape if config.model else PRESETS.get(config.preset)
    if shape is None or numbers(shape)[0] < SMALL:
        return
    others = sum(weights_of(name) for name in config.named_models() if name != config.model)
    prompt = getattr(config, "max_prompt_tokens", PROMPT)

    def needed(changed: ModelFlags) -> float:
        bytes_of_others = (2 if changed.precision == "bfloat16" else 4) * others
        with torch.random.fork_rng(devices=[]):  # adapters draw numbers
            parts = memory_of(changed, shape, prompt, bytes_of_others)
        if device.type == "cpu":
            return world() * (resident(parts) - PROCESS)
        return max(sum(phase.values()) for phase in parts.values())

    free, total = free_memory(device), needed(config)
    if total <= free:
        return
    left = [(name, value) for name, value in SAVING.items() if saves(config, name)]
    several = [dict(left[:count]) for count in range(2, len(left) + 1)]
    help_of = "no flag of this command makes it fit, a smaller model or a larger machine does"
    for flags in [*({name: value} for name, value in left), *several]:
        if (less := needed(replace(config, **flags))) <= free:
            help_of = f"{' '.join(typed(*flag) for flag in flags.items())} needs {less / 1e9:.1f}"
            break
    say_always(
        f"warning: this needs about {total / 1e9:.1f} GB where rows have their full length, and "
        f"{free / 1e9:.1f} are free: {help_of}"
    )


def saves(config: ModelFlags, name: str) -> bool:
    """Whether a flag of `SAVING` may be set, and is not yet."""
    now, value = getattr(config, name), SAVING[name]
    if name == "micro_batch_size":
        return now is None or now > value
    return not now or name == "precision" and now != value


def typed(name: str, value: object) -> str:
    """A flag as it is typed."""
    return f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
