"""Supervised distillation: a student learns a teacher's distribution token by token.

    python -m gpt.distillation                          forward KL on the teacher's responses
    python -m gpt.distillation --loss reverse_kl        on the student's own responses

The control for the engines in rl/ that make a teacher the reward: every token of a given text has an
exact target, and how a token changes the text after it is left out. The author of the text is the one
under whom the loss is a divergence of whole responses (Agarwal et al. 2024, arXiv:2306.13649): the
teacher for the forward KL, the student for the reverse KL. Needs a teacher: scripts/make_teacher.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from data.collate import ResponseBatch, epoch_shuffled_indices, join_responses
from data.records import PromptRecord
from data.sources import USUAL, Data, default_folder, source
from gpt.checkpoint import load_policy, save_gpt
from gpt.fit import open_prompts
from gpt.generate import SamplingParams
from gpt.log_probs import compare_logits, full_kl, kl_from_logits, scatter_responses
from gpt.lora import fit_for_training, frozen_copy, linears_to_bfloat16
from gpt.model import GPT, Preset
from gpt.ranks import sample
from gpt.settings import presets_of, run_with_presets
from gpt.teacher import open_teacher, reverse_kl
from gpt.tokenizer import Tokenizer
from harness.device import open_device, precision
from harness.errors import UserError
from harness.files import append_jsonl, keep_until, reading, write_json
from harness.flags import AtLeastOne, Count, MemoryFlags, OptimizerFlags
from harness.metric_log import UNTRAINED, MetricLog, per_second
from harness.optimizer import adamw, check_losses, clip_and_step, follow_cosine
from harness.paths import MODEL_FILE
from harness.ranks.collectives import all_reduce_sum, check_alike, shard
from harness.run_folder import conclude, finish_run, open_run, stepping
from harness.seeds import derive_seed, make_generator
from harness.training_state import TrainingState, keep_state, saved_step

ANSWERED = 256  # prompts that an evaluation answers together

PRESETS = presets_of({"tiny": {}, "study": {}}, "distillation")


@dataclass(frozen=True)
class DistillationConfig(OptimizerFlags, MemoryFlags):
    """Distil a teacher into a GPT-2 with a supervised loss."""

    preset: Preset = "tiny"
    """Size of the student and matching defaults, applied before all other flags."""
    data: Data = USUAL
    """A world (reviews, sums) or a file with prompts (formats: data/README.md)."""
    base: Path | None = None
    """Run folder of the student; default: gpt.pretraining's for this data and preset."""
    teacher: Path | None = None
    """Run folder of the teacher; default: the one of this data."""
    loss: Literal["forward_kl", "reverse_kl"] = "forward_kl"
    """KL(teacher || student) or KL(student || teacher)."""
    steps: AtLeastOne = 160
    """Optimizer steps."""
    batch_size: AtLeastOne = 64
    """Responses per optimizer step."""
    micro_batch_size: AtLeastOne | None = None
    """Responses per forward pass; changes memory and speed, never the gradient. Default: all of a step."""
    warmup: Count = 10
    max_new_tokens: AtLeastOne = 48
    """Longest response; a longer one is cut off and has no EOS."""
    eval_every: AtLeastOne = 50
    """Steps between validations."""
    eval_prompts: Count = 128
    """Prompts per validation, one response each; 0 skips it."""
    test_prompts: Count = 512
    """Test prompts that the start and the result answer once, after training; 0 skips it."""


# --- the losses -----------------------------------------------------------------------------------


def forward_kl(student: GPT, teacher: GPT, batch: ResponseBatch) -> Tensor:
    """KL(p || q) = sum_v p(v) (log p(v) - log q(v)) at each response position, (N, T), 0 at padding.

    p is the teacher, q the student, which alone gets a gradient: q - p with respect to its logits.
    (Hinton et al. 2015, arXiv:1503.02531.) On responses that the teacher wrote, the sum over a
    response is KL(p || q) of whole responses in expectation, and so is its gradient: the text does
    not depend on the student. The other direction is `gpt.log_probs.full_kl(student, teacher)`.
    """

    def divergence(logits: Tensor, teacher_logits: Tensor) -> Tensor:
        return kl_from_logits(teacher_logits, logits)[:, None]

    kl = compare_logits(divergence, student, teacher, batch, temperature=1)
    return scatter_responses(kl[:, 0], batch)


