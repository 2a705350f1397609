"""Pre-training a GPT-2: next-token prediction with AdamW, warm-up and a cosine.

    python -m gpt.pretraining                          the reviews world, laptop size, about a minute
    python -m gpt.pretraining --data sums              the arithmetic world
    python -m gpt.pretraining --data text.txt --preset small
    python -m gpt.pretraining --data pairs.json        the prompts and chosen answers of a data file

The loss is the mean over predicted tokens of -log p(token | tokens before it).
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from data.collate import ResponseBatch
from data.sources import USUAL, Data, Presets, default_folder, is_world, keep_splits
from gpt.checkpoint import load_gpt, save_gpt
from gpt.corpus import Corpus, TextCorpus, open_corpus
from gpt.generate import evaluation_mode
from gpt.log_probs import token_log_probs
from gpt.model import GPT, Preset, preset_config
from gpt.ranks import shard_batch
from gpt.settings import run_with_presets
from gpt.token_rows import TextLog
from gpt.tokenizer import Tokenizer, load_tokenizer
from harness.device import open_device, precision
from harness.errors import UserError
from harness.files import reading
from harness.flags import (
    AtLeastOne,
    Count,
    NotNegative,
    OptimizerFlags,
    Range,
    TrainingFlags,
)
from harness.metric_log import MetricLog, per_second
from harness.optimizer import adamw, check_losses, clip_and_step, follow_cosine
from harness.paths import BEST, MODEL_FILE
from harness.ranks.collectives import (
    all_reduce_sum,
    check_alike,
    on_main,
    rank,
    shard,
)
from harness.run_folder import conclude, finish_run, open_run, stepping
from harness.seeds import derive_seed, make_generator
from harness.training_state import TrainingState, keep_state, saved_step

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {},
    "study": {},
    "teacher": dict(steps=2000, lr=1.5e-3),
    "own": dict(
        tokenizer="own", batch_size=2, epochs=4, warmup=30, eval_every=25, checkpoint_every=200
    ),
    "small": dict(tokenizer="gpt2", lr=1e-3, batch_size=8, steps=100, eval_every=25, warmup=20),
    **{
        name: dict(
            tokenizer="gpt2", lr=lr, batch_size=32, accumulation=8, steps=20000, warmup=700,
            eval_every=500, checkpoint_every=500,
        )
        for name, lr in [
            ("gpt2", 6e-4), ("gpt2-medium", 3e-4), ("gpt2-large", 2.5e-4), ("gpt2-xl", 2e-4),
        ]
    },
}  # fmt: skip
PRESETS = Presets(SIZES, "pretraining")


@dataclass(frozen=True)
class PretrainingConfig(OptimizerFlags, TrainingFlags):
    """Pre-train a GPT-2 from random weights."""

    preset: Literal[Preset, "teacher"] = "tiny"
    """Model shape and matching defaults, applied before all other flags."""
    data: Data = USUAL
    """A world (reviews, sums), a file (.txt, or a data file whose texts are joined) or a folder of
    .txt."""
    tokenizer: Literal["glassbox", "own", "gpt2"] = "glassbox"
    """glassbox (ours, no download), own (made from the data) or gpt2 (tiktoken)."""
    steps: AtLeastOne = 1000
    """Optimizer steps."""
    epochs: AtLeastOne | None = None
    """Passes over a file's text after which it ends, if --steps do not end it before."""
    batch_size: AtLeastOne = 32
    """Rows per forward pass."""
    accumulation: AtLeastOne = 1
    """Forward passes per optimizer step."""
    lr: NotNegative = 2e-3
    weight_decay: NotNegative = 0.1
    dropout: Annotated[float, Range("[0, 1)", "must be at least 0 and below 1")] = 0.0
    """Dropout while pre-training (GPT-2: 0.1)."""
    eval_every: AtLeastOne = 200
    """Steps between held-out losses."""
    patience: Count | None = None
    """Held-out losses without a new best after which it stops; the best weights are kept. 0: all steps,
    and the last weights. Default: 5 for a file, 0 for a world."""

    @property
    def stop_after(self) -> int:
        if self.patience is not None:
            return self.patience
        return 0 if is_world(self.data) else 5


