"""The I/O around an engine: open the task, run `train`, keep the results. Every engine uses it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpt.common import (
    MODEL_FILE,
    STATE_FILE,
    MetricLog,
    display_path,
    keep_until,
    open_run,
    pick_device,
    save_gpt,
    saved_step,
    write_json,
)
from gpt.generate import SamplingParams
from gpt.pretraining import default_folder
from rl.evaluation import Validation, compare, plot_learning_curves
from rl.setup import batch_description, open_task

SHOWN = ("reward", "kl", "entropy", "response_length", "tokens_per_second")


def run_training(name: str, config: Any, train: Callable[..., list[dict[str, Any]]]) -> Path:
    """Load policy, prompts and reward; train; write weights, metrics, samples, figure and report.

    `train(config, policy, tokenizer, reward_fn, prompts, log, validate=, folder=)` is an engine's.
    Returns the run folder. Test prompts are sampled once, after training.
    """
    device = pick_device(config.device)
    task = open_task(
        data=config.data,
        preset=config.preset,
        reward=config.reward,
        policy=config.policy,
        reward_model=config.reward_model,
        max_new_tokens=config.max_new_tokens,
        device=device,
    )
    folder = config.out or default_folder(name, config.data, config.preset)
    open_run(folder, config, resume=config.resume)
    done = saved_step(folder) if config.resume else 0
    keep_until(folder / "samples.jsonl", done)
    params = SamplingParams(config.temperature, max_new_tokens=config.max_new_tokens)
    validate = None
    if config.eval_prompts:
        validate = Validation(
            task.tokenizer,
            task.prompts["validation"][: config.eval_prompts],
            params,
            task.reward_fn,
            task.gold,
            samples_path=folder / "samples.jsonl",
        )
    log = MetricLog(
        config.steps,
        path=folder / "metrics.jsonl",
        show=(*SHOWN, "validation/gold") if task.gold else SHOWN,
        every=config.eval_every,
        title=name,
        start=done,
    )
    print(f"{name} on {config.data}, reward: {task.reward_fn.name} ({device})")
    print(batch_description(config))
    start = copy.deepcopy(task.policy).requires_grad_(False)
    rows = train(
        config,
        task.policy,
        task.tokenizer,
        task.reward_fn,
        task.prompts["train"],
        log,
        validate=validate,
        folder=folder,
    )
    save_gpt(folder / MODEL_FILE, task.policy, task.tokenizer)
    (folder / STATE_FILE).unlink(missing_ok=True)  # the finished weights replace it
    gold_name = task.gold.name if task.gold else ""
    plot_learning_curves(
        rows, folder / "learning_curves.png", f"{name} on {config.data}", gold_name
    )
    made = "figure: learning_curves.png"
    if config.test_prompts:
        comparison = compare(start, task, params, config.test_prompts, after=name)
        write_json(folder / "report.json", comparison.numbers)
        print(comparison.text())
        made += ", numbers: report.json"
    print(f"wrote {display_path(folder)} ({made})")
    return folder
