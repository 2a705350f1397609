"""Supervised distillation: a student learns a teacher's distribution token by token.

    python -m gpt.distillation                          forward KL on the teacher's responses
    python -m gpt.distillation --loss reverse_kl        on the student's own responses
    python -m gpt.distillation --loss topk_ce           cross-entropy on sampled token ids

The control for the engines in rl/ that make a teacher the reward: every token of a given text has an
exact target, and how a token changes the text after it is left out. The author of the text is the one
under whom the loss is a divergence of whole responses (Agarwal et al. 2024, arXiv:2306.13649): the
teacher for the forward forms, the student for the reverse KL.

`topk_ce` is the distillation of Gemma 3 (arXiv:2503.19786, section 2.2): at every position k token ids
are sampled by the teacher's probability, the others count as 0, and the student is trained by
cross-entropy. Needs a teacher: scripts/make_teacher.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from data.collate import ResponseBatch, epoch_shuffled_indices, join_responses
from data.names import Data, default_folder
from data.records import PromptRecord
from data.worlds import RULES
from gpt.checkpoint import save_gpt
from gpt.corpus import open_prompts
from gpt.fit import FileFlags
from gpt.generate import SamplingParams, generate
from gpt.log_probs import (
    full_kl,
    in_chunks,
    kl_from_logits,
    of_both,
    response_hidden,
    rows_of_chunk,
    scatter_responses,
)
from gpt.lora import fit_for_training, save_adapter
from gpt.model import GPT, Preset, head_product
from gpt.published.pretrained import load_policy
from gpt.teacher import open_teacher, reverse_kl
from gpt.token_rows import RECORDED, TextLog, open_texts
from gpt.tokenizer import Tokenizer
from harness.command_flags import MemoryFlags, OptimizerFlags
from harness.command_line import run_command
from harness.device import open_device, precision
from harness.errors import UserError
from harness.files import append_jsonl, display_path, keep_until, write_json
from harness.flag_ranges import AtLeastOne, Count
from harness.frozen_copy import frozen_copy, linears_to_bfloat16
from harness.metric_log import MetricLog, per_second
from harness.optimizer import (
    adamw,
    check_losses,
    clip_and_step,
    cosine_schedule,
    set_learning_rate,
)
from harness.paths import MODEL_FILE
from harness.ranks.collectives import all_reduce_sum, check_alike, on_device, shard
from harness.report.rules import say_findings
from harness.report.writing import open_page, refresh, say_written
from harness.run_folder import finish_run, open_run, stepping
from harness.seeds import derive_seed, make_generator
from harness.training_state import TrainingState, keep_state, saved_step

Rule = Callable[[PromptRecord, str, bool], float]
ANSWERED = 256  # prompts that an evaluation answers together

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "study": {},
    **{
        name: dict(batch_size=8, lr=lr, max_new_tokens=128, eval_prompts=32, test_prompts=64)
        for name, lr in [
            ("own", 1e-4), ("small", 1e-4), ("gpt2", 1e-5), ("gpt2-medium", 1e-5), ("gpt2-large", 5e-6),
            ("gpt2-xl", 5e-6),
        ]
    },
}  # fmt: skip


@dataclass(frozen=True)
class DistillationConfig(FileFlags, OptimizerFlags, MemoryFlags):
    """Distil a teacher into a GPT-2 with a supervised loss."""

    preset: Preset = "tiny"
    """Size of the student and matching defaults, applied before all other flags."""
    data: Data = "reviews"
    """A world (reviews, sums) or a file with prompts (formats: data/README.md)."""
    base: Path | None = None
    """Run folder of the student; default: gpt.pretraining's for this data and preset."""
    teacher: Path | None = None
    """Run folder of the teacher; default: the one of this data."""
    loss: Literal["forward_kl", "reverse_kl", "topk_ce"] = "forward_kl"
    """KL(teacher || student), KL(student || teacher), or cross-entropy on sampled token ids."""
    sampled_tokens: AtLeastOne = 32
    """k of topk_ce: token ids sampled per position (Gemma 3: 256, of 262 thousand)."""
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
    checkpoint_every: AtLeastOne = 100
    """Steps between resumable checkpoints."""

    @property
    def author(self) -> str:
        """Who writes the text: teacher or student."""
        return "student" if self.loss == "reverse_kl" else "teacher"


