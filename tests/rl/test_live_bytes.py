"""The memory forecast of every engine against the bytes that its tensors really hold at the peak."""

from __future__ import annotations

import weakref
from dataclasses import replace

import pytest
import torch
import torch.nn as nn
from engines import ENGINES, SHARE_OF_A, Engine
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from toys import LETTERS, seeded

from gpt.model import GPT, GPTConfig
from reward_model.pairs import TokenPair
from rl.commands.engines import every_engine
from rl.training.memory_needs import Given, engine_forecast

pytestmark = pytest.mark.filterwarnings("ignore:with one update a batch")

SHAPE = GPTConfig(LETTERS.n_vocab, context=64, n_layer=3, n_head=2, n_embd=96)
ENTRIES = {entry.name: entry for entry in every_engine()}
LONGEST_PROMPT, ANSWER = 5, 48


class LiveBytes(TorchDispatchMode):
    """Inside, `peak` is the most that all tensors held at once: real ones, in the backward pass too."""

    def __init__(self, *held: nn.Module) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.now = self.peak = 0
        for tensor in (p for model in held for p in model.parameters()):
            self.note(tensor)

    def note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.sizes:
            self.sizes[storage._cdata] = storage.nbytes()
            weakref.finalize(storage, self.gone, storage._cdata)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)

    def gone(self, storage: int) -> None:
        self.now -= self.sizes.pop(storage)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.note(leaf)
        return result


def endless_gpt(seed: int) -> GPT:
    """A model whose responses are all as long as they may be."""
    model = GPT(SHAPE).initialize(seeded(seed)).eval()
    model.ln_f.weight.data[0], model.ln_f.bias.data[0] = 0, 1
    model.wte.weight.data[LETTERS.eos_id, 0] = -50
    return model


IN_PASSES = [pytest.param(engine, 4, id=engine.name) for engine in ENGINES]
IN_ONE = [
    pytest.param(engine, 16, id=f"{engine.name} in one")
    for engine in ENGINES
    if engine.name in ("grpo", "ppo", "minillm")
]


@pytest.mark.parametrize(("engine", "micro"), IN_PASSES + IN_ONE)
def test_the_peak_of_two_steps_is_the_forecast(engine: Engine, micro: int) -> None:
    """16 rows in four passes a step, and in one: a model, a gradient or a pass too many is 10% or more."""
    prompts, group = (4, 4) if engine.grouped else (16, 1)
    wished = dict(
        steps=2, minibatches=1, updates_per_batch=1, prompts_per_step=prompts, group_size=group,
        batch_size=8, micro_batch_size=micro, max_new_tokens=ANSWER, eval_prompts=0, test_prompts=0,
        lr=1e-8, critic_lr=1e-8, warmup=0,
    )  # fmt: skip
    flags = {name: value for name, value in wished.items() if engine.has(name)}
    config, entry = engine.configured(**flags), ENTRIES[engine.name]
    policy, start = endless_gpt(0), endless_gpt(0).requires_grad_(False)
    held, given = [policy, start], {"reference": start} if entry.reference(config) else {}
    shape = None
    if engine.teacher is not None:
        shape, teacher = SHAPE, endless_gpt(1).requires_grad_(False)
        engine, held = replace(engine, teacher=teacher), [*held, teacher]
    answers = [[0, 1, 2, 3] * (ANSWER // 4), [3, 4, 5, 6] * (ANSWER // 4)]
    for pairs in {"pairs", "offline_pairs"} & engine.task.keys():
        given[pairs] = [TokenPair([0] * LONGEST_PROMPT, *answers)] * 8
    with LiveBytes(*held) as live:
        engine.run(policy, SHARE_OF_A if engine.rule else None, **flags, **given)
    about = Given(SHAPE, teacher=shape, prompt_tokens=LONGEST_PROMPT)
    forecast = replace(engine_forecast(entry, config, about), gaps=0.0)
    said = forecast.peak - forecast.parts[forecast.at].libraries
    assert live.peak == pytest.approx(said, rel=0.07)
