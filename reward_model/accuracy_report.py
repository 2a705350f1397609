"""How good a reward model is on held-out pairs: accuracy, baselines, calibration, length bias."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data.collate import ResponseBatch
from gpt.ranks import score_in_micro_batches
from gpt.token_rows import token_rows
from gpt.tokenizer import Tokenizer
from harness.files import append_jsonl, save_figure
from harness.paths import TOKENS
from harness.ranks.collectives import on_main
from reward_model.pairs import TokenPair, collate_pairs
from reward_model.scalar_head import RewardModel


@dataclass(frozen=True)
class Report:
    """`numbers` are for report.json; the rest is what the figure draws."""

    numbers: dict[str, Any]
    margins: Tensor  # (K,) score of chosen minus rejected
    scores: Tensor  # (2K,)
    lengths: Tensor  # (2K,) response tokens

    def text(self) -> str:
        n = self.numbers
        lines = [
            f"held-out accuracy {_with_interval(n['accuracy'], n['accuracy_interval'])} on "
            f"{n['pairs']} labelled pairs",
            f"  baselines: longer answer wins {n['length_accuracy']:.3f}, coin 0.500",
        ]
        if "gold_accuracy" in n:
            lines += [
                "  ordered like the gold reward "
                f"{_with_interval(n['gold_accuracy'], n['gold_accuracy_interval'])}, longer answer "
                f"{n['length_gold_accuracy']:.3f}"
            ]
        if "label_ceiling" in n:
            lines += [f"  the labels themselves agree with gold in {n['label_ceiling']:.3f}"]
        lines += [
            f"  calibration error {n['calibration_error']:.3f}, score-length correlation "
            f"{n['length_correlation']:+.2f}"
        ]
        if "first_chosen" in n:
            share = _with_interval(n["first_chosen"], n["first_chosen_interval"])
            lines += [f"  of the two shown the first was chosen in {share}, of all pairs"]
        return "\n".join(lines)


def _with_interval(value: float, interval: Sequence[float]) -> str:
    return f"{value:.3f} (95% interval {interval[0]:.3f} to {interval[1]:.3f})"


def wilson_interval(successes: float, trials: int, z: float = 1.96) -> tuple[float, float]:
    """95% interval of a proportion (Wilson 1927), sensible also near 0 and 1."""
    if trials == 0:
        return 0.0, 1.0
    p = successes / trials
    centre = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials**2))
    return max(min(centre - half, p), 0.0), min(max(centre + half, p), 1.0)


def correlation(a: Tensor, b: Tensor) -> float:
    """Pearson correlation of two (K,) tensors; 0 where one of them is constant."""
    a, b = a.double() - a.double().mean(), b.double() - b.double().mean()
    scale = float(a.norm() * b.norm())
    return float(a @ b) / scale if scale > 0 else 0.0


def calibration(margins: Tensor, bins: int = 10) -> list[tuple[float, float, int]]:
    """(mean claimed probability, share of wins, pairs) per bin of sigmoid(|margin|), from 0.5 to 1.

    A model claims to be right with that probability, and is right if the margin is positive (`wins`).
    """
    claimed = torch.sigmoid(margins.abs())
    right = wins(margins)
    index = ((claimed - 0.5) * 2 * bins).long().clamp(max=bins - 1)
    table = []
    for b in range(bins):
        inside = index == b
        if inside.any():
            table.append(
                (float(claimed[inside].mean()), float(right[inside].mean()), int(inside.sum()))
            )
    return table


def accuracy_numbers(margins: Tensor, scale: float = 1.0) -> dict[str, Any]:
    """Share of right verdicts with its interval, and how well `scale` times the margins claim it."""
    right, count, table = float(wins(margins).sum()), len(margins), calibration(margins * scale)
    return {
        "accuracy": right / count,
        "accuracy_interval": wilson_interval(right, count),
        "calibration": table,
        "calibration_error": sum(abs(c - r) * n for c, r, n in table) / count,
    }


def preference_report(
    chosen: Tensor,
    rejected: Tensor,
    lengths: Tensor,
    pairs: Sequence[TokenPair],
    scale: float = 1.0,
    prefers: Callable[[float, float], float] | None = None,
) -> Report:
    """Compare scores (K,) each with labels, gold and length.

    lengths (2K,): of the chosen, then of the rejected. `scale` turns normalised scores back into
    the logits of the Bradley-Terry model, in which calibration is measured. Half of the ties are right.
    `prefers` is the world's, with which the labels were made.
    """
    margins = chosen - rejected
    longer = lengths[: len(chosen)].double() - lengths[len(chosen) :].double()
    scores = torch.cat([chosen, rejected])
    count = len(pairs)
    numbers: dict[str, Any] = {
        "pairs": count,
        **accuracy_numbers(margins, scale),
        "length_accuracy": _share(longer),
        "length_correlation": correlation(scores, lengths),
        "mean_margin": float(margins.mean()),
    }
    if all("gold_chosen" in pair.meta for pair in pairs):
        gold = torch.tensor([p.meta["gold_chosen"] - p.meta["gold_rejected"] for p in pairs])
        decided = gold != 0  # pairs of equal gold have no right order
        sign = gold.sign()[decided]
        agree = float(wins(margins[decided] * sign).sum())
        numbers |= {
            "gold_pairs": int(decided.sum()),
            "gold_accuracy": agree / max(int(decided.sum()), 1),
            "gold_accuracy_interval": wilson_interval(agree, int(decided.sum())),
            "length_gold_accuracy": _share(longer[decided] * sign),
        }
        if prefers is not None:
            both = [(p.meta["gold_chosen"], p.meta["gold_rejected"]) for p in pairs]
            numbers["label_ceiling"] = sum(prefers(max(g), min(g)) for g in both) / count
    return Report(numbers, margins, scores, lengths)


def wins(differences: Tensor) -> Tensor:
    """1 where a difference is positive and 1/2 for a tie, as if a coin decided it, float64."""
    return (differences > 0).double() + (differences == 0).double() / 2


def _share(differences: Tensor) -> float:
    """The share of `wins`."""
    return float(wins(differences).mean()) if len(differences) else 0.0


def score_pairs(
    model: RewardModel, pairs: Sequence[TokenPair], eos_id: int, micro_batch_size: int = 64
) -> tuple[Tensor, Tensor, ResponseBatch]:
    """Normalised scores of the chosen and of the rejected responses, (K,) each, and their batch."""
    batch = collate_pairs(pairs, eos_id).to(model.device)
    chosen, rejected = score_in_micro_batches(model, batch, micro_batch_size).chunk(2)
    return chosen.cpu(), rejected.cpu(), batch


def normalise_and_test(
    model: RewardModel,
    pairs: Sequence[TokenPair],
    held_out: Sequence[TokenPair],
    eos_id: int,
    at_once: int,
    prefers: Callable[[float, float], float] | None = None,
    most: int = 2000,
) -> Report:
    """Centre the scores on `most` of the pairs or some more, evenly; compare those of the held-out ones."""
    reference = collate_pairs(pairs[:: max(len(pairs) // most, 1)], eos_id)
    model.normalize_on(reference.to(model.device), at_once)
    chosen, rejected, batch = score_pairs(model, held_out, eos_id, at_once)
    report = preference_report(
        chosen, rejected, batch.lengths.cpu(), held_out, float(model.std), prefers
    )
    report.numbers.update(position_bias([*pairs, *held_out]))
    return report


def position_bias(pairs: Sequence[TokenPair]) -> dict[str, Any]:
    """How often a person chose the answer that was shown first; nothing where that is not known."""
    verdicts = [pair.meta["verdict"] for pair in pairs if "verdict" in pair.meta]
    first = verdicts.count("first")
    interval = wilson_interval(first, len(verdicts))
    known = {"first_chosen": first / max(len(verdicts), 1), "first_chosen_interval": interval}
    return known if verdicts else {}


@torch.no_grad()
def record_prefixes(
    model: RewardModel, pairs: Sequence[TokenPair], tokenizer: Tokenizer, folder: Path
) -> None:
    """Write the answers of a few pairs with the score after each of their tokens, the preferred first."""
    on_main(lambda: (folder / TOKENS).unlink(missing_ok=True))  # of a run that was ended here
    if not pairs:
        return
    ordered = [pairs[i : i + 1] for i in range(len(pairs))]
    batches = [collate_pairs(pair, tokenizer.eos_id) for pair in ordered]
    for number, (batch, (pair,)) in enumerate(zip(batches, ordered, strict=True)):
        scores = model.prefix_scores(batch.to(model.device))
        last = scores.gather(1, batch.lengths[:, None].to(scores.device) - 1)[:, 0].tolist()
        notes = {"reward": last, "preferred": [1.0, 0.0]}
        if "gold_chosen" in pair.meta:
            notes["gold"] = [pair.meta["gold_chosen"], pair.meta["gold_rejected"]]
        rows = token_rows(
            tokenizer, batch, [tokenizer.decode(pair.prompt)] * 2, {"prefix_score": scores}, notes,
            kind=f"held-out pair {number + 1}", step=0,
        )  # fmt: skip
        append_jsonl(folder / TOKENS, rows)


def plot_report(report: Report, path: Path) -> None:
    """Three panels: margins, calibration, score against length."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.8), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    accuracy = report.numbers["accuracy"]
    left.hist(report.margins.numpy(), bins=40, color="tab:blue", alpha=0.8)
    left.axvline(0, color="black", linewidth=1)
    left.set(
        xlabel="score of chosen minus rejected (standard deviations)",
        ylabel="held-out pairs",
        title=f"{accuracy:.1%} of the labels ordered right",
    )
    claimed, won, counts = zip(*report.numbers["calibration"], strict=True)
    middle.plot([0.5, 1], [0.5, 1], color="grey", linestyle="--", label="calibrated")
    errors = [(w - wilson_interval(w * n, n)[0], wilson_interval(w * n, n)[1] - w)
              for w, n in zip(won, counts, strict=True)]  # fmt: skip
    middle.errorbar(
        claimed, won, yerr=list(zip(*errors, strict=True)), marker="o", label="95% interval"
    )
    middle.set(
        xlabel="probability claimed for the preferred answer",
        ylabel="share of labels that agree",
        title="calibration",
    )
    middle.legend()
    right.scatter(report.lengths.numpy(), report.scores.numpy(), s=5, alpha=0.3)
    right.set(
        xlabel="response length (tokens)",
        ylabel="score (standard deviations)",
        title=f"correlation with length {report.numbers['length_correlation']:+.2f}",
    )
    save_figure(figure, path)
