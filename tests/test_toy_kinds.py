"""A world, a kind of rewards and a kind of models are one file each, which nothing names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import data.worlds
import gpt
from data.sources import Source, world_names, world_source
from gpt import finetuning, model, pretraining
from gpt.checkpoint import load_gpt, save_gpt
from gpt.model import GPT
from gpt.recipes import config_of
from gpt.tokenizer import load_tokenizer
from harness.files import read_jsonl
from harness.paths import MODEL_FILE, REPOSITORY
from reward_model import reward_model_training
from rl import dpo_engine, grpo_engine, ppo_engine, rewards
from rl.rewards.reward import check_reward
from rl.talk import Talk, TalkConfig

# A GPT-2 with RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467) in the place of LayerNorm.
MODEL_CODE = """
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gpt.model import GPT, GPTConfig


@dataclass(frozen=True)
class RMSConfig(GPTConfig):
    norm_eps: float = 1e-6


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()


class RMSGPT(GPT):
    def __init__(self, config: RMSConfig) -> None:
        super().__init__(config)
        for block in self.h:
            block.ln_1 = RMSNorm(config.n_embd, config.norm_eps)
            block.ln_2 = RMSNorm(config.n_embd, config.norm_eps)
        self.ln_f = RMSNorm(config.n_embd, config.norm_eps)


MODEL, SHAPE = RMSGPT, RMSConfig
"""
REWARD_CODE = """
from rl.rewards.reward import MadeOf


class Brief:
    name, components = "brief", MadeOf()

    def __call__(self, rollout):
        return -rollout.lengths.float()


def open_kind(choice, tokenizer, device):
    return Brief()
"""
FLAGS: dict[str, Any] = dict(
    device="cpu", steps=1, prompts_per_step=2, group_size=2, eval_prompts=2, test_prompts=2,
    max_new_tokens=8, save_every=1, lr=1e-2,
)  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Second folders of models and of rewards, with one file in each."""
    for package, name, code in ((gpt, "rms", MODEL_CODE), (rewards, "brief", REWARD_CODE)):
        folder = tmp_path / package.__name__
        folder.mkdir()
        (folder / f"{name}.py").write_text(code, encoding="utf-8")
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    monkeypatch.setattr("data.sources.RUNS", tmp_path / "runs")
    return tmp_path


def start(place: Path) -> Path:
    """A small model of the new kind, saved."""
    from gpt.rms import RMSGPT, RMSConfig  # type: ignore[import-not-found]

    tokenizer = load_tokenizer("glassbox")
    shape = RMSConfig(tokenizer.n_vocab, context=96, n_layer=1, n_head=2, n_embd=16)
    model = RMSGPT(shape).initialize(torch.Generator().manual_seed(0))
    save_gpt(place / "base" / MODEL_FILE, model, tokenizer)
    return place / "base"


def test_a_third_kind_of_model_is_trained_resumed_and_talked_to(place: Path) -> None:
    flags = FLAGS | dict(model=str(start(place)), reward="gold")
    make = grpo_engine.GRPOConfig
    folder = grpo_engine.main(config_of(make, **flags))
    more = flags | dict(steps=2, resume=True)
    assert grpo_engine.main(config_of(make, **more)) == folder
    model, _ = load_gpt(folder / MODEL_FILE)
    before, _ = load_gpt(place / "base" / MODEL_FILE)
    assert type(model).__name__ == "RMSGPT" and type(model) is not GPT
    assert not torch.equal(model.wte.weight, before.wte.weight)
    assert (
        len(Talk(TalkConfig(folder, device="cpu")).answer("Review the red kettle for Anna.")) == 2
    )


def test_a_kind_of_rewards_is_a_name_that_reward_takes(place: Path) -> None:
    with pytest.raises(ValueError):
        check_reward("briefly")
    flags = FLAGS | dict(model=str(start(place)), reward="brief")
    config = config_of(grpo_engine.GRPOConfig, **flags)
    folder = grpo_engine.main(config)
    assert '"reward": -' in (folder / "metrics.jsonl").read_text("utf-8")


PAGE = REPOSITORY / "docs" / "extending.md"
TOY = dict(device="cpu", steps=2, data="counting")
SMALL: dict[str, Any] = dict(eval_prompts=4, test_prompts=4, prompts_per_step=2, group_size=2)


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's world in a second folder of worlds, and runs/ and models of toy size."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    (code,) = (block for block in blocks if "def prefers" in block)
    assert len(code.splitlines()) <= 60
    (tmp_path / "worlds").mkdir()
    (tmp_path / "worlds" / "counting.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(data.worlds, "__path__", [*data.worlds.__path__, str(tmp_path / "worlds")])
    monkeypatch.setattr("data.sources.RUNS", tmp_path / "runs")
    shape = model.GPTConfig(context=64, n_layer=1, n_head=2, n_embd=16)
    monkeypatch.setitem(model.PRESETS, "tiny", shape)
    return tmp_path / "runs"


def run(module: Any, config_class: Any, **flags: Any) -> Path:
    """A command as its default flags have it, at toy size; its run folder."""
    engine = getattr(module, "ENGINE", None)
    config = config_of(config_class, preset="tiny", **(TOY | flags))
    return engine.run(config) if engine else module.main(config)


def test_every_command_takes_the_pages_world(counting: Path) -> None:
    base = run(pretraining, pretraining.PretrainingConfig)
    assert base == counting / "pretraining-counting-tiny"
    judge = run(
        reward_model_training, reward_model_training.RewardModelConfig, pairs=40, held_out_pairs=20,
        max_response_tokens=8,
    )  # fmt: skip
    assert all("gold_chosen" in row for row in read_jsonl(judge / "pairs.jsonl"))
    run(finetuning, finetuning.FinetuningConfig)
    grpo = run(grpo_engine, grpo_engine.GRPOConfig, **SMALL)
    run(ppo_engine, ppo_engine.PPOConfig, **SMALL)
    offline = SMALL | dict(held_out_pairs=4, batch_size=4)
    del offline["prompts_per_step"], offline["group_size"]
    run(dpo_engine, dpo_engine.DPOConfig, **offline)
    assert (grpo / "report.html").exists()
    talk = Talk(TalkConfig(grpo, device="cpu"))
    answer, start = talk.answer("abcab>")
    assert answer.gold is not None and answer.reward is not None and start.gold is not None


@pytest.mark.parametrize("name", world_names())
def test_every_world_has_all_names_of_a_source(name: str) -> None:
    world = world_source(name)
    for needed in Source.__annotations__:
        assert hasattr(world, needed), needed
    assert (world.corpus is None) == (world.sample_response is None)
    record = world.prompts("train")[0]
    assert world.gold is not None and 0 <= world.gold(record, "no", True) <= 1
    assert not {r.prompt for r in world.prompts("train")} & {
        r.prompt for r in world.prompts("test")
    }
    if world.prefers is not None:
        assert world.prefers(0.5, 0.5) == 0.5
