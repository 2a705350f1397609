"""Measuring a policy: rewards, gold, win rate, KL and tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data.records import PromptRecord
from gpt.generate import SamplingParams, temperature_of_use
from gpt.log_probs import token_log_probs
from gpt.model import GPT
from gpt.ranks import score_in_micro_batches
from gpt.tokenizer import Tokenizer
from harness.console import printable
from harness.device import precision
from harness.files import append_jsonl
from harness.seeds import make_generator
from harness.tensors import masked_sum
from rl.batches.rollout import Rollout, sample_rollout, select_rows
from rl.equations.advantages import score_missing_eos
from rl.equations.kl import k1
from rl.rewards.reward import Check, RewardFn, components, finite_rewards
from rl.run.config import EngineConfig, RunFlags
from rl.run.task import Task
from rl.run.token_log import StepBatch, TokenLog

PASS_K = 8  # samples per prompt where an answer can be checked
KEPT_TOKENS = 4  # responses of an evaluation that are kept token by token
SHOWN = 8  # responses of a validation that are kept to be read
EXAMPLES = 3  # prompts of a comparison whose answers are printed
COLUMNS = {  # of the table of a comparison: what stands over a number of its summary
    "reward": "reward", "kl": "KL", "kl_per_token": "KL a token", "response_length": "length",
    "eos_rate": "EOS rate", "reverse_kl_full": "KL to teacher", "gold": "gold", "gold_error": "its error",
}  # fmt: skip


@dataclass(frozen=True)
class Conditions:
    """How an evaluation runs: its random numbers, the rows of a forward, the precision.

    An update keeps a graph; an evaluation keeps none, so more rows fit into memory at once.
    """

    micro_batch_size: int = 32
    precision: str = "float32"
    seed: int = 0
    missing_eos_penalty: float = 0.0

    def rewards(self, reward_fn: RewardFn, rollout: Rollout) -> Tensor:
        """The rewards (N,), checked as in training, less the same penalty."""
        rewards = finite_rewards(reward_fn(rollout), reward_fn.name, rollout)
        return score_missing_eos(rewards, rollout.has_eos, self.missing_eos_penalty)

    @property
    def scored(self) -> int:
        """Rows that are scored together."""
        return min(2 * self.micro_batch_size, 64)

    @property
    def prompts(self) -> int:
        """Prompts that are answered together, once each."""
        return min(8 * self.micro_batch_size, 256)

    def prompts_of(self, n: int) -> int:
        """Prompts that are answered together, `n` times each."""
        return min(max(16 * self.micro_batch_size // n, 1), 64)

    @classmethod
    def of(cls, config: RunFlags) -> Conditions:
        """The conditions of an engine's config."""
        penalty = config.missing_eos_penalty if isinstance(config, EngineConfig) else 0.0
        return cls(config.micro_batch_size, config.precision, missing_eos_penalty=penalty)


@dataclass(frozen=True)
class Evaluation:
    """One response per prompt and what it is worth; every tensor is (N,) on the CPU."""

    records: list[PromptRecord]
    responses: list[str]
    lengths: Tensor  # response tokens with the EOS
    has_eos: Tensor  # bool
    reward: Tensor | None  # what training maximises, where there is one
    gold: Tensor | None  # the true objective, where it is known
    kl: Tensor | None  # log pi - log pi_ref of the whole response, nats
    # With a teacher, two estimates of KL(policy || teacher) of the response, nats (gpt/teacher.py).
    reverse_kl: Tensor | None
    reverse_kl_full: Tensor | None
    columns: dict[str, Tensor]  # what each of several rewards gave, (N,) by name, NaN for nothing
    first: Rollout  # the first responses as they were sampled, for the token log

    def summary(self) -> dict[str, float]:
        """Means under the names that metrics.jsonl and the tables use."""
        numbers = {} if self.reward is None else {"reward": float(self.reward.mean())}
        for name, values in self.columns.items():
            if not values.isnan().all():
                numbers[f"reward/{name}"] = float(values.nanmean())
        numbers["response_length"] = float(self.lengths.float().mean())
        numbers["eos_rate"] = float(self.has_eos.float().mean())
        if self.gold is not None:
            numbers["gold"] = float(self.gold.mean())
            numbers["gold_error"] = standard_error(self.gold)
        for name in ("kl", "reverse_kl", "reverse_kl_full"):
            values = getattr(self, name)
            if values is not None:
                numbers[name] = float(values.mean())
        if self.kl is not None:
            numbers["kl_per_token"] = numbers["kl"] / numbers["response_length"]
        return numbers

    def notes(self, count: int) -> dict[str, list[float]]:
        """Reward, its columns and gold of the first `count` responses, where they are known."""
        columns = {f"reward/{name}": values for name, values in self.columns.items()}
        known = {"reward": self.reward, **columns, "gold": self.gold}
        return {name: v[:count].tolist() for name, v in known.items() if v is not None}

    def sample_rows(self, count: int) -> list[dict[str, Any]]:
        """The first `count` responses as readable rows."""
        notes = self.notes(count)
        return [
            {"prompt": record.prompt, "response": self.responses[i]}
            | {name: values[i] for name, values in notes.items()}
            for i, record in enumerate(self.records[:count])
        ]


