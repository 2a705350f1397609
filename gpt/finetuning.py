"""Supervised fine-tuning: next-token prediction on the response, given the prompt.

    python -m gpt.finetuning                                  the reviews world's preferred answers
    python -m gpt.finetuning --data pairs.json --preset small

Reads prompt + answer records; of preference pairs the chosen answers. It is the simplest use of
preference data, and the baseline that reinforcement learning has to beat.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from data.collate import epoch_shuffled_indices
from data.records import PreferenceRecord, ResponseRecord, key_of, split_of
from data.sources import (
    USUAL,
    Data,
    default_folder,
    file_source,
    flags_for,
    has_annotator,
    is_checked,
    is_world,
)
from gpt.checkpoint import save_gpt
from gpt.corpus import Example, collate_examples, encode_record
from gpt.folder import open_model
from gpt.generate import SamplingParams
from gpt.lengths import AnswerFileFlags, check_fit
from gpt.lora import fit_for_training
from gpt.model import GPT
from gpt.pretraining import language_model_loss, validate
from gpt.ranks import sample, shard_batch
from gpt.recipes import ModelFlags
from gpt.stage import Plan, Stage
from gpt.token_rows import RECORDED, TextLog
from gpt.tokenizer import Tokenizer
from harness.device import precision
from harness.errors import UserError
from harness.files import append_jsonl, display_path
from harness.flags import AtLeastOne, Count, NotNegative
from harness.metric_log import MetricLog
from harness.optimizer import steps_of_passes
from harness.paths import MODEL_FILE
from harness.ranks.collectives import on_main
from harness.seeds import derive_seed, make_generator
from harness.supervised import SupervisedFlags, SupervisedSteps

SHOWN = 8  # held-out prompts that are answered at the end


@dataclass(frozen=True)
class FinetuningConfig(AnswerFileFlags, SupervisedFlags, ModelFlags):
    """Fine-tune a model on prompt + answer records."""

    data: Data = USUAL
    """A world (the preferred answers in its reward model's pairs) or a file (data/README.md)."""
    pairs: Path | None = None
    """reviews only: the file of preference pairs; default: the one in the reward model's run folder."""
    epochs: AtLeastOne = 2
    """Passes over the training records."""
    steps: AtLeastOne | None = None
    """Optimizer steps; overrides epochs."""
    batch_size: AtLeastOne = 32
    """Records per optimizer step."""
    micro_batch_size: AtLeastOne | None = None
    """Records per forward pass; changes memory and speed, never the gradient. Default: all of a step."""
    warmup_steps: Count = 20
    weight_decay: NotNegative = 0.01
    eval_every: AtLeastOne = 50
    """Steps between held-out losses."""


@torch.enable_grad()  # whatever a notebook has set
def train(
    config: FinetuningConfig,
    model: GPT,
    examples: Sequence[Example],
    held_out: Sequence[Example],
    log: MetricLog,
    *,
    eos_id: int,
    folder: Path | None = None,
    texts: TextLog | None = None,
) -> list[dict[str, Any]]:
    """Fine-tune `model` in place for `log.total` steps and return one metrics row a step."""
    steps = SupervisedSteps(config, model, log, folder, dropout=model.config.dropout)
    seed, size = derive_seed(config.seed, "example order"), config.batch_size
    held_out_batches = [
        collate_examples(held_out[i : i + size], eos_id) for i in range(0, len(held_out), size)
    ]
    model.train()
    for step in steps:
        index = epoch_shuffled_indices(step, size, len(examples), seed).tolist()
        batch = collate_examples([examples[i] for i in index], eos_id).to(model.device)
        tokens = int(batch.response_mask.sum())
        loss = torch.zeros((), dtype=model.wte.weight.dtype, device=model.device)
        for rows in shard_batch(batch, config.micro_batch_size):
            with precision(model.device, config.precision):
                part = language_model_loss(model, rows, denominator=tokens)
            part.backward()
            loss += part.detach()
        row = steps.update({"loss": loss}, tokens_per_second=tokens)  # of training alone
        if held_out_batches and steps.due(config.eval_every):
            row["held_out_loss"] = validate(
                config, model, held_out_batches, steps.state.step, texts
            )
        steps.close(row)
    model.eval()
    return log.rows


def preferred_answers(records: Sequence[PreferenceRecord]) -> list[ResponseRecord]:
    """Each prompt's answer that won most of its comparisons, wherever these stand."""
    wins: dict[str, Counter[str]] = {}
    for record in records:
        wins.setdefault(record.prompt, Counter())[record.chosen] += 1
    return [ResponseRecord(prompt, won.most_common(1)[0][0]) for prompt, won in wins.items()]


def read_examples(
    config: FinetuningConfig, tokenizer: Tokenizer, context: int
) -> tuple[list[Example], list[Example]]:
    """Training and held-out examples, split by prompt; what is too long is left out and counted."""
    if has_annotator(config.data):
        judge = default_folder("reward_model", config.data, config.preset)
        pairs = config.pairs or judge / "pairs.jsonl"
        if not pairs.exists():
            raise UserError(
                f"the answers of {config.data} are the reward model's pairs, and {display_path(pairs)} is "
                "not there: run python -m reward_model.reward_model_training"
                f"{flags_for(config.data, config.preset)} first"
            )
        answers = preferred_answers(file_source(pairs, None).pairs().records)
        print(f"the preferred answers to {len(answers):,} prompts, from {display_path(pairs)}")
    else:
        result = file_source(config.data, tokenizer.chat).responses()
        result.say()
        answers = result.records
    limits = config.limits(context)
    encoded = [encode_record(record, tokenizer) for record in answers]
    lengths = [(len(prompt), len(answer)) for prompt, answer in encoded]
    check_fit(config.data, lengths, limits, "records")
    splits: dict[str, list[Example]] = {"train": [], "validation": [], "test": []}
    for record, (prompt, answer) in zip(answers, encoded, strict=True):
        if limits.reason(len(prompt), len(answer)) is None:
            splits[split_of(key_of(record))].append((prompt, limits.cut_to_fit(prompt, answer)))
    if not splits["train"]:
        raise UserError(f"{config.data}: no record is left to train on: give more")
    return splits["train"], splits["validation"]


def starting_model(config: FinetuningConfig, device: torch.device) -> tuple[GPT, Tokenizer]:
    """The model and tokenizer that the flags name."""
    base = default_folder("pretraining", config.data, config.preset)
    if config.model is None and not (base / MODEL_FILE).exists():
        if not is_world(config.data):
            file_source(config.data, None).responses()  # refuses prompts alone
        made = has_annotator(config.data)
        stage = "reward_model.reward_model_training" if made else "gpt.pretraining"
        raise UserError(
            f"there is no model to start from in {display_path(base)}: name one with --model, or make it "
            f"with  python -m {stage}{flags_for(config.data, config.preset)}"
        )
    return open_model(config.model or base, device, config.chat_arguments)


def answer_some(
    config: FinetuningConfig,
    model: GPT,
    tokenizer: Tokenizer,
    held_out: Sequence[Example],
    path: Path,
) -> None:
    """Write down what the model answers to a few held-out prompts, beside the answers in the data."""
    shown = random.Random(config.seed).sample(held_out, min(SHOWN, len(held_out)))
    prompts = [prompt for prompt, _ in shown]
    room = min(config.max_response_tokens, model.config.context - max(map(len, prompts)))
    params, generator = SamplingParams(max_new_tokens=room), make_generator(config.seed, "samples")
    with precision(model.device, config.precision):
        sampled = sample(model, tokenizer, prompts, params, generator)
    shown_tokens = [
        {"prompt": prompt, "response": answer, "data": in_data}
        for (prompt, in_data), answer in zip(shown, sampled.token_lists(), strict=True)
    ]
    rows = [{name: tokenizer.decode(ids) for name, ids in row.items()} for row in shown_tokens]
    on_main(lambda: path.unlink(missing_ok=True))  # of a run that was ended here
    append_jsonl(path, rows)


class Work(NamedTuple):
    """What fine-tuning has opened."""

    model: GPT
    tokenizer: Tokenizer
    examples: list[Example]
    held_out: list[Example]


def open_work(config: FinetuningConfig, device: torch.device) -> tuple[FinetuningConfig, Work]:
    """The model, and the records that fit it."""
    if is_checked(config.data):
        raise UserError(
            f"{config.data}: a rule checks its answers, and none are there to learn from"
        )
    model, tokenizer = starting_model(config, device)
    fit_for_training(config, model)
    return config, Work(model, tokenizer, *read_examples(config, tokenizer, model.config.context))


def plan(config: FinetuningConfig, work: Work, folder: Path, done: int) -> Plan:
    """--steps, or those of --epochs."""
    examples, held_out = len(work.examples), len(work.held_out)
    steps = config.steps or steps_of_passes(config.epochs, examples, config.batch_size)
    return Plan(
        steps, f"fine-tuning on {examples} answers, {held_out} held out",
        ("loss", "held_out_loss", "lr"), config.eval_every,
        steps / config.eval_every * held_out / config.batch_size / 3,  # forward alone
        title="fine-tuning",
    )  # fmt: skip


def train_and_watch(
    config: FinetuningConfig, work: Work, log: MetricLog, folder: Path
) -> list[dict[str, Any]]:
    """`train`; a few held-out texts are written down as it learns."""
    texts, eos_id = None, work.tokenizer.eos_id
    if work.held_out:
        in_data = collate_examples(work.held_out[:RECORDED], eos_id)
        texts = TextLog(config, folder, work.tokenizer, in_data, log.start)
    return train(
        config, work.model, work.examples, work.held_out, log,
        eos_id=eos_id, folder=folder, texts=texts,
    )  # fmt: skip


def keep(config: FinetuningConfig, work: Work, log: MetricLog, folder: Path) -> None:
    """The model, and what it answers to some held-out prompts."""
    save_gpt(folder / MODEL_FILE, work.model, work.tokenizer)
    if work.held_out:
        answer_some(config, work.model, work.tokenizer, work.held_out, folder / "samples.jsonl")
    if "held_out_loss" in log.rows[-1]:
        print(f"held-out loss {log.rows[-1]['held_out_loss']:.3f} nats per token")


STAGE = Stage("finetuning", FinetuningConfig, open_work, plan, train_and_watch, keep)
main = STAGE.run  # config -> run folder

if __name__ == "__main__":
    STAGE.run_as_command()
