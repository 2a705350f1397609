"""Train an outcome reward model on labelled texts by binary cross-entropy.

    python -m reward_model.outcome_training --data train.jsonl --base runs/pretraining-texts-english
    python -m reward_model.outcome_training --data aclImdb/train --tokenizer texts.tiktoken --layers 1

The same scalar head as the Bradley-Terry model's learns from labels instead of pairs: the score of a
text is the log-odds that it is good. It reads pieces of the texts, of --shortest tokens up to the
context. RL takes the run folder as --reward-model, as it takes any other.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch

from data.collate import epoch_shuffled_indices
from data.labelled import read_labelled
from data.names import data_name
from data.splits import split_of
from gpt.model import GPT, GPTConfig
from gpt.published.pretrained import load_policy
from gpt.tokenizer import Tokenizer, load_tokenizer
from harness.command_flags import OptimizerFlags, TrainingFlags
from harness.command_line import run_command
from harness.device import open_device, precision
from harness.errors import UserError
from harness.files import write_json
from harness.flag_ranges import AtLeastOne, AtLeastTwo, NotEmpty, NotNegative
from harness.metric_log import MetricLog, per_second
from harness.optimizer import (
    adamw,
    check_losses,
    clip_and_step,
    cosine_schedule,
    set_learning_rate,
)
from harness.paths import MODEL_FILE, RUNS
from harness.ranks.collectives import all_reduce_sum, check_alike, shard_chunks
from harness.report.writing import open_page, refresh, say_written
from harness.run_folder import finish_run, open_run, stepping
from harness.seeds import derive_seed, make_generator
from harness.training_state import TrainingState, keep_state, saved_step
from reward_model.loss import outcome_loss
from reward_model.outcomes import (
    LabelledTokens,
    encode_labelled,
    outcome_report,
    piece_batch,
    plot_outcomes,
    report_text,
)
from reward_model.scalar_head import Pooling, RewardModel, save_reward_model

HEAD_WIDTH = 32  # of a fresh trunk's attention heads


@dataclass(frozen=True)
class OutcomeConfig(OptimizerFlags, TrainingFlags):
    """Train an outcome reward model on labelled texts."""

    data: Annotated[str, NotEmpty("is empty: give a file or a folder")] = "train.jsonl"
    """Labelled texts: a file, or a folder with pos/ and neg/ (data/README.md)."""
    held_out: str | None = None
    """Labelled texts to report on; default: the validation tenth of the data."""
    held_out_texts: AtLeastOne = 2000
    """The most texts to report on."""
    base: Path | None = None
    """Run folder of the language model whose copy is the trunk; default: a fresh trunk."""
    tokenizer: str = "glassbox"
    """Tokenizer of a fresh trunk: glassbox, gpt2 or a rank file of gpt.tokenizer_training."""
    layers: AtLeastOne = 1
    """Layers of a fresh trunk."""
    width: AtLeastOne = 64
    """Width of a fresh trunk, a multiple of 32."""
    context: int = 256
    """Positions of a fresh trunk."""
    pooling: Pooling = "mean_score"
    """How token scores become one score."""
    shortest: AtLeastTwo = 16
    """Tokens of the shortest pieces to learn from; the longest fill the context."""
    epochs: AtLeastOne = 3
    """Passes over the texts, each with new pieces."""
    steps: AtLeastOne | None = None
    """Optimizer steps; overrides epochs."""
    batch_size: AtLeastOne = 32
    """Texts per optimizer step."""
    micro_batch_size: AtLeastOne = 32
    """Texts per forward pass; changes memory and speed, never the gradient."""
    weight_decay: NotNegative = 0.1

    fixed_length = True  # a cosine brings the learning rate down over the steps

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % HEAD_WIDTH:
            raise ValueError(f"width must be a multiple of {HEAD_WIDTH}: got {self.width}")
        if self.context < self.shortest:
            raise ValueError(
                f"context {self.context} is less than the shortest piece, {self.shortest} tokens: raise "
                "the one or lower the other"
            )


def train(
    model: RewardModel,
    texts: Sequence[LabelledTokens],
    config: OutcomeConfig,
    log: MetricLog,
    *,
    folder: Path | None = None,
) -> list[dict[str, Any]]:
    """Minimise the cross-entropy in place and return one metrics row a step.

    `log.total` steps of `config.batch_size` texts, one piece each; with a folder they can be resumed.
    """
    optimizer = adamw(model, config.lr, weight_decay=config.weight_decay)
    state = TrainingState({"model": model, "optimizer": optimizer}, {})
    if config.resume and folder is not None:
        state.load(folder)
    model.eval()  # no dropout: the scores in training are the scores in use
    seed, longest = derive_seed(config.seed, "text order"), model.gpt.config.context
    for step in state.steps_left(log.total):
        begin = time.perf_counter()
        lr = cosine_schedule(step, log.total, peak=config.lr, warmup=config.warmup)
        set_learning_rate(optimizer, lr)
        index = epoch_shuffled_indices(step, config.batch_size, len(texts), seed).tolist()
        rng = random.Random(derive_seed(config.seed, f"pieces {step}"))
        visited = [texts[i] for i in index]
        optimizer.zero_grad(set_to_none=True)
        row = add_texts(model, visited, config, longest, rng)
        row |= {"grad_norm": clip_and_step(optimizer, model.parameters(), config.max_norm)}
        row |= {"lr": lr, "texts_per_second": per_second(len(visited), begin)}
        check_losses(row)
        state.step = step + 1
        log.write(step=state.step, **row)
        last = state.step == log.total
        if state.step % log.every == 0 or last:
            check_alike(model, "reward model")
        keep_state(state, folder, config.checkpoint_every, last=last)
    return log.rows


def add_texts(
    model: RewardModel,
    texts: Sequence[LabelledTokens],
    config: OutcomeConfig,
    longest: int,
    rng: random.Random,
) -> dict[str, Any]:
    """Add the gradient of the loss of a piece of each of this rank's texts; the loss and the accuracy."""
    batch, labels = piece_batch(texts, config.shortest, longest, rng)
    sums = {"loss": 0.0, "accuracy": 0.0}
    for rows in shard_chunks(batch.totals, config.micro_batch_size):
        wanted = labels[rows].to(model.device)
        with precision(model.device, config.precision):
            scores = model.raw_scores(batch.rows(rows).to(model.device))
        loss = outcome_loss(scores, wanted, denominator=len(texts))
        loss.backward()
        sums["loss"] += float(loss.detach())
        sums["accuracy"] += float(((scores > 0) == (wanted > 0)).sum()) / len(texts)
    return all_reduce_sum(sums)


