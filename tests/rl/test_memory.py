"""What rl.memory says: its parts against real models, its sum against a measured peak."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from sides import Numbers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from data.records import PromptRecord
from gpt import finetuning
from gpt.checkpoint import build, save_gpt
from gpt.finetuning import FinetuningConfig
from gpt.huggingface import save_hf
from gpt.llama import Llama, LlamaConfig
from gpt.memory import memory_of, numbers, warn_of_memory
from gpt.model import GPT, preset_config
from gpt.tokenizer import load_tokenizer
from harness.device import free_ram
from harness.errors import UserError
from harness.paths import MODEL_FILE
from reward_model import reward_model_training
from reward_model.reward_model_training import RewardModelConfig
from reward_model.scalar_head import RewardModel
from rl import grpo_engine
from rl.dpo_engine import DPOConfig
from rl.grpo_engine import GRPOConfig
from rl.loop import Run
from rl.memory import ENGINES, MemoryConfig, engine_config, memory, shape_of
from rl.rewards.model import RewardModelReward
from rl.run.engine import models_of_run
from rl.run.task import Task


def test_the_weights_are_those_of_a_real_model() -> None:
    shape = shape_of("tiny")
    assert numbers(shape)[0] == GPT(shape).parameter_count()
    assert numbers(preset_config("gpt2-xl", 50257))[0] == 1_557_611_200  # the published 1.5B
    whole = memory(MemoryConfig("tiny", "ppo"))["update"]  # policy, critic; reference, reward model
    assert whole["weights"] == 4 * 4 * numbers(shape)[0]
    assert whole["gradients"] == whole["weights"] / 2 and whole["Adam"] == whole["weights"]


LATER = dict(vocab_size=3000, d_head=32, qk_norm=True, own_head=True)  # as a Qwen3 of 8B is


def llama(folder: Path, switches: Mapping[str, Any] = MappingProxyType({})) -> str:
    shape = LlamaConfig(300, 64, n_layer=3, n_head=4, n_embd=64, n_key_head=2, n_inner=160)
    save_hf(Llama(replace(shape, **switches)), folder)
    return str(folder)


def test_the_shape_is_read_from_folders_of_published_weights_and_of_runs(tmp_path) -> None:
    assert numbers(shape_of(llama(tmp_path / "hub")))[0] == 300 * 64 + 3 * 43_136 + 64
    of_all, linear, adapters = numbers(shape_of(llama(tmp_path / "later", LATER)), lora_rank=1)
    assert linear == 3 * (64 * (128 + 64 + 64) + 128 * 64 + 3 * 64 * 160)
    assert of_all == linear + 2 * 3000 * 64 + 7 * 64 + 3 * 2 * 32  # two tables, norms
    assert adapters == 3 * (64 + 128 + 2 * (64 + 64) + 128 + 64 + 3 * (64 + 160))
    model = GPT(preset_config("tiny", load_tokenizer("glassbox").n_vocab))
    save_gpt(tmp_path / MODEL_FILE, model, load_tokenizer("glassbox"))
    assert shape_of(str(tmp_path)) == shape_of(str(tmp_path / MODEL_FILE)) == model.config
    with pytest.raises(UserError):
        shape_of(str(tmp_path / "nothing"))


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


FLAGS = dict(prompts_per_step=4, group_size=2, micro_batch_size=2, max_new_tokens=24)


@pytest.mark.parametrize("engine", ["grpo", "ppo"])
def test_a_measured_peak_is_near_the_forecast(engine) -> None:
    """A copy of the weights, a gradient or a moment too many is 9% of the sum or more."""
    measured, forecast = peaks(MemoryConfig("tiny", engine, prompt_tokens=8, **FLAGS))
    assert measured == pytest.approx(forecast, rel=0.07)


@pytest.mark.parametrize("switches", [{}, LATER], ids=["llama", "later"])
@pytest.mark.parametrize("lora_rank", [0, 4])
def test_a_llama_in_bfloat16_whose_groups_share_prompts(lora_rank, switches, tmp_path) -> None:
    flags = FLAGS | dict(
        group_size=4, micro_batch_size=8, precision="bfloat16", lora_rank=lora_rank
    )
    case = MemoryConfig(llama(tmp_path, switches), prompt_tokens=32, **flags)
    measured, forecast = peaks(case)
    assert measured == pytest.approx(forecast, rel=0.1)


def test_a_run_that_will_not_fit_says_so_with_the_flag_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of every command that starts from a model; the flag is one that is forecast to be enough."""
    monkeypatch.setattr("gpt.memory.SMALL", 0)
    folder = llama(tmp_path / "mine", dict(vocab_size=3000))
    for config_class in (GRPOConfig, DPOConfig, RewardModelConfig, FinetuningConfig):
        config: Any = config_class(model=folder)
        needed = 1.2 * max(
            sum(part.values()) for part in memory_of(config, shape_of(folder)).values()
        )
        for free, warned in ((1.01 * needed, 0), (0.97 * needed, 1), (1e3, 1)):
            monkeypatch.setattr("gpt.memory.free_memory", lambda device, free=free: free)
            state = torch.get_rng_state()
            warn_of_memory(config, torch.device("cpu"))
            assert torch.equal(torch.get_rng_state(), state)
            said = capsys.readouterr().err
            assert said.count("warning") == warned == said.count("\n")
            assert ("--" in said) == (warned == 1 and free > 1e3), said


def test_a_stage_compares_what_it_needs_before_it_opens_its_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpt.memory.SMALL", 0)
    monkeypatch.setattr("gpt.memory.free_memory", lambda device: 1e3)
    folder = llama(tmp_path / "mine")
    for stage in (finetuning.STAGE, reward_model_training.STAGE, grpo_engine.ENGINE):
        with pytest.raises(UserError):  # there are no data, which is found out later
            stage.run(stage.config(model=folder, data=str(tmp_path / "none.jsonl")))
        assert "warning" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({"proc/meminfo": "MemTotal: 90 kB\nMemAvailable: 40 kB\n", "proc/self/cgroup": ""}, 40960),
        ({"proc/self/cgroup": "0::/a/b\n"}, 40960),
        ({"sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/memory.stat": "anon 5\n"}, 40960),
        (
            {"sys/fs/cgroup/a/memory.max": "9000", "sys/fs/cgroup/a/memory.stat": "anon 5\nfile 9"},
            8995,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/\n4:memory:/x\n0::/a\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "700",
                "sys/fs/cgroup/memory/memory.stat": "cache 9\ntotal_rss 100",
            },
            600,
        ),
    ],
)
def test_free_memory_is_what_the_machine_and_a_container_leave(
    tmp_path: Path, files: dict[str, str], free: int
) -> None:
    """`files` on top of a machine with 40 kB to spare and a job in group a/b."""
    usual = {"proc/meminfo": "MemAvailable:   40 kB\n", "proc/self/cgroup": "0::/a/b\n"}
    for name, text in (usual | files).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert free_ram(tmp_path) == free