def distillation_loss(
    config: DistillationConfig, student: GPT, teacher: GPT, batch: ResponseBatch, tokens: int
) -> Tensor:
    """The mean of the loss that the flags name over the response tokens of a whole batch, in nats."""
    divergence = full_kl if config.loss == "reverse_kl" else forward_kl
    return divergence(student, teacher, batch).sum() / tokens


def own_gradient(
    config: DistillationConfig, student: GPT, teacher: GPT, batch: ResponseBatch
) -> float:
    """Add the gradient of this rank's rows of the batch; returns their part of the loss."""
    rows, tokens = shard(torch.arange(len(batch))), int(batch.response_mask.sum())
    parts = []
    for part in rows.split(config.micro_batch_size or max(len(rows), 1)):
        with precision(student.device, config.precision):
            loss = distillation_loss(config, student, teacher, batch.rows(part), tokens)
        loss.backward()
        parts.append(loss.detach())
    return float(torch.stack(parts).sum())


# --- the text, and what a student is worth --------------------------------------------------------


def sampled_batch(
    author: GPT,
    tokenizer: Tokenizer,
    records: Sequence[PromptRecord],
    max_new_tokens: int,
    generator: torch.Generator,
) -> tuple[ResponseBatch, list[str]]:
    """One response of `author` to each prompt at temperature 1, as it is scored and as text."""
    prompts = [tokenizer.encode(record.prompt) for record in records]
    params = SamplingParams(max_new_tokens=max_new_tokens)
    sampled = sample(author, tokenizer, prompts, params, generator)
    batch = join_responses(prompts, sampled.response_tokens, sampled.response_mask, sampled.has_eos)
    return batch.to(author.device), [tokenizer.decode(tokens) for tokens in sampled.token_lists()]


Measured = tuple[dict[str, float], list[dict[str, Any]]]


@torch.no_grad()
def measure(
    student: GPT,
    teacher: GPT,
    tokenizer: Tokenizer,
    records: Sequence[PromptRecord],
    max_new_tokens: int,
    rule: Callable[[PromptRecord, str, bool], float] | None = None,
) -> Measured:
    """Numbers and answers of the student: one response per prompt, the same random numbers each time.

    `reverse_kl` and `reverse_kl_full` are nats per response (gpt/teacher.py), `gold` is the `rule`'s
    mean.
    """
    generator = make_generator(0, "evaluation")
    columns: dict[str, list[float]] = {}
    answers: list[dict[str, Any]] = []
    for start in range(0, len(records), ANSWERED):
        part = records[start : start + ANSWERED]
        batch, responses = sampled_batch(student, tokenizer, part, max_new_tokens, generator)
        kl = reverse_kl(student, teacher, batch)
        ended = batch.has_eos.tolist()
        values = {
            "reverse_kl": kl.sampled.tolist(),
            "reverse_kl_full": kl.full.tolist(),
            "response_length": batch.lengths.tolist(),
            "eos_rate": ended,
        }
        if rule is not None:
            values["gold"] = [rule(*each) for each in zip(part, responses, ended, strict=True)]
        for name, numbers in values.items():
            columns.setdefault(name, []).extend(numbers)
        answers += [
            {"prompt": record.prompt, "response": response}
            for record, response in zip(part, responses, strict=True)
        ]
    means = {name: sum(numbers) / len(numbers) for name, numbers in columns.items()}
    if rule is not None and len(records) > 1:
        means["gold_error"] = float(torch.tensor(columns["gold"]).std() / len(records) ** 0.5)
    return means, answers


# --- training -------------------------------------------------------------------------------------


