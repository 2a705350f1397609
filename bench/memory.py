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
from gpt.lora import fit_for_training, frozen_copy
from gpt.model import GPT
from reward_model.scalar_head import RewardModel
from rl.actor_critic import ValueModel
from rl.loop import Run
from rl.memory import ENGINES, MemoryConfig, config_of, memory, shape_of
from rl.rewards.model import RewardModelReward

FEW: Any = dict(prompts_per_step=2, group_size=2, micro_batch_size=2)
CASES = {
    "tiny, GRPO": MemoryConfig("tiny", prompt_tokens=8),
    "tiny, PPO": MemoryConfig("tiny", "ppo", prompt_tokens=8),
    "small, GRPO, 4 rows of 32": MemoryConfig("small", prompt_tokens=8, max_new_tokens=24, **FEW),
    "gpt2, GRPO, 4 rows of 32": MemoryConfig("gpt2", prompt_tokens=8, max_new_tokens=24, **FEW),
    "the same, `--lora-rank 8`": MemoryConfig(
        "gpt2", prompt_tokens=8, max_new_tokens=24, lora_rank=8, **FEW
    ),
    "the same, `--checkpoint-blocks` too": MemoryConfig(
        "gpt2", prompt_tokens=8, max_new_tokens=24, lora_rank=8, checkpoint_blocks=True, **FEW
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
    config = replace(config_of(case), steps=2, stop_kl=None)
    policy = GPT(shape_of(case.preset)).initialize(torch.Generator().manual_seed(0)).eval()
    judge = RewardModel.from_policy(policy).eval().requires_grad_(False)
    policy = fit_for_training(config, policy)
    reference, models = frozen_copy(policy), dict[str, Any]()
    if case.engine == "ppo":
        models["value_model"] = ValueModel.from_policy(policy)
    numbers: Any = Numbers(policy.config.vocab_size)
    records = [PromptRecord("1 " * case.prompt_tokens)] * config.prompts_per_step
    with LiveBytes(policy, judge, reference, *models.values()) as live:
        reward = RewardModelReward(judge)
        run = Run(config, policy, numbers, reward, records, start=reference)
        ENGINES[case.engine].train(run, **models)
    return live.peak, max(sum(parts.values()) for parts in memory(case).values())


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print("| case | measured, MB | forecast, MB | ratio |\n| --- | --- | --- | --- |")
    for name, case in CASES.items():
        found, said = peaks(case)
        print(f"| {name} | {found / 1e6:,.0f} | {said / 1e6:,.0f} | {said / found:.2f} |")