def language_model_loss(
    model: GPT, batch: ResponseBatch, denominator: float | None = None
) -> Tensor:
    """Mean over predicted tokens of -log p, in nats; `denominator` overrides the token count.

    With accumulation it is the whole optimizer batch's, so that the gradients add up to that exactly.
    """
    total = -token_log_probs(model, batch).sum()
    return total / (denominator or max(int(batch.response_mask.sum()), 1))


@torch.no_grad()
def held_out_loss(model: GPT, batches: Sequence[ResponseBatch]) -> float:
    """Nats per token over all batches together, dropout off."""
    nats = tokens = 0.0
    with evaluation_mode([model]):
        for batch in shard(batches):
            batch = batch.to(model.device)
            nats -= float(token_log_probs(model, batch).sum())
            tokens += float(batch.response_mask.sum())
    both = all_reduce_sum({"nats": nats, "tokens": tokens})
    return both["nats"] / max(both["tokens"], 1)


def validate(
    config: TrainingFlags,
    model: GPT,
    batches: Sequence[ResponseBatch],
    step: int,
    texts: TextLog | None,
) -> float:
    """`held_out_loss` in the run's precision; `texts` are written down, ranks must hold equal weights."""
    with precision(model.device, config.precision):
        loss = held_out_loss(model, batches)
    if texts is not None:
        texts.write(model, step)
    check_alike(model, "model")
    return loss


@torch.enable_grad()  # whatever a notebook has set
def train(
    config: PretrainingConfig,
    model: GPT,
    corpus: Corpus,
    log: MetricLog,
    folder: Path | None = None,
    texts: TextLog | None = None,
    keep_best: Callable[[], object] | None = None,
) -> list[dict[str, Any]]:
    """Train `model` in place and return one metrics row a step.

    `corpus.batch(index)` gives the rows of forward pass number `index`. With a folder, a resumable
    state is kept there. `texts` are written down with each held-out loss. `keep_best` is called where
    that is the lowest so far, and the run ends after `config.stop_after` that are not.
    """
    optimizer = adamw(model, config.lr, weight_decay=config.weight_decay)
    state = TrainingState({"model": model, "optimizer": optimizer}, {})
    if config.resume and folder is not None:
        state.load(folder)
    held_out = corpus.held_out_batches()
    expected_tokens = config.accumulation * corpus.tokens_per_batch
    model.train()
    for step in state.steps_left(config.steps):
        begin = log.begins()
        lr = follow_cosine(optimizer, step, config.steps, config)
        if model.config.dropout > 0:  # a function of the step, so that a resumed run drops the same
            torch.manual_seed(derive_seed(config.seed, f"dropout {step}") + rank())
        first = step * config.accumulation
        batches = [
            corpus.batch(first + index).to(model.device) for index in range(config.accumulation)
        ]
        tokens = sum(int(batch.response_mask.sum()) for batch in batches)
        optimizer.zero_grad(set_to_none=True)
        loss = torch.zeros((), dtype=model.wte.weight.dtype, device=model.device)
        for batch in [part for whole in batches for part in shard_batch(whole)]:
            with precision(model.device, config.precision):
                part = language_model_loss(model, batch, denominator=expected_tokens)
            part.backward()
            loss += part.detach() * expected_tokens / tokens
        norm = clip_and_step(optimizer, model.parameters(), config.max_norm)
        state.step = step + 1
        row = all_reduce_sum({"loss": float(loss)}) | {"grad_norm": norm, "lr": lr}  # float waits
        row["tokens_per_second"] = per_second(tokens, begin)  # of training alone
        if state.step % config.eval_every == 0 or state.step == config.steps:
            row["held_out_loss"] = validate(config, model, held_out, state.step, texts)
        check_losses(row)
        log.write(step=state.step, **row)
        if keep_best is not None and "held_out_loss" in row:
            losses = held_out_losses(log.rows)
            worse = len(losses) - 1 - losses.index(min(losses))  # measurements since the best one
            if not worse:
                keep_best()
            state.stopped = worse >= config.stop_after
        done = state.stopped or state.step == config.steps
        keep_state(state, folder, config.checkpoint_every, last=done)
        if done:
            break
    model.eval()
    return log.rows


