"""Measured against forecast peaks of memory: a fresh process for each case, on the CPU.

    python bench/memory.py                     all cases, some minutes
    python bench/memory.py --only grpo ppo     some of them
    python bench/memory.py --write-docs        put the table into docs/memory.md

A case runs a few real steps of a script on random weights. Measured is the largest resident memory
of its process less what the process held before there was a model. It is measured twice: with each
tensor mapped by itself, so that what is freed is gone (`own`: what the arithmetic is about), and with
the settings of harness/process.py, under which freed memory is kept (`kept`: what a run takes here).
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo  # the first optimizer loads it, 90 MiB: it belongs to the libraries
from peer_tables import markdown_table, page_with
from sides import Numbers, text_of
from turns import peak_mib, reset_peak

from data.collate import collate_documents
from data.records import PromptRecord
from gpt import pretraining
from gpt.generate import SamplingParams
from gpt.lora import fit_for_training, trunk_to_train
from gpt.memory.forecast import Forecast
from gpt.model import GPT, GPTConfig, preset_config
from harness.command_line import run_command
from harness.errors import UserError
from harness.frozen_copy import frozen_copy
from harness.metric_log import MetricLog
from harness.optimizer import adamw, clip_and_step
from harness.paths import REPOSITORY
from harness.seeds import make_generator
from reward_model import reward_model_training
from reward_model.accuracy_report import score_pairs
from reward_model.pairs import TokenPair
from reward_model.scalar_head import RewardModel
from rl.commands.engines import every_engine
from rl.rewards.sources import RewardModelReward
from rl.training.evaluation import Validation, evaluate, format_table
from rl.training.memory_needs import Given, engine_forecast
from rl.training.value_model import ValueModel


@dataclass(frozen=True)
class Case:
    """A script on a shape. Rows = batch x group; `micro` of them in a forward pass."""

    script: str  # pretraining, reward_model, grpo, ppo
    width: int = 256
    layers: int = 4
    vocab: int = 50257
    batch: int = 4
    group: int = 4
    micro: int = 8
    prompt: int = 16
    response: int = 48
    lora_rank: int = 0
    checkpoint: bool = False
    preset: str = ""  # a published shape instead
    steps: int = 4  # the heap has its size by then

    @property
    def shape(self) -> GPTConfig:
        if self.preset:
            return preset_config(self.preset, self.vocab)
        return GPTConfig(self.vocab, 1024, self.layers, max(self.width // 64, 1), self.width)

    @property
    def label(self) -> str:
        extra = f", LoRA {self.lora_rank}" if self.lora_rank else ""
        extra += ", checkpoints" if self.checkpoint else ""
        shape = self.preset or f"{self.layers} x {self.width}"
        several = {"pretraining": 1, "reward_model": 2}  # answers to a prompt
        rows = self.batch * several.get(self.script, self.group)
        tokens = self.prompt + self.response
        return f"{self.script}, {shape}, V {self.vocab}, {rows} rows x {tokens}{extra}"


CASES = {
    "quick": Case("grpo", layers=2, vocab=16384, batch=2, micro=4, response=24, steps=2),
    "pretraining": Case("pretraining", batch=8, vocab=4096, prompt=0, response=128),
    "reward_model": Case("reward_model", batch=8, vocab=4096, response=112),
    "grpo": Case("grpo", vocab=4096, response=112),
    "grpo-vocab": Case("grpo"),
    "grpo-saving": Case("grpo", lora_rank=8, checkpoint=True, response=112),
    "ppo-vocab": Case("ppo", layers=6),
    "gpt2-saving": Case(
        "grpo", preset="gpt2", batch=2, micro=4, lora_rank=16, checkpoint=True, steps=2
    ),
}


# What a case does, and what is forecast of it -------------------------------------------------------


def warm_up() -> None:
    """Load what the first model and optimizer load, so that it counts as the libraries'."""
    model = GPT(GPTConfig(64, 16, 1, 2, 16)).initialize()
    optimizer = adamw(model, 1e-3, weight_decay=0.0)
    model(torch.zeros(1, 4, dtype=torch.long)).sum().backward()
    clip_and_step(optimizer, model.parameters(), 1.0)