# --- the formulas, on logits and probabilities ----------------------------------------------------


def topk_cross_entropy(logits: Tensor, ids: Tensor, targets: Tensor) -> Tensor:
    """-sum_j p~(v_j) log q(v_j), (M, V), (M, k) int64 and (M, k) -> (M,) (arXiv:2503.19786, section 2.2).

    log q is normalised over the whole vocabulary: ids that were not sampled are pushed down.
    """
    return -(targets * logits.log_softmax(-1).gather(1, ids)).sum(1)


def sample_token_ids(probs: Tensor, k: int, uniforms: Tensor) -> Tensor:
    """k different token ids per row, drawn one after the other by their probability, (M, k) int64.

    probs (M, V), uniforms (M, V) in [0, 1). The k largest of p_v / E_v with E_v exponential are such
    a draw without replacement (the Gumbel top-k trick: Kool et al. 2019, arXiv:1903.06059).
    """
    exponential = -torch.log1p(-uniforms.clamp(min=1e-9))
    return (probs / exponential).topk(min(k, probs.shape[-1])).indices


def renormalised(probs: Tensor, ids: Tensor) -> Tensor:
    """p~(v) = p(v) / sum of p over the sampled ids, (M, V) and (M, k) int64 -> (M, k).

    0 for every other id (Gemma 3, arXiv:2503.19786, section 2.2). With k = V this is the teacher's
    whole distribution; below, it favours likely tokens a little: its mean is not p.
    """
    kept = probs.gather(1, ids)
    return kept / kept.sum(1, keepdim=True)


# --- losses per token ---------------------------------------------------------------------------


def forward_kl(student: GPT, teacher: GPT, batch: ResponseBatch) -> Tensor:
    """KL(p || q) = sum_v p(v) (log p(v) - log q(v)) at each response position, (N, T), 0 at padding.

    p is the teacher, q the student, which alone gets a gradient: q - p with respect to its logits.
    (Hinton et al. 2015, arXiv:1503.02531.) On responses that the teacher wrote, the sum over a
    response is KL(p || q) of whole responses in expectation, and so is its gradient: the text does
    not depend on the student. The other direction is `gpt.log_probs.full_kl(student, teacher)`.
    """

    def divergence(logits: Tensor, teacher_logits: Tensor) -> Tensor:
        return kl_from_logits(teacher_logits, logits)[:, None]

    kl = of_both(divergence, student, teacher, batch, temperature=1)
    return scatter_responses(kl[:, 0], batch)