@torch.no_grad()
def evaluate(
    policy: GPT,
    tokenizer: Tokenizer,
    records: Sequence[PromptRecord],
    params: SamplingParams,
    reward_fn: RewardFn | None,
    *,
    reference: GPT | None = None,
    gold: RewardFn | None = None,
    conditions: Conditions = Conditions(),
) -> Evaluation:
    """Sample one response to each prompt and score it. The same `conditions` give paired random numbers.

    With a teacher's reward the distance to the teacher is measured as well.
    """
    if not records:
        raise ValueError("there are no prompts to evaluate on: give at least one")
    generator = make_generator(conditions.seed, "evaluation")
    distance = components(reward_fn).distance
    score = partial(token_log_probs, temperature=params.temperature)
    parts = []
    for start in range(0, len(records), conditions.prompts):
        batch = records[start : start + conditions.prompts]
        kl = teacher_kl = None
        with precision(policy.device, conditions.precision):
            rollout = sample_rollout(policy, tokenizer, batch, params, 1, generator)
            if reference is not None:
                log_probs, ref_log_probs = (
                    score_in_micro_batches(partial(score, m), rollout.sequences, conditions.scored)
                    for m in (policy, reference)
                )
                kl = masked_sum(k1(log_probs, ref_log_probs), rollout.response_mask).cpu()
            if distance is not None:
                teacher_kl = distance(policy, rollout, params.temperature, conditions.scored)
        parts.append(
            Evaluation(
                records=rollout.records,
                responses=rollout.responses,
                lengths=rollout.lengths.cpu(),
                has_eos=rollout.has_eos.cpu(),
                reward=None if reward_fn is None else conditions.rewards(reward_fn, rollout).cpu(),
                columns={name: values.cpu() for name, values in rollout.reward_columns.items()},
                gold=None if gold is None else gold(rollout).cpu(),
                kl=kl,
                reverse_kl=None if teacher_kl is None else teacher_kl[0].cpu(),
                reverse_kl_full=None if teacher_kl is None else teacher_kl[1].cpu(),
                first=select_rows(rollout, torch.arange(min(KEPT_TOKENS, len(rollout)))),
            )
        )
    return _joined(parts)


def _joined(parts: Sequence[Evaluation]) -> Evaluation:
    """Several batches as one."""
    tensors = [name for name, value in vars(parts[0]).items() if isinstance(value, Tensor)]
    joined: dict[str, Any] = {n: torch.cat([getattr(part, n) for part in parts]) for n in tensors}
    return replace(
        parts[0],
        records=[record for part in parts for record in part.records],
        responses=[text for part in parts for text in part.responses],
        columns={n: torch.cat([part.columns[n] for part in parts]) for n in parts[0].columns},
        **joined,
    )


def standard_error(values: Tensor) -> float:
    """Standard error of the mean of (N,) values; 0 for a single one."""
    return float(values.std() / math.sqrt(len(values))) if len(values) > 1 else 0.0