def model_of(case: Case) -> GPT:
    return GPT(case.shape).initialize(make_generator(0, "weights")).eval()


def random_tokens(case: Case, rows: int, columns: int, concern: str) -> list[list[int]]:
    size = (rows, columns)
    return torch.randint(1, case.vocab, size, generator=make_generator(0, concern)).tolist()


class RandomText:
    """A corpus of random ids."""

    def __init__(self, case: Case) -> None:
        self.batches = [
            collate_documents(random_tokens(case, case.batch, case.response, f"text {number}"))
            for number in range(case.steps + 1)
        ]
        self.tokens_per_batch, self.description = case.batch * (case.response - 1), "random ids"

    def batch(self, index: int) -> Any:
        return self.batches[index]

    def held_out_batches(self) -> list[Any]:
        return self.batches[-1:]


def run_pretraining(case: Case, config: Any) -> None:
    text: Any = RandomText(case)
    pretraining.train(config, model_of(case), text, MetricLog(case.steps))


def run_reward_model(case: Case, config: Any) -> None:
    """reward_model_training.py's `train`, two answers to a prompt; the base stays in memory."""
    base, count = model_of(case), case.batch * case.steps
    fit_for_training(config, base)
    model = RewardModel.from_policy(base)
    prompts = random_tokens(case, count, case.prompt, "prompts")
    sides = [random_tokens(case, count, case.response, side) for side in ("chosen", "rejected")]
    pairs = [TokenPair(*row) for row in zip(prompts, *sides, strict=True)]
    reward_model_training.train(model, pairs, config, MetricLog(case.steps), eos_id=0)
    score_pairs(model, pairs, 0)


ENGINES = {engine.name: engine for engine in every_engine()}


def config_of(case: Case) -> Any:
    if case.script == "pretraining":
        return pretraining.PretrainingConfig(
            steps=case.steps, batch_size=case.batch, warmup=1, eval_every=case.steps, device="cpu"
        )
    saving = dict(lora_rank=case.lora_rank, checkpoint_blocks=case.checkpoint, device="cpu")
    if case.script == "reward_model":
        return reward_model_training.RewardModelConfig(
            data="pairs", batch_size=case.batch, **saving
        )
    rows = case.batch * case.group
    return ENGINES[case.script].config(
        steps=case.steps, prompts_per_step=case.batch, group_size=case.group, minibatches=1,
        updates_per_batch=1, micro_batch_size=case.micro, max_new_tokens=case.response, stop_kl=None,
        eval_every=case.steps, eval_prompts=rows, test_prompts=rows, checkpoint_every=10**9, **saving,
    )  # fmt: skip


def run_engine(case: Case, config: Any) -> None:
    """What rl/training/whole_run.py does: start, reward model, critic, training, validation, test."""
    policy, engine = model_of(case), ENGINES[case.script]
    reward_model = RewardModel.from_policy(policy).eval().requires_grad_(False)
    fit_for_training(config, policy)
    start, reward = frozen_copy(policy), RewardModelReward(reward_model)
    numbers: Any = Numbers(case.vocab)
    rows = random_tokens(case, 4 * case.batch * case.group, case.prompt, "prompts")
    records = [PromptRecord(text_of(row)) for row in rows]
    tested = records[: case.batch * case.group]
    params = SamplingParams(max_new_tokens=case.response)
    given: dict[str, Any] = {"reference": start}
    if engine.needs(config).critic:
        trunk = trunk_to_train(config, reward_model.gpt)
        given["value_model"] = ValueModel.from_reward_model(reward_model, trunk)
    validate = Validation(numbers, tested, params, reward, start=start)
    engine.train(
        config, policy, numbers, reward, records, MetricLog(case.steps), validate=validate, **given
    )
    for model in (start, policy):
        evaluate(model, numbers, tested, params, reward, reference=start)