@torch.no_grad()
def sampled_targets(
    teacher: GPT,
    batch: ResponseBatch,
    k: int,
    generator: torch.Generator | None = None,
    *,
    taken: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """k ids that the teacher samples at each of the M valid response positions, and their targets, (M, k).

    Where the batch is a rank's part of a larger one, `taken` (positions of the whole,) bool says which
    of its positions are here: random numbers are drawn for all of them, on the CPU.
    """
    hidden = response_hidden(teacher, batch, batch.predicting_columns)  # (M, D)
    weight, size = teacher.wte.weight, rows_of_chunk(teacher.wte.weight)
    taken = torch.ones(len(hidden), dtype=torch.bool) if taken is None else taken.cpu()
    uniforms = torch.rand(len(taken), len(weight), generator=generator)[taken]  # (M, V)
    ids, targets = [], []
    for piece, uniform in zip(hidden.split(size), uniforms.split(size), strict=True):
        probs = head_product(piece, weight).softmax(-1)
        chosen = sample_token_ids(probs, k, on_device(uniform, probs.device))
        ids.append(chosen)
        targets.append(renormalised(probs, chosen))
    return torch.cat(ids), torch.cat(targets)


def sampled_cross_entropy(
    student: GPT, batch: ResponseBatch, ids: Tensor, targets: Tensor
) -> Tensor:
    """`topk_cross_entropy` of the student at each response position, (N, T), 0 at padding.

    ids and targets (M, k) of the M valid positions, from `sampled_targets`. With k = V it is
    `forward_kl` plus the teacher's entropy, with the same gradient.
    """
    hidden = response_hidden(student, batch, batch.predicting_columns)
    weight = student.wte.weight

    def cross_entropy(hidden: Tensor, ids: Tensor, targets: Tensor) -> Tensor:
        return topk_cross_entropy(head_product(hidden, weight), ids, targets)[:, None]

    loss = in_chunks(cross_entropy, rows_of_chunk(weight), hidden, ids, targets)
    return scatter_responses(loss[:, 0], batch)


def distillation_loss(
    config: DistillationConfig,
    student: GPT,
    teacher: GPT,
    batch: ResponseBatch,
    generator: torch.Generator | None = None,
    *,
    denominator: float | None = None,
    taken: Tensor | None = None,
) -> Tensor:
    """The mean over response tokens of the loss that the flags name, nats per token.

    Where the batch is a part of one, `denominator` is the whole's count of tokens, and `taken` says
    which part (`sampled_targets`).
    """
    if config.loss == "topk_ce":
        ids, targets = sampled_targets(
            teacher, batch, config.sampled_tokens, generator, taken=taken
        )
        token_loss = sampled_cross_entropy(student, batch, ids, targets)
    elif config.loss == "reverse_kl":
        token_loss = full_kl(student, teacher, batch)
    else:
        token_loss = forward_kl(student, teacher, batch)
    return token_loss.sum() / (denominator or max(int(batch.response_mask.sum()), 1))


def own_gradient(
    config: DistillationConfig,
    student: GPT,
    teacher: GPT,
    batch: ResponseBatch,
    generator: torch.Generator,
) -> float:
    """Add the gradient of this rank's rows of the batch, which share one draw; their part of the loss."""
    rows, drawn = shard(torch.arange(len(batch))), generator.get_state()
    parts = []
    for part in rows.split(config.micro_batch_size or max(len(rows), 1)):
        generator.set_state(drawn)
        chosen = torch.zeros_like(batch.response_mask)
        chosen[part] = True
        with precision(student.device, config.precision):
            loss = distillation_loss(
                config, student, teacher, batch.rows(part), generator,
                denominator=int(batch.response_mask.sum()), taken=chosen[batch.response_mask],
            )  # fmt: skip
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
    sampled = generate(
        author,
        prompts,
        SamplingParams(max_new_tokens=max_new_tokens),
        generator,
        eos_id=tokenizer.eos_id,
    )
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
    rule: Rule | None = None,
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
    generators = {name: make_generator(config.seed, name) for name in ("sampling", "token ids")}
    state = TrainingState({"student": student, "optimizer": optimizer}, generators)
    if config.resume and folder is not None:
        state.load(folder)
    seed = derive_seed(config.seed, "prompt order")
    for step in state.steps_left(config.steps):
        begin = time.perf_counter()
        lr = cosine_schedule(step, config.steps, peak=config.lr, warmup=config.warmup)
        set_learning_rate(optimizer, lr)
        index = epoch_shuffled_indices(step, config.batch_size, len(prompts), seed).tolist()
        author = teacher if config.author == "teacher" else student
        records = [prompts[i] for i in index]
        with precision(student.device, config.precision):
            batch, _ = sampled_batch(
                author, tokenizer, records, config.max_new_tokens, generators["sampling"]
            )
        optimizer.zero_grad(set_to_none=True)
        loss = own_gradient(config, student, teacher, batch, generators["token ids"])
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
    measured: Callable[[GPT, Sequence[PromptRecord]], tuple[dict[str, float], Any]],
    records: Sequence[PromptRecord],
) -> dict[str, Any]:
    """The numbers of several models on the test prompts, which are also printed."""
    report = {name: measured(model, records)[0] for name, model in models.items()}
    print(f"{len(records)} test prompts; reverse_kl: to the teacher, nats per response")
    for name, numbers in report.items():
        print(f"  {name:8}" + "  ".join(f"{k} {v:.3f}" for k, v in numbers.items()))
    return {"prompts": len(records)} | report


