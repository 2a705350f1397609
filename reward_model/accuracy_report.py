"""How good a reward model is on held-out pairs: accuracy, baselines, calibration, length bias.

A judge may order pairs as a trivial rule does and know nothing else: `against_rules` looks where such a
rule is wrong or silent, `edited_copies` at answers that were cut, padded, or written for another prompt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data.collate import ResponseBatch, collate_responses
from data.records import SPLIT_KEY, split_of
from gpt.ranks import score_in_micro_batches
from gpt.token_rows import token_rows
from gpt.tokenizer import Tokenizer
from harness.files import append_jsonl, save_figure
from harness.paths import TOKENS
from harness.ranks.collectives import on_main
from reward_model.pairs import TokenPair, by_prompt, collate_pairs, repeated
from reward_model.scalar_head import RewardModel
from reward_model.trivial_rules import Rule, Texts, rules_for

FOLLOWED = 0.7  # share of pairs, by its interval, that a judge orders as the rule which it follows
FEWEST_TELLING = 6  # pairs; of five a coin is right in all or in none once in 16 times: no evidence


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
            f"{n['pairs']} labelled pairs"
        ]
        if tests := n.get("test_pairs"):
            lines[0] += f" ({n['pairs'] - tests} of validation + {tests} of test)"
        best = n.get("trivial_rule", {"rule": "longer", "accuracy": n["length_accuracy"]})
        by = " (the best trivial rule, by the training pairs)" if "trivial_rule" in n else ""
        lines += [f"  baselines: {best['rule']} wins {best['accuracy']:.3f}{by}, a coin 0.500"]
        if by:
            lines += [
                f"  where that rule is wrong or silent: {share_of(best['where_it_fails'])}",
                f"  answers of equal length, within a quarter: {share_of(n['equal_length'])}",
                f"  the shorter answer was preferred: {share_of(n['shorter_chosen'])}",
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
        if copies := n.get("edited_copies"):
            lines += [
                "edited copies of held-out answers; a good judge scores the whole one highest"
            ]
            lines += ["".join(f"{name:>11}" for name in [*copies[0]][1:])]
        for text, *scores in (row.values() for row in copies or ()):
            lines += ["".join(f"{score:>+11.2f}" for score in scores) + f"  {text!r}"]
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


def share(count: float, of: int) -> str:
    low, high = wilson_interval(count, of)
    return f"{count / of:.2f} of {of} (95% interval {low:.2f} to {high:.2f})" if of else "none of 0"


def share_of(part: Mapping[str, Any]) -> str:
    return share((part["accuracy"] or 0) * part["pairs"], part["pairs"])


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
    count, table = len(margins), calibration(margins * scale)
    return counted(margins) | {
        "calibration": table,
        "calibration_error": sum(abs(c - r) * n for c, r, n in table) / count,
    }


def counted(margins: Tensor) -> dict[str, Any]:
    """How many pairs these are, and the share that is ordered right with its interval."""
    n, right = len(margins), float(wins(margins).sum())
    accuracy = right / n if n else None
    return {"pairs": n, "accuracy": accuracy, "accuracy_interval": wilson_interval(right, n)}


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
    tokenizer: Tokenizer,
    at_once: int,
    prefers: Callable[[float, float], float] | None = None,
    most: int = 2000,
) -> Report:
    """Centre the scores on `most` of the pairs or some more, evenly; compare those of the held-out ones.

    What a trivial rule knows is from at most some 2,000 pairs, for which no model is asked.
    """
    some, known = (pairs[:: max(len(pairs) // count, 1)] for count in (most, 2000))
    model.normalize_on(collate_pairs(some, tokenizer.eos_id).to(model.device), at_once)
    chosen, rejected, batch = score_pairs(model, held_out, tokenizer.eos_id, at_once)
    report = preference_report(
        chosen, rejected, batch.lengths.cpu(), held_out, float(model.std), prefers
    )
    splits = [split_of(pair.meta[SPLIT_KEY]) for pair in held_out if SPLIT_KEY in pair.meta]
    report.numbers.update(
        position_bias([*pairs, *held_out]),
        test_pairs=splits.count("test"),
        **against_rules(report.margins, texts_of(known, tokenizer), texts_of(held_out, tokenizer)),
        edited_copies=edited_copies(model, held_out, tokenizer),
    )
    return report


def texts_of(pairs: Sequence[TokenPair], tokenizer: Tokenizer) -> list[Texts]:
    read = tokenizer.decode
    return [(read(pair.prompt), read(pair.chosen), read(pair.rejected)) for pair in pairs]


def against_rules(
    margins: Tensor, train: Sequence[Texts], held_out: Sequence[Texts]
) -> dict[str, Any]:
    """How a judge with these margins (K,) on held-out pairs compares with trivial rules.

    `trivial_rule` orders most training pairs right, in the direction that does there. `followed_rule` is
    the best that the judge cannot be told from (`follows`), or None.
    """
    judge, found = counted(margins), list[dict[str, Any]]()
    for names, rule in rules_for(train).items():
        right = _share(differences(rule, train))
        gaps = differences(rule, held_out) * (-1 if right < 0.5 else 1)
        about = {"rule": names[right < 0.5], "accuracy": _share(gaps)}
        about |= {"training_accuracy": max(right, 1 - right)}
        about |= {"agreement": counted((margins * gaps)[gaps != 0])["accuracy_interval"]}
        found.append(about | {"where_it_fails": counted(margins[gaps <= 0])})
    found.sort(key=lambda about: -about["training_accuracy"])
    followed = [about for about in found if follows(judge, about)][:1]
    lengths = torch.tensor([[len(answer) for answer in both] for _, *both in held_out])  # (K, 2)
    longer = lengths[:, 0] - lengths[:, 1]
    return {
        "trivial_rule": found[0],
        "followed_rule": followed[0] | {"more_pairs": more_pairs(judge, followed[0])}
        if followed else None,
        "equal_length": counted(margins[longer.abs() <= lengths.amax(1) / 4]),
        "shorter_chosen": counted(margins[longer < 0]),
    }  # fmt: skip


def differences(rule: Rule, texts: Sequence[Texts]) -> Tensor:
    """By how much more the chosen answers have, (K,) float64."""
    return torch.tensor([float(rule(p, a)) - rule(p, b) for p, a, b in texts], dtype=torch.float64)


def follows(judge: Mapping[str, Any], rule: Mapping[str, Any]) -> bool:
    """Whether a judge that is better than a coin cannot be told from this rule.

    The rule is right as often, within the judge's interval; the judge orders nearly all pairs as it does,
    and is not shown to be better than a coin where it is wrong or silent.
    """
    low, fails = judge["accuracy_interval"][0], rule["where_it_fails"]
    told = fails["pairs"] >= FEWEST_TELLING and fails["accuracy_interval"][0] > 0.5
    return low > 0.5 and rule["accuracy"] >= low and rule["agreement"][0] >= FOLLOWED and not told


def more_pairs(judge: Mapping[str, Any], rule: Mapping[str, Any]) -> int:
    """How many more pairs on which the rule fails would tell a judge that is as good there as elsewhere.

    Wilson's interval of p is above 1/2 where n > (z / 2)^2 / (p - 1/2)^2. 0: the pairs have told.
    """
    fails = rule["where_it_fails"]
    enough = max(math.floor((1.96 / 2 / (judge["accuracy"] - 0.5)) ** 2) + 1, FEWEST_TELLING)
    return 0 if fails["accuracy_interval"][1] < 0.5 else max(enough - fails["pairs"], 0)


@torch.no_grad()
def edited_copies(
    model: RewardModel, pairs: Sequence[TokenPair], tokenizer: Tokenizer
) -> list[dict[str, Any]]:
    """Scores of three preferred answers and of each cut to a half, with its last sentence said again, and
    replaced by the answer to another prompt; nothing where all pairs have one prompt."""
    some, rows = [group[0] for group in by_prompt(pairs)[:3]], []
    for pair, other in zip(some, some[1:] + some[:1], strict=True) if len(some) > 1 else ():
        room, text = model.gpt.config.context - len(pair.prompt), tokenizer.decode(pair.chosen)
        end = [id for id in pair.chosen[-1:] if id == tokenizer.eos_id]
        half = pair.chosen[: max((len(pair.chosen) - len(end)) // 2, 1)]
        padded = repeated((pair.chosen, text, bool(end)), 1, tokenizer, room)[0]
        copies = {"whole": pair.chosen, "cut short": half + end, "padded": padded}
        copies["off topic"] = other.chosen[:room]
        batch = collate_responses([pair.prompt] * len(copies), [*copies.values()], tokenizer.eos_id)
        scores = model(batch.to(model.device)).tolist()
        rows.append({"answer": text[:40], **dict(zip(copies, scores, strict=True))})
    return rows


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
