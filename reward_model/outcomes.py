"""Labelled texts as token rows, pieces of them to learn from, and the report on held-out ones."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data.collate import ResponseBatch, collate_documents
from data.labelled import LabelledText
from gpt.log_probs import score_in_micro_batches
from gpt.tokenizer import Tokenizer
from harness.files import save_figure
from harness.ranks.collectives import on_main
from reward_model.accuracy_report import accuracy_numbers, correlation
from reward_model.ngrams import NgramRegression
from reward_model.scalar_head import RewardModel

FROM_THE_START = 0.5  # share of the pieces that begin where their text begins


@dataclass(frozen=True)
class LabelledTokens:
    """A text as token ids, with its EOS, and whether it is good."""

    tokens: list[int]
    label: bool


def encode_labelled(records: Sequence[LabelledText], tokenizer: Tokenizer) -> list[LabelledTokens]:
    """Records -> tokens; each text ends with EOS."""
    return [
        LabelledTokens([*tokenizer.encode(record.text), tokenizer.eos_id], record.label)
        for record in records
    ]


def cut_piece(tokens: Sequence[int], shortest: int, longest: int, rng: random.Random) -> list[int]:
    """A piece of a text, its length log-uniform in shortest..longest, half of them from its start.

    A classifier is reliable only on lengths that it has met, and most answers are shorter than texts.
    """
    length = round(math.exp(rng.uniform(math.log(shortest), math.log(longest))))
    last = max(len(tokens) - length, 0)
    start = 0 if rng.random() < FROM_THE_START else rng.randint(0, last)
    return list(tokens[start : start + length])


def piece_batch(
    texts: Sequence[LabelledTokens], shortest: int, longest: int, rng: random.Random
) -> tuple[ResponseBatch, Tensor]:
    """One piece of each text, right-padded, and the labels (N,) float32. A piece's first token is given."""
    rows = [cut_piece(text.tokens, shortest, longest, rng) for text in texts]
    return collate_documents(rows), torch.tensor([float(text.label) for text in texts])


@torch.no_grad()
def score_beginnings(
    model: RewardModel, texts: Sequence[LabelledTokens], length: int, micro_batch_size: int = 64
) -> Tensor:
    """The log-odds that each text is good from its first `length` tokens, (N,) on the CPU."""
    scores = []
    for start in range(0, len(texts), 1024):
        part = [text.tokens[:length] for text in texts[start : start + 1024]]
        batch = collate_documents(part).to(model.device)
        scores.append(score_in_micro_batches(model, batch, micro_batch_size).cpu())
    return torch.cat(scores)


def log_odds_report(scores: Tensor, labels: Tensor, lengths: Tensor) -> dict[str, Any]:
    """How good log-odds (N,) are for labels (N,) bool: accuracy, majority, calibration, length."""
    count, good = len(labels), int(labels.sum())
    return {
        "texts": count,
        **accuracy_numbers(torch.where(labels, scores, -scores)),
        "majority_accuracy": max(good, count - good) / count,
        "length_correlation": correlation(scores, lengths),
        "mean_score": float(scores.mean()),
    }


def outcome_report(
    model: RewardModel,
    train: Sequence[LabelledTokens],
    held_out: Sequence[LabelledTokens],
    tokenizer: Tokenizer,
    lengths: Sequence[int],
    micro_batch_size: int = 64,
) -> dict[str, Any]:
    """`log_odds_report` from the first n tokens for each n of `lengths`, beside n-gram regression."""
    labels = torch.tensor([text.label for text in held_out])
    report: dict[str, Any] = {}
    for length in lengths:
        scores = score_beginnings(model, held_out, length, micro_batch_size)
        sizes = torch.tensor([min(len(text.tokens), length) for text in held_out])
        numbers = log_odds_report(scores, labels, sizes)
        numbers["ngram_accuracy"] = on_main(
            partial(ngram_accuracy, train, held_out, tokenizer, length)
        )
        report[str(length)] = numbers
    return report


def ngram_accuracy(
    train: Sequence[LabelledTokens],
    held_out: Sequence[LabelledTokens],
    tokenizer: Tokenizer,
    length: int,
) -> float:
    """What regression on the first `length` tokens of the training texts gets right."""
    ours, theirs = (
        [tokenizer.decode(text.tokens[:length]) for text in texts] for texts in (train, held_out)
    )
    rival = NgramRegression().fit(ours, [text.label for text in train])
    labels = torch.tensor([text.label for text in held_out])
    return float(((rival(theirs) > 0) == labels).double().mean())


def report_text(report: dict[str, Any]) -> str:
    lines = []
    for length, n in report.items():
        low, high = n["accuracy_interval"]
        lines.append(
            f"first {length} tokens of {n['texts']:,} held-out texts: accuracy {n['accuracy']:.3f} "
            f"(95% interval {low:.3f} to {high:.3f}), n-gram regression {n['ngram_accuracy']:.3f}, "
            f"majority {n['majority_accuracy']:.3f}, calibration error {n['calibration_error']:.3f}, "
            f"score-length correlation {n['length_correlation']:+.2f}"
        )
    return "\n".join(lines)


def plot_outcomes(report: dict[str, Any], path: Path) -> None:
    """Accuracy by length beside the regression's, and calibration."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    lengths = [int(length) for length in report]
    own = [n["accuracy"] for n in report.values()]
    left.plot(lengths, own, marker="o", label="reward model")
    rival = [n["ngram_accuracy"] for n in report.values()]
    left.plot(lengths, rival, marker="s", linestyle="--", label="n-gram regression")
    left.set_xscale("log", base=2)
    left.set(xlabel="tokens read", ylabel="held-out accuracy", title="equal pieces of text")
    left.legend()
    right.plot([0.5, 1], [0.5, 1], color="grey", linestyle="--", label="calibrated")
    for length, numbers in report.items():
        claimed, won, _ = zip(*numbers["calibration"], strict=True)
        right.plot(claimed, won, marker="o", label=f"first {length} tokens")
    right.set(xlabel="probability claimed", ylabel="share that is right", title="calibration")
    right.legend()
    save_figure(figure, path)
