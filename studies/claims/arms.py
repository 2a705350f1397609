"""The runs: how each arm is trained from a seed, and what is kept of it. Claims share them by name.

A run takes the start of its seed and returns a small object of numbers. `rl_arm` makes those of the
engines that sample: `curve` has the batch's mean reward and entropy of every step, `points` what worlds.py
measures of the policy every EVERY steps, from the start on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from data.records import ResponseRecord
from data.worlds import sums
from gpt import finetuning
from gpt.corpus import encode_record
from gpt.generate import SamplingParams
from gpt.log_probs import token_log_probs
from gpt.lora import fit_for_training, frozen_copy
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from harness.metric_log import MetricLog
from harness.seeds import make_generator
from rl import grpo_variants_engine
from rl import on_policy_distillation_engine as student
from rl.batches.rollout import Rollout, sample_rollout
from rl.loop import Run
from rl.rewards.reward import RewardFn
from studies.claims import worlds

EVERY = 10  # steps between measured points
STUDENT_LR = 1.5e-4  # the best of 1.5e-4, 5e-4 and 1e-3 on a seed of its own (900)
TRAINING: dict[str, Any] = dict(
    data="sums", preset="tiny", steps=60, prompts_per_step=4, group_size=8, minibatches=2, lr=1.5e-4,
    warmup_steps=5, kl_coef=0.0, stop_kl=None, max_new_tokens=worlds.NEW_TOKENS, eval_every=EVERY,
)  # fmt: skip


@dataclass(frozen=True)
class Arm:
    """`run(folder of all jobs, seed)` gives the numbers of one run; `settings` tell it from others."""

    run: Callable[[Path, int], dict[str, Any]]
    share: int = worlds.SHARE  # percent of worked steps of its start
    settings: Mapping[str, Any] = field(default_factory=dict)
    engines: tuple[str, ...] = ("rl.grpo_variants_engine",)


class Points:
    """What an engine calls to validate: measures the policy and keeps the numbers."""

    def __init__(self, policy: GPT, tokenizer: Tokenizer) -> None:
        self.start, self.tokenizer = frozen_copy(policy), tokenizer
        self.before = worlds.some(worlds.sampled(policy, tokenizer))
        self.kept: dict[str, list[float | None]] = {}
        self(policy, None, 0)

    def __call__(self, policy: GPT, reference: GPT | None, step: int) -> dict[str, float]:
        known = self.start, self.before
        for key, value in worlds.measured(policy, self.tokenizer, known).items():
            self.kept.setdefault(key, []).append(value)
        self.kept.setdefault("step", []).append(step)
        return {}


def rl_run(
    root: Path,
    seed: int,
    *,
    engine: ModuleType = grpo_variants_engine,
    reward: RewardFn = worlds.REWARD,
    share: int = worlds.SHARE,
    other: int = 0,
    after: Callable[[GPT, Tokenizer], Mapping[str, Any]] | None = None,
    **flags: Any,
) -> dict[str, Any]:
    """Train a seed's start with an engine; `flags` are its config's, `other` is added to its seed.

    `after` measures more of the policy at the end.
    """
    policy, tokenizer = worlds.open_start(root, share, seed)
    config = engine.ENGINE.config(**TRAINING | {"seed": seed + other} | flags)
    log, points = MetricLog(config.steps), Points(policy, tokenizer)
    fit_for_training(config, policy)
    prompts = sums.prompts("train", 2000)
    run = Run(config, policy, tokenizer, reward, prompts, log, validate=points)
    engine.train(run)
    curve = {key: [row.get(key) for row in log.rows] for key in ("reward", "entropy")}
    numbers = {"curve": curve, "points": points.kept}
    return numbers if after is None else numbers | dict(after(policy, tokenizer))


def rl_arm(*, share: int = worlds.SHARE, **flags: Any) -> Arm:

    def run(root: Path, seed: int) -> dict[str, Any]:
        return rl_run(root, seed, share=share, **flags)

    return Arm(run, share, flags)


# --- fine-tuning ----------------------------------------------------------------------------------

FINETUNING: dict[str, Any] = dict(
    data="sums", steps=60, batch_size=32, lr=1.5e-4, warmup_steps=5, eval_every=10**6
)
SFT_EVERY = 6  # steps between measured points: accuracy rises faster than in RL
DRAWN = 8  # answers of the start to a prompt, of which the right ones are kept


class Watched(MetricLog):
    """A log that measures the model as it is trained, where a loop has no validation of its own."""

    def __init__(self, model: GPT, points: Points) -> None:
        super().__init__(FINETUNING["steps"])
        self.model, self.points = model, points

    def write(self, *, step: int, **metrics: Any) -> None:
        super().write(step=step, **metrics)
        if step % SFT_EVERY == 0:
            self.points(self.model, None, step)


def oracle_answers(policy: GPT, tokenizer: Tokenizer, seed: int) -> list[ResponseRecord]:
    """Worked steps without an error, one answer a prompt."""
    rng, answers = random.Random(seed), []
    for record in sums.prompts("train", 2000):
        text = worlds.styled(record, rng, steps=True)
        while sums.exact_match(record, text, True) == 0:
            text = worlds.styled(record, rng, steps=True)
        answers.append(ResponseRecord(record.prompt, text))
    return answers


def own_right_answers(policy: GPT, tokenizer: Tokenizer, seed: int) -> list[ResponseRecord]:
    """What the start itself answers, where it is right: rejection sampling."""
    params = SamplingParams(max_new_tokens=worlds.NEW_TOKENS)
    generator = make_generator(seed, "rejection sampling")
    records = sums.prompts("train", 1000)
    rollout = sample_rollout(policy, tokenizer, records, params, DRAWN, generator)
    right = worlds.REWARD.correct(rollout).tolist()
    rows = zip(rollout.records, rollout.responses, right, strict=True)
    return [ResponseRecord(record.prompt, text) for record, text, good in rows if good]


def sft_arm(teach: Callable[[GPT, Tokenizer, int], list[ResponseRecord]]) -> Arm:
    """Fine-tune a seed's start on answers."""

    def run(root: Path, seed: int) -> dict[str, Any]:
        policy, tokenizer = worlds.open_start(root, worlds.SHARE, seed)
        examples = [encode_record(record, tokenizer) for record in teach(policy, tokenizer, seed)]
        log = Watched(policy, Points(policy, tokenizer))
        config = finetuning.FinetuningConfig(seed=seed, **FINETUNING)
        finetuning.train(config, policy, examples, [], log, eos_id=tokenizer.eos_id)
        return {"points": log.points.kept, "examples": len(examples)}

    return Arm(run, settings={"teach": teach.__name__}, engines=("gpt.finetuning",))