def win_rate(values: Tensor, baseline: Tensor) -> float:
    """Share of prompts on which `values` beats `baseline`, both (N,); a tie counts half."""
    return float((values > baseline).double().mean() + 0.5 * (values == baseline).double().mean())


@torch.no_grad()
def measure_accuracy(
    policy: GPT,
    tokenizer: Tokenizer,
    records: Sequence[PromptRecord],
    params: SamplingParams,
    check: Check,
    *,
    k: int = PASS_K,
    conditions: Conditions = Conditions(),
) -> dict[str, float]:
    """pass@1 and pass@k from k samples a prompt, and the accuracy of the likeliest response."""
    from rl.equations.best_of_n import pass_at_k  # which few runs need

    generator = make_generator(conditions.seed, "accuracy")
    greedy = replace(params, greedy=True)
    sampled, likeliest = [], []
    for start in range(0, len(records), conditions.prompts_of(k)):
        batch = records[start : start + conditions.prompts_of(k)]
        with precision(policy.device, conditions.precision):
            tries = sample_rollout(policy, tokenizer, batch, params, k, generator)
            best = sample_rollout(policy, tokenizer, batch, greedy, 1, generator)
        sampled.append(check.correct(tries).view(-1, k).cpu())
        likeliest.append(check.correct(best).cpu())
    correct = torch.cat(sampled)
    numbers = {f"pass@{n}": pass_at_k(correct, n) for n in sorted({1, k})}
    return numbers | {"greedy_accuracy": float(torch.cat(likeliest).float().mean())}


@dataclass
class Validation:
    """Periodic validation on fixed prompts with fixed random numbers; keeps the samples.

    The KL is from `start` where it is given, otherwise from the reference of the call.
    """

    tokenizer: Tokenizer
    records: Sequence[PromptRecord]
    params: SamplingParams
    reward_fn: RewardFn | None
    gold: RewardFn | None = None
    samples_path: Path | None = None
    start: GPT | None = None
    conditions: Conditions = Conditions()
    token_log: TokenLog | None = None

    def __call__(self, policy: GPT, reference: GPT | None, step: int) -> dict[str, float]:
        """`validation/...` numbers; gold is reported here and steers nothing."""
        result = evaluate(
            policy, self.tokenizer, self.records, self.params, self.reward_fn,
            reference=self.start or reference, gold=self.gold, conditions=self.conditions,
        )  # fmt: skip
        if self.token_log is not None:
            first, notes = result.first, result.notes(len(result.first))
            self.token_log.write_answers(policy, self.start or reference, step, first, notes)
        if self.samples_path is not None:
            rows = [{"step": step} | row for row in result.sample_rows(SHOWN)]
            append_jsonl(self.samples_path, rows)
        return {f"validation/{name}": value for name, value in result.summary().items()}

    def record(self, policy: GPT, reference: GPT | None, step: int, batch: StepBatch) -> None:
        """Keep the first group that the step was trained on, token by token, if there is a log for it."""
        if self.token_log is not None:
            self.token_log.write_group(policy, self.start or reference, step, batch)


