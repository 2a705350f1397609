"""The stage that optimises a policy, and what is measured during it.

An engine sees this file's `Measuring` as its validation: test prompts answered with the same random
numbers every time, and every number kept per prompt, so that runs can be paired and resampled.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from studies.bootstrap import Array
from studies.recipes import LONGEST

from data import reviews
from data.records import PromptRecord
from gpt.generate import SamplingParams
from gpt.model import GPT
from harness.command_line import from_preset
from harness.device import open_device
from harness.files import write_json
from harness.metric_log import MetricLog
from overopt.settings import Settings
from rl.loop import Run
from rl.task import models_of_run
from rl.training.evaluation import Conditions, Evaluation, evaluate
from rl.training.open_task import Task, open_task

Points = dict[str, Array]
TERMS = ("sent", "topic", "polite", "form", "qual")
KEPT_TEXTS = 6


def has_turned(gold: Sequence[float], fall: float, smooth: int) -> bool:
    """Whether the last mean of `smooth` measurements lies `fall` below the best such mean."""
    means = [statistics.fmean(gold[i : i + smooth]) for i in range(len(gold) - smooth + 1)]
    return bool(means) and max(means) - means[-1] >= fall


class Measuring:
    """Called by an engine as `validate(policy, reference, step)`; keeps what it finds per prompt."""

    def __init__(self, task: Task, prompts: Sequence[PromptRecord], start: GPT, micro: int) -> None:
        self.task, self.prompts, self.start = task, list(prompts), start
        self.params = SamplingParams(max_new_tokens=LONGEST["reviews"])
        self.conditions = Conditions(micro)
        self.points: list[dict[str, Any]] = []
        self.texts: list[dict[str, Any]] = []
        self.own_seconds, self.begin = 0.0, time.process_time()

    def __call__(self, policy: GPT, reference: GPT | None, step: int) -> dict[str, float]:
        now = time.process_time()
        result = evaluate(
            policy, self.task.tokenizer, self.prompts, self.params, self.task.reward_fn,
            reference=self.start, gold=self.task.gold, conditions=self.conditions,
        )  # fmt: skip
        self.keep(result, step, now - self.begin - self.own_seconds)
        self.own_seconds += time.process_time() - now
        return {f"validation/{name}": value for name, value in result.summary().items()}

    def keep(self, result: Evaluation, step: int, seconds: float) -> None:
        """One measurement, per prompt; the first answers as text."""
        assert result.gold is not None and result.kl is not None and result.reward is not None
        terms = self.terms(result)
        self.points.append(
            {"step": step, "seconds": seconds, "gold": result.gold, "proxy": result.reward}
            | {"kl": result.kl, "length": result.lengths.float(), "eos": result.has_eos.float()}
            | {name: terms[:, i] for i, name in enumerate(TERMS)}
        )
        rows = result.sample_rows(KEPT_TEXTS)
        for i, row in enumerate(rows):
            numbers = {"kl": float(result.kl[i])} | dict(zip(TERMS, terms[i].tolist(), strict=True))
            self.texts.append({"step": step} | row | numbers)

    def terms(self, result: Evaluation) -> torch.Tensor:
        """The terms of the gold reward, (P, 5)."""
        judged = zip(result.records, result.responses, result.has_eos.tolist(), strict=True)
        parts = [reviews.gold_parts(*each) for each in judged]
        return torch.tensor([[getattr(part, name) for name in TERMS] for part in parts])

    @property
    def gold(self) -> list[float]:
        return [float(point["gold"].mean()) for point in self.points]

    def save(self, folder: Path) -> None:
        """points.pt, every tensor (measurements, prompts) or (measurements,), and texts.json."""
        names = self.points[0].keys()
        stacked = {
            name: torch.stack([torch.as_tensor(point[name]) for point in self.points])
            for name in names
        }
        torch.save(stacked, folder / "points.pt")
        write_json(folder / "texts.json", self.texts)


def optimise(
    folder: Path,
    settings: Settings,
    root: Path,
    *,
    module: str,
    policy: str,
    reward_models: Sequence[str],
    flags: dict[str, Any],
    seed: int,
    until_turned: bool = True,
) -> None:
    """Train one policy with one engine, measured every few steps, until gold has turned or the end."""
    engine = importlib.import_module(module)
    config = from_preset(
        engine.ENGINE.config, engine.PRESETS, "study", **flags, data="reviews",
        policy=root / policy, reward_model=tuple(root / name for name in reward_models),
        seed=seed, device="cpu", ranks=1, out=folder,
        eval_every=settings.measure_every, checkpoint_every=10**6,
    )  # fmt: skip
    task = open_task(config, open_device("cpu"))
    start, parts = models_of_run(engine.ENGINE, config, task)
    measuring = Measuring(
        task, reviews.prompts("test")[: settings.prompts], start, config.micro_batch_size
    )
    measuring(task.policy, None, 0)
    reference = start if engine.ENGINE.reference(config) else None
    train_in_chunks(
        engine, config, task, reference, parts, measuring, settings, until_turned, folder
    )
    measuring.save(folder)
    write_json(folder / "flags.json", {key: str(value) for key, value in flags.items()})
    (folder / "state.pt").unlink(missing_ok=True)


def train_in_chunks(
    engine: Any,
    config: Any,
    task: Task,
    reference: GPT | None,
    parts: dict[str, Any],
    measuring: Measuring,
    settings: Settings,
    until_turned: bool,
    folder: Path,
) -> None:
    """The engine's own loop, resumed every few measurements to ask whether gold has turned."""
    every = 3 * settings.measure_every if until_turned else config.steps
    done = 0
    for end in [*range(every, config.steps, every), config.steps]:
        log = MetricLog(
            end, path=folder / "metrics.jsonl", show=("reward", "validation/gold", "validation/kl"),
            every=settings.measure_every, title=folder.name, start=done,
        )  # fmt: skip
        piece = replace(config, steps=end, resume=done > 0)
        run = Run(
            piece, task.policy, task.tokenizer, task.reward_fn, task.prompts["train"], log,
            validate=measuring, folder=folder, reference=reference,
        )  # fmt: skip
        rows = engine.train(piece, run, **parts)
        turned = has_turned(measuring.gold, settings.fall, settings.smooth)
        if (until_turned and turned) or rows[-1]["step"] < end:  # or stopped by its own KL
            return
        done = end


def read_points(folder: Path) -> Points:
    """Every measurement of a run: (points, P) per prompt, (points,) for steps and seconds."""
    points = torch.load(folder / "points.pt")
    return {name: value.double().numpy() for name, value in points.items()}
