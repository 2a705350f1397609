"""The bug zoo: train with a bug that you do not know, read the run, say which it is.

    python scripts/bug_zoo.py                       one of 10 bugs, drawn; 10 to 120 seconds of training
    python scripts/bug_zoo.py --only loss_sign      this one
    python scripts/bug_zoo.py --record              every bug and every control for the doctor's tests

A bug is a wrong line as one would write it, put over the right one while a small run trains: a
two-layer GPT on eight letters, whose reward is known. A control is the same run without the bug.
The run has a folder with a report like any other; what the bugs are is told in
scripts/bug_stories.json. Nothing is scored. What is recorded is what metrics.jsonl would hold, by
columns, without times.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import bug_stories
import torch
from bug_stories import RECORDINGS, STORIES
from torch import Tensor

from data.collate import first_eos_mask, join_responses
from data.records import PromptRecord
from gpt import generate
from gpt.generate import SamplingParams
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import build_tokenizer
from harness.command_line import run_command
from harness.errors import UserError
from harness.files import append_jsonl, display_path
from harness.metric_log import MetricLog
from harness.optimizer import clip_and_step
from harness.paths import REPORT, RUNS, TOKENS
from report.doctor import as_text, examine
from report.page import write_page
from rl import (
    grpo_engine,
    grpo_iterative_engine,
    grpo_variants_engine,
    loop,
    ppo_engine,
    reinforce_pp_engine,
    rloo_engine,
)
from rl.batches.rollout import Rollout, sample_rollout
from rl.equations import losses
from rl.equations.kl import k3
from rl.equations.losses import clipped_surrogate, sequence_mean
from rl.loop import Run
from rl.rewards.reward import RuleReward, checked_rewards
from rl.run.evaluation import Validation
from rl.run.metrics import UpdateMeter
from rl.run.token_log import TokenLog
from studies.pages import significant

# The small run ------------------------------------------------------------------------------------

LETTERS = build_tokenizer("letters", {bytes([97 + i]): i for i in range(8)})  # EOS 8, padding 9
PROMPTS = [PromptRecord(text) for text in ("ab", "c", "hgfed", "aaa", "fa", "gh", "bbbb", "e")]
SHARED: dict[str, Any] = dict(
    steps=30, lr=1e-3, warmup_steps=3, kl_coef=0.05, stop_kl=None, max_new_tokens=20, eval_every=10,
    micro_batch_size=64, test_prompts=0, eval_prompts=64, save_every=1000, data="letters",
)  # fmt: skip
GROUPED = SHARED | dict(prompts_per_step=8, group_size=8, minibatches=2, updates_per_batch=2)
WITHOUT_KL: dict[str, Any] = dict(lr=4e-4, stop_kl=100.0)  # the KL is measured all the same
SINGLE = SHARED | dict(prompts_per_step=64, group_size=1, minibatches=2, updates_per_batch=2)


def worth(record: PromptRecord, text: str, ended: bool) -> float:
    """Up to eight times an a, and an end: neither length nor silence pays."""
    return ended * (0.2 + 0.1 * min(text.count("a"), 8))


def small_gpt() -> GPT:
    shape = GPTConfig(LETTERS.n_vocab, 32, n_layer=2, n_head=2, n_embd=32, dropout=0.1)
    return GPT(shape).initialize(torch.Generator().manual_seed(0)).eval()


def own(module: ModuleType, shared: Mapping[str, Any], **flags: Any) -> Any:
    """The config of an engine's small run."""
    return module.ENGINE.config(**{**shared, **flags})


VARIANTS = grpo_variants_engine.VARIANTS
ENGINES = {
    "grpo": own(grpo_engine, GROUPED, lr=6e-4, kl_coef=0.1),
    "ppo": own(ppo_engine, SINGLE, critic_lr=1e-2),
    "rloo": own(rloo_engine, GROUPED, updates_per_batch=1, kl_coef=0.1),
    **{
        name: own(grpo_variants_engine, GROUPED | VARIANTS[name] | WITHOUT_KL, variant=name)
        for name in ("dr_grpo", "gspo", "cispo", "sapo")
    },
    "grpo_iterative": own(grpo_iterative_engine, GROUPED, iterations=2, lr=6e-4),
    "reinforce_pp": own(reinforce_pp_engine, SINGLE, kl_coef=0.1),
}