# --- rewards that are coins -----------------------------------------------------------------------


class Coins:
    """1 or 0 for every answer, whatever it says."""

    name = "coins"

    def __init__(self, seed: int) -> None:
        self.generator = make_generator(seed, "coins")

    def __call__(self, rollout: Rollout) -> Tensor:
        return torch.randint(2, (len(rollout),), generator=self.generator).float()


def coins_arm(**flags: Any) -> Arm:
    """GRPO on coins; `preference` is how likely the start finds what a policy says, nats an answer."""

    def run(root: Path, seed: int) -> dict[str, Any]:
        start, _ = worlds.open_start(root, worlds.SHARE, seed)

        @torch.no_grad()
        def preference(policy: GPT, tokenizer: Tokenizer) -> dict[str, float]:
            found = {}
            for name, model in (("preference_before", start), ("preference", policy)):
                rollout = worlds.sampled(model, tokenizer)
                log_probs = token_log_probs(start, rollout.sequences)
                found[name] = float(log_probs.sum(1).mean())
            return found

        return rl_run(root, seed, steps=30, reward=Coins(seed), after=preference, **flags)

    return Arm(run, settings=flags)


# --- a student of its own later self --------------------------------------------------------------


def distilled(root: Path, seed: int) -> dict[str, Any]:
    """GRPO's policy of a seed teaches the start that it came from."""
    trained: list[GPT] = []

    def keep(policy: GPT, tokenizer: Tokenizer) -> dict[str, Any]:
        trained.append(frozen_copy(policy))
        return {}

    rl_run(root, seed, eval_every=TRAINING["steps"], after=keep)
    flags: dict[str, Any] = dict(
        steps=24, eval_every=2, prompts_per_step=32, group_size=1, lr=STUDENT_LR, warmup_steps=0
    )
    config = student.OnPolicyDistillationConfig(**TRAINING | flags)
    teacher = student.teacher_reward(config, trained[0])
    return rl_run(root, seed, engine=student, reward=teacher, **flags)