def open_texts(
    config: OutcomeConfig, tokenizer: Tokenizer
) -> tuple[list[LabelledTokens], list[LabelledTokens]]:
    """Training and held-out texts: splits by a hash of the text, or a source of their own."""
    result = read_labelled(config.data)
    print(result.summary())
    if config.held_out is None:
        train, held_out = (
            [record for record in result.records if split_of(record.text) == split]
            for split in ("train", "validation")
        )
    else:
        train = result.records
        known = [record.text for record in train]
        other = read_labelled(config.held_out, known=known, limit=config.held_out_texts)
        print(other.summary())
        held_out = other.records
    held_out = held_out[: config.held_out_texts]
    if len({record.label for record in train}) < 2 or not held_out:
        raise UserError(
            f"{config.data}: {len(train)} texts to train on and {len(held_out)} to report on are too "
            "few, and both good and bad ones are needed: give more"
        )
    return encode_labelled(train, tokenizer), encode_labelled(held_out, tokenizer)


def open_trunk(config: OutcomeConfig, device: torch.device) -> tuple[GPT, Tokenizer]:
    """The base model, or a fresh trunk with random weights."""
    if config.base is not None:
        return load_policy(config.base, device)
    tokenizer = load_tokenizer(config.tokenizer)
    shape = GPTConfig(
        tokenizer.n_vocab, config.context, config.layers, config.width // HEAD_WIDTH, config.width
    )
    return GPT(shape).initialize(make_generator(config.seed, "weights")).to(device), tokenizer


def main(config: OutcomeConfig) -> Path:
    """Read the texts, train, report, and return the run folder."""
    device = open_device(config.device, config.precision)
    trunk, tokenizer = open_trunk(config, device)
    texts, held_out = open_texts(config, tokenizer)
    folder = config.out or RUNS / f"outcome-{data_name(config.data)}"
    folder = open_run(folder, config, resume=config.resume)
    open_page(folder, "reward_model", config)
    model = RewardModel.from_policy(trunk, config.pooling, make_generator(config.seed, "head"))
    steps = config.steps or max(config.epochs * len(texts) // config.batch_size, 1)
    print(f"training an outcome reward model on {len(texts):,} texts for {steps} steps ({device})")
    log = MetricLog(
        steps,
        path=folder / "metrics.jsonl",
        show=("loss", "accuracy", "texts_per_second"),
        every=max(steps // 8, 1),
        title="outcome reward model",
        start=saved_step(folder) if config.resume else 0,
    )
    with stepping(log, folder):
        train(model, texts, config, log, folder=folder)
    save_reward_model(folder / MODEL_FILE, model, tokenizer)
    context = trunk.config.context
    lengths = [context // 8, context // 4, context]
    at_once = 2 * config.micro_batch_size
    report = outcome_report(model, texts, held_out, tokenizer, lengths, at_once)
    write_json(folder / "report.json", report)
    plot_outcomes(report, folder / "report.png")
    refresh(folder, log.rows)
    print(report_text(report))
    finish_run(folder)
    say_written(folder)
    return folder


if __name__ == "__main__":
    run_command(main, OutcomeConfig)