def small_run(
    config: Any, folder: Path | None = None, **changes: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows and the flags of one small run, which with a folder keeps its tokens there."""
    config, policy = replace(config, **changes), small_gpt()
    reward = RuleReward(worth, "letters")
    start = small_gpt().requires_grad_(False)
    params = SamplingParams(config.temperature, max_new_tokens=config.max_new_tokens)
    validate = Validation(LETTERS, PROMPTS * 8, params, reward, reward, start=start)
    if folder is not None:
        validate.token_log = TokenLog(folder / TOKENS, LETTERS, reward, config)
    log = MetricLog(config.steps)
    run = Run(config, policy, LETTERS, reward, PROMPTS, log, validate=validate)
    rows = sys.modules[type(config).__module__].train(run)
    return rows, json.loads(json.dumps(asdict(config), default=str))


# The bugs -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bug:
    """One wrong line: `plant()` puts it in while the context lasts. Its story has its words."""

    plant: Callable[[], Any]
    changes: Mapping[str, Any] = field(default_factory=dict)


def over(module: Any, name: str, wrong: Any) -> Callable[[], Any]:
    """`wrong` in place of module.name."""
    return lambda: patch.object(module, name, wrong)


def negated_surrogate(*arguments: Any) -> Tensor:
    return -clipped_surrogate(*arguments)


def late_mask(*arguments: Any, **options: Any) -> Rollout:
    """Every response's mask one column to the right, and the rows that are made by it."""
    rollout = sample_rollout(*arguments, **options)
    given, mask = rollout.sequences, rollout.response_mask
    late = torch.cat([torch.zeros_like(mask[:, :1]), mask[:, :-1]], dim=1)
    prompts = [row[:n].tolist() for row, n in zip(given.tokens, given.prompt_lengths, strict=True)]
    rows = join_responses(prompts, given.response_tokens, late, given.has_eos)
    return replace(rollout, sequences=rows)


def mask_without_eos(tokens: Tensor, eos_id: int) -> tuple[Tensor, Tensor]:
    mask, _ = first_eos_mask(tokens, eos_id)
    mask = mask & (tokens != eos_id)
    return mask, ((tokens == eos_id) & mask).any(1)


def mean_of_the_part(loss: Tensor, mask: Tensor, denominator: float) -> Tensor:
    """Every micro-batch is divided by its own responses."""
    return sequence_mean(loss, mask)


def summed_k3(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """Each token carries the KL of its whole response."""
    return k3(log_probs, ref_log_probs).sum(1, keepdim=True).expand_as(log_probs)


def kl_added(*arguments: Any) -> Tensor:
    """r + beta KL: the penalty is a bonus."""
    *given, kl_coef = arguments
    return real_token_rewards(*given, -kl_coef)  # type: ignore[call-arg]


real_token_rewards = rloo_engine.token_level_rewards


class MeterOfNewest(UpdateMeter):
    """What the meter sees where the engine's old log-probs are today's."""

    def add_tokens(self, scores: Any, old_log_probs: Tensor, *rest: Any, **options: Any) -> None:
        super().add_tokens(scores, scores.log_probs, *rest, **options)


@contextmanager
def old_is_new() -> Iterator[None]:
    def wrong(new: Tensor, old: Tensor, *rest: Any) -> Tensor:
        return clipped_surrogate(new, new.detach(), *rest)

    with patch.object(losses, "clipped_surrogate", wrong):
        with patch.object(loop, "UpdateMeter", MeterOfNewest):
            yield


def step_of_the_policy_alone(self: Run, **losses: float) -> Tensor:
    (policy, optimizer, _), (critic, _, _) = self.trained
    norm = clip_and_step(optimizer, policy.parameters(), self.config.max_grad_norm)
    gradients = [p.grad for p in critic.parameters() if p.grad is not None]
    self.meter.add_update(self.loss, norm, torch.nn.utils.get_total_norm(gradients), **losses)
    return norm


def rewards_of_the_row_above(*arguments: Any) -> Tensor:
    return checked_rewards(*arguments).roll(1)


def reference_is_the_policy(model: GPT, rollout: Rollout, config: Any) -> Tensor:
    return rollout.log_probs


BUGS = {
    "loss_sign": Bug(over(losses, "clipped_surrogate", negated_surrogate)),
    "late_mask": Bug(over(loop, "sample_rollout", late_mask)),
    "no_eos": Bug(over(generate, "first_eos_mask", mask_without_eos)),
    "kl_sign": Bug(over(rloo_engine, "token_level_rewards", kl_added)),
    "part_divisor": Bug(over(losses, "sequence_mean", mean_of_the_part), dict(micro_batch_size=20)),
    "kl_per_response": Bug(over(grpo_engine, "loss_estimator", lambda name: summed_k3)),
    "old_is_new": Bug(old_is_new),
    "critic_rests": Bug(over(Run, "optimizer_step", step_of_the_policy_alone)),
    "row_above": Bug(over(loop, "checked_rewards", rewards_of_the_row_above)),
    "reference_follows": Bug(over(loop, "rollout_log_probs", reference_is_the_policy)),
}

# Recording ----------------------------------------------------------------------------------------


def by_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Four digits a number, without times; None: not logged."""
    keys = [key for key in dict.fromkeys(key for row in rows for key in row) if "second" not in key]
    return {key: [significant(row.get(key)) for row in rows] for key in keys}


def record(
    path: Path, rows: Sequence[Mapping[str, Any]], flags: Mapping[str, Any], about: str
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = {name: value for name, value in flags.items() if "/" not in json.dumps(value)}
    columns = {key: json.dumps(values) for key, values in by_columns(rows).items()}
    body = ",\n".join(f'    "{key}": {values}' for key, values in columns.items())
    text = f'{{\n  "about": {json.dumps(about)},\n  "flags": {json.dumps(flags)},\n'
    path.write_text(f'{text}  "columns": {{\n{body}\n  }}\n}}\n', encoding="utf-8")


# The game -----------------------------------------------------------------------------------------


def bugged_run(name: str, folder: Path) -> list[dict[str, Any]]:
    """Train with one bug, seconds; the folder gets what any run's has, its report with it."""
    bug = BUGS[name]
    config = replace(ENGINES[STORIES[name].engine], **bug.changes)
    folder.mkdir(parents=True)
    with bug.plant():
        rows, flags = small_run(config, folder)
    (folder / "config.json").write_text(json.dumps(flags) + "\n", encoding="utf-8")
    append_jsonl(folder / "metrics.jsonl", rows)
    write_page(folder)
    return rows


def play(config: ZooConfig) -> None:
    bug = config.only or random.choice(sorted(BUGS))
    engine, folder = STORIES[bug].engine, RUNS / f"bug-zoo-{time.strftime('%m%d-%H%M%S')}"
    print(
        f"A run of {engine} on eight letters, in which one line is wrong. Training ...", flush=True
    )
    rows = bugged_run(bug, folder)
    flags = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    findings = examine(rows, flags)
    print(f"\n{bug_stories.table(rows, bug_stories.control(engine).rows)}\n")
    print(f"The run's page, with every curve and token: {display_path(folder / REPORT)}")
    print("\nWhich line is wrong?")
    for name in bug_stories.choices(bug):
        print(f"  {STORIES[name].words}")
    with suppress(EOFError):
        input("Enter shows what the doctor makes of it, and the answer. ")
    print(as_text(findings) or "The doctor finds nothing: not every bug can be seen.")
    print(f"\n{bug_stories.reveal(bug)}")
    print("\nHow to read a run: notebooks/17_bug_zoo.ipynb")


@dataclass(frozen=True)
class ZooConfig:
    """Play with a bug, or record small runs, with bugs and without."""

    only: str | None = None
    """One bug; with --record also one engine's control."""
    record: bool = False
    """Record every bug and every control anew for the doctor's tests, some minutes."""

    def __post_init__(self) -> None:
        known = [*BUGS, *ENGINES] if self.record else [*BUGS]
        if self.only is not None and self.only not in known:
            raise UserError(f"there is no {self.only!r} in the zoo: use one of {', '.join(known)}")


def main(config: ZooConfig) -> None:
    torch.set_num_threads(1)
    if config.record:
        record_all(config.only)
    else:
        play(config)


def record_all(only: str | None) -> None:
    for name, config in ENGINES.items():
        if only in (None, name):
            rows, flags = small_run(config)
            record(RECORDINGS / "healthy" / f"letters_{name}.json", rows, flags, "no bug")
    for name, bug in BUGS.items():
        if only in (None, name):
            with bug.plant():
                rows, flags = small_run(ENGINES[STORIES[name].engine], **bug.changes)
            record(RECORDINGS / "bugs" / f"{name}.json", rows, flags, STORIES[name].words)
            print(name, flush=True)


if __name__ == "__main__":
    run_command(main, ZooConfig)