def teacher_of(config: DistillationConfig, tokenizer: Tokenizer, device: torch.device) -> GPT:
    """The frozen teacher, its linear layers in the precision of the run."""
    teacher = open_teacher(
        config.teacher, tokenizer, device, data=config.data, preset=config.preset
    )
    if config.precision == "bfloat16":
        linears_to_bfloat16(teacher)
    return teacher


def teacher_texts(
    config: DistillationConfig,
    teacher: GPT,
    tokenizer: Tokenizer,
    records: Sequence[PromptRecord],
    folder: Path,
    start: int,
) -> TextLog | None:
    """A log of how both models read a few answers of the teacher, the same ones all along."""
    first = records[:RECORDED]
    if not first:
        return None
    generator = make_generator(config.seed, "texts that are shown")
    with precision(teacher.device, config.precision):
        batch, _ = sampled_batch(teacher, tokenizer, first, config.max_new_tokens, generator)
    return open_texts(config, folder, tokenizer, batch, start, teacher)


def main(config: DistillationConfig) -> Path:
    """Distil with all I/O and return the run folder. Test prompts are answered after training."""
    device = open_device(config.device, config.precision)
    base = config.base or default_folder("pretraining", config.data, config.preset)
    student, tokenizer = load_policy(base, device)
    fit_for_training(config, student)
    start = frozen_copy(student)
    teacher = teacher_of(config, tokenizer, device)
    room = min(model.config.context for model in (student, teacher)) - config.max_new_tokens
    if room < 1:
        raise UserError(f"--max-new-tokens {config.max_new_tokens} leaves no room for a prompt")
    prompts = open_prompts(config.data, tokenizer, room, config)
    out = config.out or default_folder("distillation", config.data, config.preset)
    folder = open_run(out, config, resume=config.resume)
    open_page(folder, "distillation", config)
    done = saved_step(folder) if config.resume else 0
    keep_until(folder / "samples.jsonl", done)
    gold = RULES.get(config.data)  # the true objective of a world: only measured
    texts = teacher_texts(config, teacher, tokenizer, prompts["validation"], folder, done)

    def measured(model: GPT, records: Sequence[PromptRecord]) -> Measured:
        with precision(device, config.precision):
            return measure(model, teacher, tokenizer, records, config.max_new_tokens, gold)

    def validate(model: GPT, step: int) -> dict[str, float]:
        numbers, answers = measured(model, prompts["validation"][: config.eval_prompts])
        append_jsonl(folder / "samples.jsonl", [{"step": step} | row for row in answers[:8]])
        if texts is not None:
            texts.write(model, step)
        return {f"validation/{name}": value for name, value in numbers.items()}

    log = MetricLog(
        config.steps,
        path=folder / "metrics.jsonl",
        show=("loss", "validation/reverse_kl_full", "validation/gold"),
        every=config.eval_every,
        title=config.loss,
        start=done,
    )
    print(f"distillation on {config.data}: {config.loss}, text by the {config.author} ({device})")
    with stepping(log, folder):
        train(
            config, student, teacher, tokenizer, prompts["train"], log,
            validate=validate if config.eval_prompts else None, folder=folder,
        )  # fmt: skip
    save_gpt(folder / MODEL_FILE, student, tokenizer)
    save_adapter(folder / "adapter", student, display_path(base))
    if config.test_prompts:
        models = {"before": start, "after": student, "teacher": teacher}
        report = tested(models, measured, prompts["test"][: config.test_prompts])
        write_json(folder / "report.json", report)
    refresh(folder, log.rows)
    say_findings(config, log.rows, folder)
    finish_run(folder)
    say_written(folder)
    return folder


if __name__ == "__main__":
    run_command(main, DistillationConfig, PRESETS)