def held_out_losses(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Every held-out loss so far."""
    return [row["held_out_loss"] for row in rows if "held_out_loss" in row]


def open_tokenizer(config: PretrainingConfig) -> Tokenizer:
    """The tokenizer that the flags name; `own` is trained on the data's texts."""
    if config.tokenizer != "own":
        return load_tokenizer(config.tokenizer)
    if is_world(config.data):
        raise UserError(
            f"--tokenizer own is made from a file, and {config.data} is a world: use glassbox"
        )
    from gpt.tokenizer_training import own_tokenizer  # which few runs need

    return own_tokenizer(config.data)


def steps_of(config: PretrainingConfig, corpus: Corpus) -> int:
    """--steps, or those of --epochs where they are fewer. UserError for epochs of an endless world."""
    if config.epochs is None:
        return config.steps
    if not isinstance(corpus, TextCorpus):
        raise UserError(f"--epochs: {corpus.description} has no end to count to; use --epochs None")
    tokens = config.accumulation * corpus.tokens_per_batch
    return min(config.steps, math.ceil(config.epochs * corpus.split / tokens))


@reading()
def main(config: PretrainingConfig) -> Path:
    """Pre-train with all I/O and return the run folder."""
    device = open_device(config.device, config.precision)
    keep_splits("pretraining", config, config.preset)
    tokenizer = open_tokenizer(config)
    shape = preset_config(config.preset, tokenizer.n_vocab, config.dropout)
    corpus = open_corpus(
        config.data, tokenizer, batch_size=config.batch_size, context=shape.context,
        seed=config.seed,
    )  # fmt: skip
    config = replace(config, steps=steps_of(config, corpus))
    folder = config.out or default_folder("pretraining", config.data, config.preset)
    folder = open_run(folder, config, resume=config.resume)
    model = GPT(shape).initialize(make_generator(config.seed, "weights")).to(device)
    model.checkpoint_blocks = config.checkpoint_blocks
    size = f"{model.parameter_count():,} weights"
    where = f"({device}, {config.precision})"
    print(f"pre-training {size} on {corpus.description} for {config.steps:,} steps {where}")
    start = saved_step(folder) if config.resume else 0
    held_out = corpus.held_out_batches()
    log = MetricLog(
        config.steps, path=folder / "metrics.jsonl", every=config.eval_every, title="pre-training",
        show=("loss", "held_out_loss", "lr", "tokens_per_second"), start=start,
        beside=config.steps / config.eval_every * len(held_out) / config.accumulation / 3,
    )  # fmt: skip
    texts = TextLog(config, folder, tokenizer, held_out[0], start)
    with stepping(log, folder):
        keep_best = partial(save_gpt, folder / BEST / MODEL_FILE, model, tokenizer)
        rows = train(
            config, model, corpus, log, folder, texts, keep_best if config.stop_after else None
        )
    if config.stop_after:
        log.close()
        model.load_state_dict(load_gpt(folder / BEST / MODEL_FILE, device)[0].state_dict())
    save_gpt(folder / MODEL_FILE, model, tokenizer)
    loss = min(held_out_losses(rows)) if config.stop_after else rows[-1]["held_out_loss"]
    print(f"held-out loss {loss:.3f} nats per token")
    conclude(folder)
    finish_run(folder)
    on_main(lambda: shutil.rmtree(folder / BEST, ignore_errors=True))
    return folder


if __name__ == "__main__":
    run_with_presets(main, PretrainingConfig, PRESETS)
