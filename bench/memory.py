"""Measured peaks of memory beside rl/memory.py's formula, on the CPU: `python bench/memory.py`.

A case is two steps on random weights with answers of full length. Measured is the largest number of
bytes that all tensors held together, models included, in the backward pass too.
"""

from __future__ import annotations

import argparse
import weakref
from dataclasses import replace
from typing import Any

import torch
from sides import Numbers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from data.records import PromptRecord
from gpt.checkpoint import build
from reward_model.scalar_head import RewardModel
from rl.loop import Run
from rl.memory import ENGINES, MemoryConfig, engine_config, memory, shape_of
from rl.rewards.model import RewardModelReward
from rl.run.engine import models_of_run
from rl.run.task import Task

FEW: Any = dict(prompts_per_step=2, group_size=2, micro_batch_size=2)
CASES = {
    "tiny, GRPO": MemoryConfig("tiny", prompt_tokens=8),
    "tiny, PPO": MemoryConfig("tiny", "ppo", prompt_tokens=8),
    "small, GRPO, 4 rows of 32": MemoryConfig("small", prompt_tokens=8, max_new_tokens=24, **FEW),
    "gpt2, GRPO, 4 rows of 32": MemoryConfig("gpt2", prompt_tokens=8, max_new_tokens=24, **FEW),
    "the same, `--lora-rank 8`": MemoryConfig(
        "gpt2", prompt_tokens=8, max_new_tokens=24, lora_rank=8, **FEW
    ),
    "the same, `--gradient-checkpointing` too": MemoryConfig(
        "gpt2", prompt_tokens=8, max_new_tokens=24, lora_rank=8, gradient_checkpointing=True, **FEW
    ),
}


class LiveBytes(TorchDispatchMode):
    """Inside, `peak` is the most bytes that all tensors held at once, those of `models` included."""

    def __init__(self, *models: torch.nn.Module) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.peak = 0
        self.note([p for model in models for p in model.parameters()])

    def note(self, tensors: Any) -> None:
        for storage in (x.untyped_storage() for x in tree_leaves(tensors) if torch.is_tensor(x)):
            if storage._cdata not in self.sizes:
                self.sizes[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.sizes.pop, storage._cdata)
                self.peak = max(self.peak, sum(self.sizes.values()))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.note(result)
        return result


def peaks(case: MemoryConfig) -> tuple[int, int]:
    """(measured, forecast) bytes of two steps."""
    engine, config = ENGINES[case.engine], replace(engine_config(case), steps=2)
    torch.manual_seed(0)
    policy = build(shape_of(case.model)).eval()
    torch.nn.init.normal_(policy.wte.weight, std=0.02)
    judge = RewardModel.from_policy(policy).eval().requires_grad_(False)
    numbers: Any = Numbers(policy.config.vocab_size)
    prompts = [f"{i} " * case.prompt_tokens for i in range(config.prompts_per_step)]
    records, reward = (
        [PromptRecord(p) for p in prompts],
        RewardModelReward(judge, 2, config.precision),
    )
    start, parts = models_of_run(engine, config, Task(policy, numbers, {}, reward, None))
    models = [each for each in parts.values() if isinstance(each, torch.nn.Module)]
    with LiveBytes(policy, judge, start, *models) as live:
        engine.train(Run(config, policy, numbers, reward, records, start=start), **parts)
    return live.peak, max(sum(parts.values()) for parts in memory(case).values())


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print("| case | measured, MB | forecast, MB | ratio |\n| --- | --- | --- | --- |")
    for name, case in CASES.items():
        found, said = peaks(case)
        print(f"| {name} | {found / 1e6:,.0f} | {said / 1e6:,.0f} | {said / found:.2f} |")