RUNS = {"pretraining": run_pretraining, "reward_model": run_reward_model}


def forecast_of(case: Case) -> Forecast:
    config, tokens = config_of(case), case.prompt + case.response
    if case.script == "pretraining":
        return pretraining.memory_of(config, case.shape, tokens=case.response)
    if case.script == "reward_model":
        return reward_model_training.memory_of(config, case.shape, tokens)
    given = Given(case.shape, rewards=(case.shape,), prompt_tokens=case.prompt)
    return engine_forecast(ENGINES[case.script], config, given)


# Processes ----------------------------------------------------------------------------------------


def measure_here(case: Case) -> float:
    """Bytes at the peak above what the process held before."""
    warm_up()
    reset_peak()
    base = peak_mib()
    RUNS.get(case.script, run_engine)(case, config_of(case))
    return (peak_mib() - base) * 2**20


def measured(case: Case, *, kept: bool) -> float:
    """`measure_here` in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    environment.setdefault("OMP_NUM_THREADS", "2")
    if not kept:  # glibc's own: a block of some size is a mapping of its own
        environment |= {"MALLOC_MMAP_THRESHOLD_": "65536", "THP_MEM_ALLOC_ENABLE": "0"}
    command = [sys.executable, __file__, "--measure", json.dumps(dataclasses.asdict(case))]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    if result.returncode:
        last = (result.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UserError(f"{case.label}: the process ended early: {last}")
    return float(result.stdout.splitlines()[-1])


# What is printed ----------------------------------------------------------------------------------

DOCS = REPOSITORY / "docs" / "memory.md"
BEGIN, END = "<!-- measured: bench/memory.py --write-docs -->", "<!-- end of measured -->"


@dataclass(frozen=True)
class BenchConfig:
    """Measure peaks of memory on the CPU and compare them with the forecasts."""

    only: tuple[str, ...] = ()
    """Names of cases; default: all of them."""
    check: str | None = None
    """Measure one case, tensors mapped by themselves, and print both numbers of bytes."""
    write_docs: bool = False
    """Put the table into docs/memory.md."""
    measure: str | None = None
    """For the processes that are started: a case as JSON, measured in this process."""


def forecast_without_libraries(case: Case, *, kept: bool) -> float:
    """Bytes above what the process held before; without the gaps of kept memory, or with them."""
    result = forecast_of(case)
    result = result if kept else dataclasses.replace(result, gaps=0.0)
    return result.peak - result.parts[result.at].libraries


def row(case: Case) -> list[str]:
    cells = [case.label]
    for kept in (False, True):
        found, said = measured(case, kept=kept), forecast_without_libraries(case, kept=kept)
        cells += [f"{found / 1e6:,.0f}", f"{said / 1e6:,.0f}", f"{said / found:.2f}"]
    return cells


COLUMNS = ("case", "measured, own", "forecast", "ratio", "measured, kept", "forecast", "ratio")


def main(config: BenchConfig) -> None:
    if config.measure:
        print(measure_here(Case(**json.loads(config.measure))))
        return
    if config.check:
        case = CASES[config.check]
        print(measured(case, kept=False), forecast_without_libraries(case, kept=False))
        return
    unknown = set(config.only) - set(CASES)
    if unknown:
        raise UserError(f"there is no case {', '.join(unknown)}: choose among {', '.join(CASES)}")
    rows = []
    for name in config.only or (name for name in CASES if name != "quick"):
        rows.append(row(CASES[name]))
        print(format_table(COLUMNS, rows[-1:]), flush=True)
    if config.write_docs:
        page = DOCS.read_text(encoding="utf-8")
        page = page_with(page, markdown_table(COLUMNS, rows), (BEGIN, END))
        DOCS.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    run_command(main, BenchConfig)
