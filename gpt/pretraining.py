"""Pre-training a GPT-2: next-token prediction with AdamW, warm-up and a cosine.

    python -m gpt.pretraining                          the reviews world, laptop size, 1 to 4 minutes
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
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from data.collate import ResponseBatch
from data.sources import USUAL, Data, is_world
from gpt.checkpoint import load_gpt, save_gpt
from gpt.corpus import Corpus, TextCorpus, open_corpus
from gpt.generate import evaluation_mode
from gpt.log_probs import token_log_probs
from gpt.model import GPT, Preset, preset_config
from gpt.ranks import shard_batch
from gpt.recipes import RecipeFlags
from gpt.stage import Plan, Stage
from gpt.token_rows import TextLog
from gpt.tokenizer import Tokenizer, load_tokenizer
from harness.device import precision
from harness.errors import UserError
from harness.flags import (
    AtLeastOne,
    Count,
    NotNegative,
    Range,
    TrainingFlags,
)
from harness.metric_log import MetricLog
from harness.paths import BEST, MODEL_FILE
from harness.ranks.collectives import all_reduce_sum, check_alike, on_main, shard
from harness.seeds import make_generator
from harness.supervised import SupervisedFlags, SupervisedSteps, never


@dataclass(frozen=True)
class PretrainingConfig(SupervisedFlags, RecipeFlags):
    """Pre-train a GPT-2 from random weights."""

    preset: Literal[Preset, "teacher"] = "tiny"  # type: ignore[assignment]  # which no other command makes
    """The model's shape."""
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
    steps = SupervisedSteps(config, model, log, folder, dropout=model.config.dropout)
    held_out = corpus.held_out_batches()
    expected_tokens = config.accumulation * corpus.tokens_per_batch

    def best_and_over() -> bool:
        """Keep the weights where the held-out loss is the lowest; whether the run stops early."""
        losses = held_out_losses(log.rows)
        worse = len(losses) - 1 - losses.index(min(losses))  # measurements since the best one
        if keep_best is not None and not worse:
            keep_best()
        return worse >= config.stop_after

    model.train()
    for step in steps:
        first = step * config.accumulation
        batches = [
            corpus.batch(first + index).to(model.device) for index in range(config.accumulation)
        ]
        tokens = sum(int(batch.response_mask.sum()) for batch in batches)
        loss = torch.zeros((), dtype=model.wte.weight.dtype, device=model.device)
        for batch in [part for whole in batches for part in shard_batch(whole)]:
            with precision(model.device, config.precision):
                part = language_model_loss(model, batch, denominator=expected_tokens)
            part.backward()
            loss += part.detach() * expected_tokens / tokens
        row = steps.update({"loss": loss}, tokens_per_second=tokens)  # of training alone
        if measured := steps.due(config.eval_every):
            row["held_out_loss"] = validate(config, model, held_out, steps.state.step, texts)
        steps.close(row, best_and_over if measured and keep_best is not None else never)
    model.eval()
    return log.rows


def held_out_losses(rows: Sequence[Mapping[str, float]]) -> list[float]:
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


class Work(NamedTuple):
    """What pre-training has opened."""

    model: GPT
    tokenizer: Tokenizer
    corpus: Corpus
    held_out: list[ResponseBatch]


def open_work(config: PretrainingConfig, device: torch.device) -> tuple[PretrainingConfig, Work]:
    """The tokenizer, the texts, and a model with random weights."""
    tokenizer = open_tokenizer(config)
    shape = preset_config(config.preset, tokenizer.n_vocab, config.dropout)
    corpus = open_corpus(
        config.data, tokenizer, batch_size=config.batch_size, context=shape.context,
        seed=config.seed,
    )  # fmt: skip
    model = GPT(shape).initialize(make_generator(config.seed, "weights")).to(device)
    model.gradient_checkpointing = config.gradient_checkpointing
    config = replace(config, steps=steps_of(config, corpus))
    return config, Work(model, tokenizer, corpus, corpus.held_out_batches())


def plan(config: PretrainingConfig, work: Work, folder: Path, done: int) -> Plan:
    size, text = f"{work.model.parameter_count():,} weights", work.corpus.description
    return Plan(
        config.steps, f"pre-training {size} on {text}",
        ("loss", "held_out_loss", "lr", "tokens_per_second"), config.eval_every,
        config.steps / config.eval_every * len(work.held_out) / config.accumulation / 3,
        title="pre-training",
    )  # fmt: skip


def train_and_watch(
    config: PretrainingConfig, work: Work, log: MetricLog, folder: Path
) -> list[dict[str, Any]]:
    """`train`; texts are written down as it learns, and the best weights kept where it may stop early."""
    texts = TextLog(config, folder, work.tokenizer, work.held_out[0], log.start)
    best = partial(save_gpt, folder / BEST / MODEL_FILE, work.model, work.tokenizer)
    keep_best = best if config.stop_after else None
    return train(config, work.model, work.corpus, log, folder, texts, keep_best)


def keep(config: PretrainingConfig, work: Work, log: MetricLog, folder: Path) -> None:
    """The last weights, or the best ones."""
    model, best = work.model, folder / BEST / MODEL_FILE
    if config.stop_after:
        log.close()
        model.load_state_dict(load_gpt(best, model.device)[0].state_dict())
    save_gpt(folder / MODEL_FILE, model, work.tokenizer)
    losses = held_out_losses(log.rows)
    print(f"held-out loss {min(losses) if config.stop_after else losses[-1]:.3f} nats per token")
    on_main(lambda: shutil.rmtree(best.parent, ignore_errors=True))


STAGE = Stage("pretraining", PretrainingConfig, open_work, plan, train_and_watch, keep)
main = STAGE.run  # config -> run folder

if __name__ == "__main__":
    STAGE.run_as_command()
