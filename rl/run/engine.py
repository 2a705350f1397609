"""From an engine's flags to its run folder: `ENGINE` at the end of its file, and what runs it.

An `Engine` is a record and no framework: the loop stays in the engine's `train`, and nothing inherits.
The study, the contract tests and the table of engines read it.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import torch

from gpt.checkpoint import save_gpt
from gpt.generate import SamplingParams
from gpt.lora import fit_for_training, frozen_copy, has_adapters, linears_to_bfloat16
from gpt.model import GPT
from gpt.recipes import run_with_recipe
from gpt.stage import Plan, Stage
from harness.command_line import option
from harness.files import append_jsonl, keep_until, write_json
from harness.metric_log import MetricLog
from harness.optimizer import warm_up
from harness.paths import ANSWERS, MODEL_FILE, TOKENS
from harness.ranks.collectives import on_main
from rl.loop import Run
from rl.run.config import EngineConfig, RunFlags
from rl.run.ending import ending
from rl.run.evaluation import EXAMPLES, Conditions, Validation, answers_of_test, compare
from rl.run.task import Task, open_task, to_bfloat16
from rl.run.token_log import TokenLog

LIMITS = ("stop_kl", "stop_kl_per_token")
SHOWN = (
    "reward", "solve_rate", "accuracy", "margin", "kl", "entropy", "response_length",
    "tokens_per_second",
)  # fmt: skip


def batch_description(config: EngineConfig) -> str:
    """The derived sizes of a batch in words, printed before a run."""
    rows = config.prompts_per_step * config.group_size
    minibatches = min(config.minibatches, config.prompts_per_step)
    return (
        f"{config.prompts_per_step} prompts x {config.group_size} responses = {rows} rows a step; "
        f"{config.updates_per_batch * minibatches} optimizer steps on about {rows // minibatches} "
        f"rows each, {config.micro_batch_size} rows per forward"
    )


@dataclass(frozen=True)
class Engine:
    """An engine: its name, config, train function, and what it needs opened.

    `train(run)` is its loop (rl/loop.py has `Run`). It gets by keyword what `prepare(config, task)`
    returns (a critic, a corpus). `own_reward` opens the reward instead of --reward, where it is not None.
    """

    name: str  # of run folders and messages: grpo
    box: str  # what the paper calls it: GRPO
    config: type[RunFlags]
    train: Callable[..., list[dict[str, Any]]]
    prepare: Callable[..., dict[str, Any]] | None = None
    steps_of: Callable[..., int] | None = None  # the steps, by config and what `prepare` returns
    own_reward: Callable[[Any], Callable[..., Any] | None] = lambda config: None
    learns_from: Literal["reward", "teacher", "pairs"] = "reward"
    groups: bool = True  # whether the responses to a prompt are compared
    toy: str = ""  # flags of a run of seconds that shows all of it
    run_name: Callable[[Any], str] | None = None  # where a flag decides what the run is called

    @property
    def module(self) -> str:
        """Where its file is imported from: rl.grpo_engine."""
        return self.train.__module__

    def __reduce__(self) -> tuple[object, ...]:
        """To another process it goes by its module: functions without a name cannot be sent."""
        return entry_of, (self.module,)

    def run(self, config: RunFlags) -> Path:
        """Load policy, prompts and reward; train; write all files of the run. Returns its folder."""
        return stage_of(self, config).run(config)

    def run_as_command(self) -> None:
        """Start the engine from the command line: parse the flags, then `run`."""
        run_with_recipe(self.run, self.config)

    def name_of(self, config: RunFlags) -> str:
        """The name of a run with these flags."""
        return self.name if self.run_name is None else self.run_name(config)


def entry_of(module: str) -> Engine:
    """The `ENGINE` of a module, such as rl.grpo_engine."""
    entry: Engine = importlib.import_module(module).ENGINE
    return entry


@cache
def every_engine() -> tuple[Engine, ...]:
    """The `ENGINE` of each rl/*_engine.py, in the order of their names."""
    names = sorted(path.stem for path in Path(__file__).parents[1].glob("*_engine.py"))
    return tuple(entry_of(f"rl.{name}") for name in names)


def extra_steps(config: RunFlags, task: Task, done: int) -> tuple[float, float]:
    """The work of validations, and of the test, in steps: an answer without an update is 0.6 of one with.

    DPO samples nothing in its steps: there an answer is as much as a pair.
    """
    of_step = getattr(config, "prompts_per_step", 1) * getattr(config, "group_size", 1)
    answers = getattr(config, "batch_size", of_step / 0.6)  # that take as long as a step
    validations = math.ceil((config.steps - done) / config.eval_every)
    validated = validations * len(task.prompts["validation"][: config.eval_prompts])
    return validated / answers, 2 * answers_to_test(config, task) / answers


def answers_to_test(config: RunFlags, task: Task) -> int:
    """Answers to test prompts, of one model."""
    prompts = len(task.prompts["test"][: config.test_prompts])
    return prompts * answers_of_test(task.gold) + 2 * min(prompts, EXAMPLES)


@dataclass
class Work:
    """What an engine has opened: its task, the policy as it starts, what `train` gets by keyword."""

    task: Task
    start: GPT
    parts: dict[str, Any]


def stage_of(engine: Engine, config: RunFlags) -> Stage:
    """`Engine.run` as a stage: the task, the training of its policy, and what is kept of it."""
    name = engine.name_of(config)
    return Stage(
        name, engine.config, partial(open_work, engine), partial(plan_of, name),
        partial(train_policy, engine), keep_policy,
    )  # fmt: skip


def open_work(engine: Engine, config: RunFlags, device: torch.device) -> tuple[RunFlags, Work]:
    """Policy, prompts and reward, and what the engine prepares."""
    task = open_task(config, device, engine.own_reward(config))
    start, parts = models_of_run(engine, config, task)
    if engine.steps_of is not None:
        config = replace(config, steps=engine.steps_of(config, **parts))
    if not config.resume:  # a run that goes on has the warm-up that it began with
        config = replace(config, warmup_steps=warm_up(config.warmup_steps, config.steps))
    return config, Work(task, start, parts)


def plan_of(name: str, config: RunFlags, work: Work, folder: Path, done: int) -> Plan:
    """How long it takes; what an earlier run has sampled after step `done` is dropped."""
    for file in ("samples.jsonl", TOKENS):
        keep_until(folder / file, done)
    task = work.task
    return Plan(
        config.steps, f"{name} on {config.data}, reward: {task.reward_name}",
        (*SHOWN, "validation/gold") if task.gold else SHOWN, config.eval_every,
        *extra_steps(config, task, done),
        more=batch_description(config) if isinstance(config, EngineConfig) else "",
    )  # fmt: skip


def train_policy(
    engine: Engine, config: RunFlags, work: Work, log: MetricLog, folder: Path
) -> list[dict[str, Any]]:
    """The engine's own loop, on a `Run`."""
    task = work.task
    run = Run(
        config, task.policy, task.tokenizer, task.reward_fn, task.prompts["train"], log,
        start=work.start, validate=open_validation(config, task, work.start, folder), folder=folder,
    )  # fmt: skip
    return engine.train(run, **work.parts)


def keep_policy(config: RunFlags, work: Work, log: MetricLog, folder: Path) -> None:
    """The policy, and what it answers to test prompts."""
    task, rows = work.task, log.rows
    if rows and (kept := rows[-1].get("kept_step")) is not None:
        log.close()
        limits = " and ".join(f"{option(n)} {getattr(config, n)}" for n in LIMITS)
        print(
            f"kept is the policy of step {kept}, the last one within {limits}, nats from the start"
        )
    save_gpt(folder / MODEL_FILE, task.policy, task.tokenizer)
    if config.test_prompts:
        report(log.title, config, task, work.start, folder)


def models_of_run(engine: Engine, config: RunFlags, task: Task) -> tuple[GPT, dict[str, Any]]:
    """The policy as it starts, frozen, and what an engine's `train` is given by keyword."""
    fit_for_training(config, task.policy)
    parts = engine.prepare(config, task) if engine.prepare else {}
    if config.precision == "bfloat16" and "refresh" not in parts:  # it trains the reward model
        to_bfloat16(task)
    start = frozen_copy(task.policy)
    if config.precision == "bfloat16" and not has_adapters(start):  # which share the policy's base
        linears_to_bfloat16(start)
    return start, parts


def sampling_params(config: RunFlags) -> SamplingParams:
    """How a run's validations and its test sample: as in training."""
    return SamplingParams(config.temperature, max_new_tokens=config.max_new_tokens)


def open_validation(config: RunFlags, task: Task, start: GPT, folder: Path) -> Validation | None:
    """The validations of a run, whose samples go to its folder; None with eval_prompts 0."""
    if not config.eval_prompts:
        return None
    return Validation(
        task.tokenizer, task.prompts["validation"][: config.eval_prompts], sampling_params(config),
        task.reward_fn, task.gold, folder / "samples.jsonl", start, Conditions.of(config),
        TokenLog(folder / TOKENS, task.tokenizer, task.reward_fn, config),
    )  # fmt: skip


def report(name: str, config: RunFlags, task: Task, start: GPT, folder: Path) -> None:
    """`start` and the trained policy side by side, on test prompts."""
    comparison = compare(
        start, task, sampling_params(config), config.test_prompts, name, Conditions.of(config)
    )
    write_json(folder / "report.json", comparison.numbers)
    on_main(lambda: (folder / ANSWERS).unlink(missing_ok=True))  # of a run that was ended here
    append_jsonl(folder / ANSWERS, comparison.sample_rows(config.test_prompts))
    print(comparison.text(), "", *ending(comparison, config, task, folder), sep="\n")