@dataclass(frozen=True)
class Comparison:
    """A policy before and after training, on the same test prompts with the same random numbers."""

    before: Evaluation
    after: Evaluation
    gold_name: str  # "" where no true objective is known
    name: str
    # answers of both models to the first prompts, under how they are sampled
    examples: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    accuracy_before: Mapping[str, float] = field(default_factory=dict)  # where answers are checked
    accuracy_after: Mapping[str, float] = field(default_factory=dict)

    @property
    def numbers(self) -> dict[str, Any]:
        """For report.json."""
        numbers: dict[str, Any] = {
            "prompts": len(self.before.records),
            "before": self.before.summary() | dict(self.accuracy_before),
            "after": self.after.summary() | dict(self.accuracy_after),
        }
        if self.before.gold is not None and self.after.gold is not None:
            numbers["win_rate"] = win_rate(self.after.gold, self.before.gold)
        for name in ("reward", "gold"):
            if found := self.change(name):
                parts = zip(("", "_low", "_high"), found, strict=True)
                numbers |= {f"{name}_change{part}": value for part, value in parts}
        return numbers

    def change(self, name: str) -> tuple[float, float, float] | None:
        """What `reward` or `gold` gained, and its 95% interval, paired over prompts; None if unknown.

        The interval is the normal one, 1.96 standard errors of the mean difference.
        """
        before, after = getattr(self.before, name), getattr(self.after, name)
        if before is None or after is None or len(before) < 2:
            return None
        differences = (after - before).double()
        mean, half = float(differences.mean()), 1.96 * standard_error(differences)
        return mean, mean - half, mean + half

    def sample_rows(self, count: int) -> list[dict[str, Any]]:
        """The first responses as readable rows, each with that from before training."""
        after = self.after.sample_rows(count)
        return [row | {"before": self.before.responses[i]} for i, row in enumerate(after)]

    def text(self) -> str:
        """A table and the examples side by side."""
        numbers, names = self.numbers, COLUMNS | {"gold": self.gold_name}
        keys = [*COLUMNS, *self.accuracy_before, *(f"reward/{n}" for n in self.before.columns)]
        keys = [key for key in keys if key in numbers["before"]]
        before, after = numbers["before"], numbers["after"]
        rows = [["before", *map(before.get, keys)], [self.name, *map(after.get, keys)]]
        table = format_table(["", *(names.get(key, key) for key in keys)], rows)
        lines = [f"{numbers['prompts']} test prompts", table]
        if "win_rate" in numbers:
            lines.append(f"win rate of {self.name} over the start: {numbers['win_rate']:.3f}")
        for i, record in enumerate(self.before.records[:EXAMPLES]):
            lines += ["", f"prompt: {printable(record.prompt)}"]
            for how, (before, after) in self.examples.items():
                lines += [f"  before, {how}: {printable(before[i])}"]
                lines += [f"  after,  {how}: {printable(after[i])}"]
        return "\n".join(lines)


def answers_of_test(gold: RewardFn | None) -> int:
    """How often `compare` lets a model answer a test prompt."""
    return 1 + (PASS_K + 1) * (components(gold).check is not None)


def compare(
    before: GPT,
    task: Task,
    params: SamplingParams,
    test_prompts: int,
    after: str,
    conditions: Conditions = Conditions(),
) -> Comparison:
    """Let the starting policy and the task's trained one answer the same test prompts."""
    given = task.tokenizer, task.prompts["test"][:test_prompts], params
    models, check = (before, task.policy), components(task.gold).check
    measure = partial(evaluate, reference=before, gold=task.gold, conditions=conditions)
    first, second = (measure(model, *given, task.reward_fn) for model in models)
    accuracies = [
        {} if check is None else measure_accuracy(model, *given, check, conditions=conditions)
        for model in models
    ]
    tau = temperature_of_use(task.tokenizer.chat is not None, params.temperature)
    hows = {f"temperature {tau:g}": replace(params, temperature=tau)}
    hows |= {"greedy": replace(params, greedy=True)}
    gold_name = task.gold.name if task.gold else ""
    examples = {
        how: [examples_of(model, *given[:2], each, conditions) for model in models]
        for how, each in hows.items()
    }
    return Comparison(first, second, gold_name, after, examples, *accuracies)


@torch.no_grad()
def examples_of(
    model: GPT,
    tokenizer: Tokenizer,
    records: Sequence[PromptRecord],
    params: SamplingParams,
    conditions: Conditions,
) -> list[str]:
    """Answers to the first prompts, by the same random numbers for every model."""
    generator = make_generator(conditions.seed, "examples")
    with precision(model.device, conditions.precision):
        asked = records[:EXAMPLES]
        return sample_rollout(model, tokenizer, asked, params, 1, generator).responses


def format_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A plain-text table; floats get three decimals, None a dash."""

    def cell(value: Any) -> str:
        if value is None:
            return "-"
        return f"{value:.3f}" if isinstance(value, float) else str(value)

    table = [list(columns)] + [[cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    table.insert(1, ["-" * width for width in widths])
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in table
    ]
    return "\n".join(lines)