def train(
    config: DistillationConfig,
    student: GPT,
    teacher: GPT,
    tokenizer: Tokenizer,
    prompts: Sequence[PromptRecord],
    log: MetricLog,
    *,
    validate: Callable[[GPT, int], Mapping[str, float]] | None = None,
    folder: Path | None = None,
) -> list[dict[str, Any]]:
    """Distil in place and return one metrics row a step.

    `validate` adds its numbers every `eval_every` steps; with a folder a resumable state is kept
    there.
    """
    student.eval()  # dropout stays off: the teacher's is
    optimizer = adamw(student, config.lr, weight_decay=config.weight_decay)
    generator = make_generator(config.seed, "sampling")
    state = TrainingState({"student": student, "optimizer": optimizer}, {"sampling": generator})
    if config.resume and folder is not None:
        state.load(folder)
    seed = derive_seed(config.seed, "prompt order")
    for step in state.steps_left(config.steps):
        begin = log.begins()
        lr = follow_cosine(optimizer, step, config.steps, config)
        index = epoch_shuffled_indices(step, config.batch_size, len(prompts), seed).tolist()
        author = teacher if config.loss == "forward_kl" else student
        records = [prompts[i] for i in index]
        with precision(student.device, config.precision):
            batch, _ = sampled_batch(author, tokenizer, records, config.max_new_tokens, generator)
        optimizer.zero_grad(set_to_none=True)
        loss = own_gradient(config, student, teacher, batch)
        norm = clip_and_step(optimizer, student.parameters(), config.max_norm)
        state.step = step + 1
        row: dict[str, Any] = {**all_reduce_sum({"loss": loss}), "grad_norm": norm, "lr": lr}
        row["response_length"] = float(batch.lengths.float().mean())
        row["tokens_per_second"] = per_second(int(batch.lengths.sum()), begin)
        if validate and (state.step % config.eval_every == 0 or state.step == config.steps):
            row |= validate(student, state.step)
            check_alike(student, "student")
        check_losses(row)
        log.write(step=state.step, **row)
        keep_state(state, folder, config.checkpoint_every, last=state.step == config.steps)
    return log.rows


def tested(
    models: Mapping[str, GPT],
    measured: Callable[[GPT, Sequence[PromptRecord]], Measured],
    records: Sequence[PromptRecord],
) -> dict[str, Any]:
    """The numbers of several models on the test prompts, which are also printed."""
    report = {name: measured(model, records)[0] for name, model in models.items()}
    print(f"{len(records)} test prompts; reverse_kl: to the teacher, nats per response")
    for name, numbers in report.items():
        print(f"  {name:8}" + "  ".join(f"{k} {v:.3f}" for k, v in numbers.items()))
    return {"prompts": len(records)} | report


@reading()
def main(config: DistillationConfig) -> Path:
    """Distil with all I/O and return the run folder. Test prompts are answered after training."""
    device = open_device(config.device, config.precision)
    base = config.base or default_folder("pretraining", config.data, config.preset)
    student, tokenizer = load_policy(base, device)
    fit_for_training(config, student)
    start = frozen_copy(student)
    teacher = open_teacher(
        config.teacher, tokenizer, device, data=config.data, preset=config.preset
    )
    if config.precision == "bfloat16":
        linears_to_bfloat16(teacher)
    room = min(model.config.context for model in (student, teacher)) - config.max_new_tokens
    if room < 1:
        raise UserError(f"--max-new-tokens {config.max_new_tokens} leaves no room for a prompt")
    world = source(config.data, tokenizer.chat)
    prompts = open_prompts(world, config.data, tokenizer, room)
    asked, tests = (
        prompts["validation"][: config.eval_prompts],
        prompts["test"][: config.test_prompts],
    )
    out = config.out or default_folder("distillation", config.data, config.model_name)
    folder = open_run(out, config, resume=config.resume)
    done = saved_step(folder) if config.resume else 0
    keep_until(folder / "samples.jsonl", done)

    def measured(model: GPT, records: Sequence[PromptRecord]) -> Measured:
        with precision(device, config.precision):
            return measure(model, teacher, tokenizer, records, config.max_new_tokens, world.gold)

    def validate(model: GPT, step: int) -> dict[str, float]:
        numbers, answers = measured(model, asked)
        append_jsonl(folder / "samples.jsonl", [{"step": step} | row for row in answers[:8]])
        return {f"validation/{name}": value for name, value in numbers.items()}

    answers = math.ceil((config.steps - done) / config.eval_every) * len(asked) + 3 * len(tests)
    log = MetricLog(
        config.steps, path=folder / "metrics.jsonl", every=config.eval_every, title=config.loss,
        show=("loss", "validation/reverse_kl_full", "validation/gold"), start=done,
        beside=UNTRAINED * answers / config.batch_size,
    )  # fmt: skip
    print(f"distillation on {config.data}: {config.loss} ({device}, {config.precision})")
    with stepping(log, folder):
        train(
            config, student, teacher, tokenizer, prompts["train"], log,
            validate=validate if config.eval_prompts else None, folder=folder,
        )  # fmt: skip
    save_gpt(folder / MODEL_FILE, student, tokenizer)
    if config.test_prompts:
        models = {"before": start, "after": student, "teacher": teacher}
        report = tested(models, measured, tests)
        write_json(folder / "report.json", report)
    conclude(folder)
    finish_run(folder)
    return folder


if __name__ == "__main__":
    run_with_presets(main, DistillationConfig, PRESETS)
