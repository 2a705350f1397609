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
from typing import Any

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
    keep_splits,
)
from gpt.checkpoint import load_policy, save_gpt
from gpt.corpus import Example, collate_examples, encode_record
from gpt.fit import AnswerFileFlags, check_fit
from gpt.generate import SamplingParams
from gpt.lora import fit_for_training
from gpt.model import GPT, Preset
from gpt.pretraining import language_model_loss, validate
from gpt.published import load_with_tokenizer
from gpt.ranks import sample, shard_batch
from gpt.settings import presets_of, run_with_presets
from gpt.token_rows import RECORDED, TextLog
from gpt.tokenizer import Tokenizer
from harness.device import open_device, precision
from harness.errors import UserError
from harness.files import append_jsonl, display_path, reading
from harness.flags import AtLeastOne, Count, MemoryFlags, NotNegative, OptimizerFlags
from harness.metric_log import MetricLog, per_second
from harness.optimizer import adamw, check_losses, clip_and_step, follow_cosine, steps_of_passes
from harness.paths import MODEL_FILE
from harness.ranks.collectives import all_reduce_sum, on_main, rank
from harness.run_folder import conclude, finish_run, open_run, stepping
from harness.seeds import derive_seed, make_generator
from harness.training_state import TrainingState, keep_state, saved_step

SHOWN = 8  # held-out prompts that are answered at the end

PRESETS = presets_of({"tiny": {}, "study": {}}, "finetuning")


@dataclass(frozen=True)
class FinetuningConfig(AnswerFileFlags, OptimizerFlags, MemoryFlags):
    """Fine-tune a GPT-2 on prompt + answer records."""

    preset: Preset = "tiny"
    """Size of the base model and matching defaults, applied before all other flags."""
    data: Data = USUAL
    """A world (the preferred answers in its reward model's pairs) or a file (data/README.md)."""
    pairs: Path | None = None
    """reviews only: the file of preference pairs; default: the one in the reward model's run folder."""
    base: Path | None = None
    """Run folder of the model to start from; default: gpt.pretraining's."""
    weights: str | None = None
    """Start from GPT-2 instead: gpt2, gpt2-medium, gpt2-large, gpt2-xl, hf://OWNER/NAME or a folder."""
    epochs: AtLeastOne = 2
    """Passes over the training records."""
    steps: AtLeastOne | None = None
    """Optimizer steps; overrides epochs."""
    batch_size: AtLeastOne = 32
    """Records per optimizer step."""
    micro_batch_size: AtLeastOne | None = None
    """Records per forward pass; changes memory and speed, never the gradient. Default: all of a step."""
    warmup: Count = 20
    weight_decay: NotNegative = 0.01
    eval_every: AtLeastOne = 50
    """Steps between held-out losses."""

    @property
    def is_small(self) -> bool:
        """Whether one process a core is faster than threads: published weights are not small."""
        return (self.weights is None or self.largest_model > 0) and super().is_small


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
    optimizer = adamw(model, config.lr, weight_decay=config.weight_decay)
    state = TrainingState({"model": model, "optimizer": optimizer}, {})
    if config.resume and folder is not None:
        state.load(folder)
    seed = derive_seed(config.seed, "example order")
    size = config.batch_size
    held_out_batches = [
        collate_examples(held_out[i : i + size], eos_id) for i in range(0, len(held_out), size)
    ]
    model.train()
    for step in state.steps_left(log.total):
        begin = log.begins()
        lr = follow_cosine(optimizer, step, log.total, config)
        if model.config.dropout > 0:  # a function of the step, so that a resumed run drops the same
            torch.manual_seed(derive_seed(config.seed, f"dropout {step}") + rank())
        index = epoch_shuffled_indices(step, size, len(examples), seed).tolist()
        batch = collate_examples([examples[i] for i in index], eos_id).to(model.device)
        tokens = int(batch.response_mask.sum())
        loss = torch.zeros((), dtype=model.wte.weight.dtype, device=model.device)
        optimizer.zero_grad(set_to_none=True)
        for rows in shard_batch(batch, config.micro_batch_size):
            with precision(model.device, config.precision):
                part = language_model_loss(model, rows, denominator=tokens)
            part.backward()
            loss += part.detach()
        norm = clip_and_step(optimizer, model.parameters(), config.max_norm)
        state.step = step + 1
        row = {**all_reduce_sum({"loss": float(loss)}), "grad_norm": norm, "lr": lr}  # float waits
        row["tokens_per_second"] = per_second(tokens, begin)  # of training alone
        if held_out_batches and (state.step % config.eval_every == 0 or state.step == log.total):
            row["held_out_loss"] = validate(config, model, held_out_batches, state.step, texts)
        check_losses(row)
        log.write(step=state.step, **row)
        keep_state(state, folder, config.checkpoint_every, last=state.step == log.total)
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
        answers = preferred_answers(file_source(pairs).pairs().records)
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
    if config.weights is not None:
        model, tokenizer = load_with_tokenizer(config.weights)
        return model.to(device), tokenizer
    base = config.base or default_folder("pretraining", config.data, config.preset)
    if config.base is None and not (base / MODEL_FILE).exists():
        if not is_world(config.data):
            file_source(config.data).responses()  # refuses prompts alone
        made = has_annotator(config.data)
        stage = "reward_model.reward_model_training" if made else "gpt.pretraining"
        raise UserError(
            f"there is no model to start from in {display_path(base)}: name one with --base, or make it "
            f"with  python -m {stage}{flags_for(config.data, config.preset)}"
        )
    return load_policy(base, device)


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


@reading()
def main(config: FinetuningConfig) -> Path:
    """Fine-tune with all I/O and return the run folder."""
    device = open_device(config.device, config.precision)
    if is_checked(config.data):
        raise UserError(
            f"{config.data}: a rule checks its answers, and none are there to learn from"
        )
    keep_splits("finetuning", config, config.model_name)
    model, tokenizer = starting_model(config, device)
    fit_for_training(config, model)
    examples, held_out = read_examples(config, tokenizer, model.config.context)
    folder = config.out or default_folder("finetuning", config.data, config.model_name)
    folder = open_run(folder, config, resume=config.resume)
    steps = config.steps or steps_of_passes(config.epochs, len(examples), config.batch_size)
    answers = f"{len(examples)} answers, {len(held_out)} held out,"
    print(f"fine-tuning on {answers} for {steps} steps ({device}, {config.precision})")
    log = MetricLog(
        steps, path=folder / "metrics.jsonl", every=config.eval_every, title="fine-tuning",
        show=("loss", "held_out_loss", "lr"), start=saved_step(folder) if config.resume else 0,
        beside=steps / config.eval_every * len(held_out) / config.batch_size / 3,  # forward alone
    )  # fmt: skip
    texts = None
    if held_out:
        in_data = collate_examples(held_out[:RECORDED], tokenizer.eos_id)
        texts = TextLog(config, folder, tokenizer, in_data, log.start)
    with stepping(log, folder):
        rows = train(
            config, model, examples, held_out, log,
            eos_id=tokenizer.eos_id, folder=folder, texts=texts,
        )  # fmt: skip
    save_gpt(folder / MODEL_FILE, model, tokenizer)
    if held_out:
        answer_some(config, model, tokenizer, held_out, folder / "samples.jsonl")
    if "held_out_loss" in rows[-1]:
        print(f"held-out loss {rows[-1]['held_out_loss']:.3f} nats per token")
    conclude(folder)
    finish_run(folder)
    return folder


if __name__ == "__main__":
    run_with_presets(main, FinetuningConfig, PRESETS)
