"""The I/O around an engine: open the task, run `train`, keep the results. Every engine uses it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from gpt.adapter import fit_for_training, save_adapter
from gpt.common import (
    MODEL_FILE,
    STATE_FILE,
    MetricLog,
    TrainingState,
    display_path,
    keep_until,
    open_run,
    pick_device,
    save_gpt,
    saved_step,
    write_json,
)
from gpt.frozen import frozen_copy
from gpt.generate import SamplingParams
from gpt.model import GPT
from gpt.pretraining import default_folder
from gpt.ranks import check_alike
from rl.training.evaluation import Validation, compare, plot_learning_curves
from rl.training.forecast import announce_run
from rl.training.metrics import kl_exceeded
from rl.training.setup import OwnReward, Task, batch_description, open_task

SHOWN = (
    "reward", "solve_rate", "accuracy", "margin", "kl", "entropy", "response_length",
    "tokens_per_second",
)  # fmt: skip


class StepConfig(Protocol):
    """The fields of an engine's config that decide what happens after a step."""

    @property
    def steps(self) -> int: ...

    @property
    def eval_every(self) -> int: ...

    @property
    def checkpoint_every(self) -> int: ...

    @property
    def stop_kl(self) -> float | None: ...


def finish_step(
    config: StepConfig,
    state: TrainingState,
    row: dict[str, Any],
    log: MetricLog,
    policy: GPT,
    reference: GPT | None,
    validate: Validation | None,
    folder: Path | None,
) -> bool:
    """Validate, log and checkpoint the step that `state.step` counts; True if it was the last.

    A run ends after config.steps, or early once the KL per response exceeds config.stop_kl.
    """
    last = state.step == config.steps or kl_exceeded(log.rows, row, config.stop_kl)
    if validate is not None and (state.step % config.eval_every == 0 or last):
        row = row | validate(policy, reference, state.step)
        check_alike(policy)
    log.write(step=state.step, **row)
    if folder is not None and state.step % config.checkpoint_every == 0:
        state.save(folder)
    return last


def run_training(
    name: str,
    config: Any,
    train: Callable[..., list[dict[str, Any]]],
    prepare: Callable[[Any, Task], dict[str, Any]] | None = None,
    describe: Callable[[Any], str] = batch_description,
    own_reward: OwnReward | None = None,
    *,
    fixed_reference: bool = False,
) -> Path:
    """Load policy, prompts and reward; train; write weights, metrics, samples, figure and report.

    `train(config, policy, tokenizer, reward_fn, prompts, log, validate=, folder=)` is an engine's;
    what `prepare(config, task)` returns (a critic, a teacher, a corpus) is passed to it by keyword.
    `describe(config)` is the line about batch sizes; `own_reward(config, tokenizer, device)` opens
    the reward in the place of --reward's, None for validations without one. With `fixed_reference`
    the start of the run is passed to `train` as its reference, which then needs no copy of its own.
    Returns the run folder. Test prompts are sampled once, after training.
    """
    device = pick_device(config.device)
    task = open_task(config, device, own_reward)
    fit_in_memory(name, config, task, device)
    extra = prepare(config, task) if prepare else {}
    folder = config.out or default_folder(name, config.data, config.preset)
    open_run(folder, config, resume=config.resume)
    done = saved_step(folder) if config.resume else 0
    keep_until(folder / "samples.jsonl", done)
    start = frozen_copy(task.policy)
    if fixed_reference:
        extra["reference"] = start
    log = MetricLog(
        config.steps,
        path=folder / "metrics.jsonl",
        show=(*SHOWN, "validation/gold") if task.gold else SHOWN,
        every=config.eval_every,
        title=name,
        start=done,
    )
    print(f"{name} on {config.data}, reward: {task.reward_name} ({device})")
    print(describe(config))
    rows = train(
        config,
        task.policy,
        task.tokenizer,
        task.reward_fn,
        task.prompts["train"],
        log,
        validate=open_validation(config, task, start, folder),
        folder=folder,
        **extra,
    )
    if rows and rows[-1]["step"] < config.steps:
        log.close()
        print(f"stopped: the KL per response is above --stop-kl {config.stop_kl:g} nats")
    save_gpt(folder / MODEL_FILE, task.policy, task.tokenizer)
    base = config.policy or default_folder("pretraining", config.data, config.preset)
    save_adapter(folder / "adapter", task.policy, display_path(base))
    (folder / STATE_FILE).unlink(missing_ok=True)  # the finished weights replace it
    report(name, config, task, start, rows, folder)
    return folder


def fit_in_memory(name: str, config: Any, task: Task, device: torch.device) -> None:
    """Say what the run needs, refuse what cannot fit, and let the policy be trained as the flags ask."""
    announce_run(name, config, task, device)
    task.policy.sample_rows = getattr(config, "sample_rows", None)
    fit_for_training(config, task.policy, config.adapter)


def sampling_params(config: Any) -> SamplingParams:
    """How a run's validations and its test sample: as in training."""
    return SamplingParams(config.temperature, max_new_tokens=config.max_new_tokens)


def open_validation(config: Any, task: Task, start: GPT, folder: Path) -> Validation | None:
    """The validations of a run, whose samples go to its folder; None with eval_prompts 0."""
    if not config.eval_prompts:
        return None
    return Validation(
        task.tokenizer,
        task.prompts["validation"][: config.eval_prompts],
        sampling_params(config),
        task.reward_fn,
        task.gold,
        samples_path=folder / "samples.jsonl",
        start=start,
    )


def report(
    name: str, config: Any, task: Task, start: GPT, rows: list[dict[str, Any]], folder: Path
) -> None:
    """The figure and, with test prompts, `start` and the trained policy side by side."""
    gold_name = task.gold.name if task.gold else ""
    plot_learning_curves(
        rows, folder / "learning_curves.png", f"{name} on {config.data}", gold_name
    )
    made = "figure: learning_curves.png"
    if config.test_prompts:
        comparison = compare(start, task, sampling_params(config), config.test_prompts, after=name)
        write_json(folder / "report.json", comparison.numbers)
        print(comparison.text())
        made += ", numbers: report.json"
    print(f"wrote {display_path(folder)} ({made})")
