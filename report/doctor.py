"""The doctor: what a run's numbers say is wrong with it, and what to change. No model is needed.

    python -m report.doctor runs/grpo-reviews-tiny      or runs/*: several runs, of any stage

A rule yields the numbers that speak for a finding, or nothing. docs/faq.md says which planted bugs each
rule finds. Each script ends with the findings of its run."""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import fmean, median, variance
from typing import Any

from harness.command_line import run_command
from harness.errors import UserError
from harness.files import (
    as_user_error,
    display_path,
    parse_json,
    read_metrics,
    read_object,
    with_nan,
)

Row = Mapping[str, Any]


# A run folder, as its readers read it --------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What rules, pages and tables read of a run folder; empty where nobody kept it."""

    rows: Sequence[Row]  # metrics.jsonl, in order
    flags: Row = field(default_factory=dict)  # config.json
    results: Row = field(default_factory=dict)  # report.json
    folder: Path = Path()

    @property
    def label(self) -> str:
        return display_path(self.folder)

    def values(self, key: str) -> list[float]:
        """The finite numbers that were logged under `key`, in order."""
        found = [row[key] for row in self.rows if isinstance(row.get(key), int | float)]
        return [float(value) for value in found if math.isfinite(value)]

    def start(self, key: str, count: int = 5) -> float:
        """Mean of the first `count` values; NaN without any, which no comparison is true of."""
        return fmean(self.values(key)[:count] or [math.nan])

    def end(self, key: str, count: int = 5) -> float:
        """Mean of the last `count` values; NaN without any. Of an undone run, those of what is kept."""
        kept = self.rows[-1].get("kept_step") if self.rows else None
        if kept is None or key.startswith(
            "validation/"
        ):  # the last one is of the policy that is kept
            return fmean(self.values(key)[-count:] or [math.nan])
        inside = [
            row for row in self.rows if row["step"] <= kept + 1
        ]  # a step measures, then updates
        return fmean(Run(inside).values(key)[-count:] or [math.nan])

    def before_and_after(self, key: str) -> tuple[float, float]:
        """What report.json says of the start and of the policy that is kept; NaN where it does not."""
        start, kept = (self.results.get(end) or {} for end in ("before", "after"))
        return start.get(key, math.nan), kept.get(key, math.nan)

    def thirds(self, key: str, fewest: int = 6) -> tuple[float, float, float]:
        """Means of the first and last third, standard error of their difference; NaN of too few."""
        values = self.values(key) if len(self.values(key)) >= fewest else [math.nan] * 6
        third = len(values) // 3
        first, last = values[:third], values[-third:]
        return fmean(first), fmean(last), math.sqrt((variance(first) + variance(last)) / third)

    @property
    def spread(self) -> float:
        """Standard deviation of the first steps' rewards; 0 where it was not logged."""
        return fmean(self.values("reward_std")[:5] or [0.0])

    @property
    def solved(self) -> bool:
        """Whether a rule checks the answers and nearly all are right: no spread is left then."""
        return "solve_rate" in self.rows[-1] and self.end("reward") > 0.8


def runs_among(paths: Sequence[Path]) -> list[Run]:
    """The runs among paths such as runs/*; prints which paths are none. UserError if there is no run."""
    runs = [path for path in paths if (path / "metrics.jsonl").is_file()]
    others = ", ".join(display_path(path) for path in paths if path not in runs)
    if not runs:
        raise UserError(f"there is no metrics.jsonl in {others or 'no folder'}: name a run folder")
    if others:
        print(f"no run, having no metrics.jsonl: {others}")
    return list(map(read_run, runs))


def read_run(folder: Path) -> Run:
    """The run of a folder; what is missing there or cut off is empty."""
    found: dict[str, Any] = {}
    for name, file in (("flags", "config.json"), ("results", "report.json")):
        with suppress(OSError, UserError):
            found[name] = read_object(folder / file)
    rows = [with_nan(row) for row in lines(folder / "metrics.jsonl")]
    return Run(rows, folder=folder, **found)


def lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file that can be read; a page is also made of a damaged run."""
    rows = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        with suppress(ValueError):
            rows.append(parse_json(line))
    return [row for row in rows if isinstance(row, dict)]


# The rules ----------------------------------------------------------------------------------------

SEVERITIES = ("error", "warning", "note")  # numbers are wrong; the run suffers; worth knowing
Rule = Callable[[Run], Iterator[str]]
RULES: dict[Rule, tuple[str, str, str]] = {}  # each with severity, likeliest cause and remedy


@dataclass(frozen=True)
class Finding:
    """One thing that a run's numbers say."""

    rule: str
    severity: str
    cause: str
    remedy: str
    evidence: str


def rule(words: str) -> Callable[[Rule], Rule]:
    """Add a rule with "severity: cause. Change: remedy.", which is no docstring: -OO drops those."""
    severity, _, reasons = " ".join(words.split()).partition(": ")
    cause, _, remedy = reasons.partition(" Change: ")

    def add(found_by: Rule) -> Rule:
        RULES[found_by] = severity, cause, remedy
        return found_by

    return add


@rule("""error: a reward, a loss or a gradient is no number, and every later number follows from it.
    Change: mend the reward that gives it; lower --lr where a loss became NaN by itself.""")
def non_finite(run: Run) -> Iterator[str]:
    for row in run.rows:
        for key, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                yield f"{key} is {value} at step {row.get('step')}"


@rule("""warning: the learning rate is too high, or a few responses carry nearly the whole gradient.
    Change: lower --lr (or --critic-lr), and read samples.jsonl at those steps.""")
def exploding_gradient(run: Run) -> Iterator[str]:
    for key, first in (("grad_norm", 0), ("critic_grad_norm", 5)):  # a critic's begins large
        norms = run.values(key)[first:]
        usual = median(norms[: len(norms) // 2] or [math.nan])
        late = [norm for norm in norms[len(norms) // 5 :] if norm > 10 * usual > 1e-5]
        if len(norms) >= 10 and len(late) >= max(3, len(norms) // 60):
            yield f"{key} was above ten times {usual:.2g} in {len(late)} steps, up to {max(late):.2g}"


def worst_of_five(losses: Sequence[float]) -> float:
    """The highest median of five steps in a row; 0 of fewer."""
    return max((median(losses[i : i + 5]) for i in range(len(losses) - 4)), default=0.0)


@rule("""warning: the learning rate is too high for a model of this size: its scores jump.
    Change: leave --lr out, or lower it ten times (page 06).""")
def scores_jump(run: Run) -> Iterator[str]:
    norms, losses = (run.values(key)[len(run.rows) // 5 :] for key in ("grad_norm", "loss"))
    high, first = sum(norm > 15 for norm in norms), run.start("loss", 1)
    worst = worst_of_five(losses)  # a confident model's on the eight pairs of one step may be 1.2
    of_pairs = run.values("margin") and not run.values("reward") and not run.values("reward_chosen")
    if of_pairs and high >= max(3, len(norms) / 10) and worst > max(first, math.log(2)) + 0.1:
        yield (
            f"grad_norm is above 15 in {high} steps, the loss rose from {first:.2f} to {worst:.2f} "
            "(median of five steps)"
        )


@rule("""error: --lr is too high or too low, the loss has the wrong sign, or inputs do not match targets.
    Change: train on one batch until its loss is 0; then try another --lr (page 03).""")
def nothing_learned(run: Run) -> Iterator[str]:
    losses, accuracy = run.values("loss"), run.end("accuracy", len(run.rows) // 3)
    supervised = len(losses) >= 20 and not run.values("reward")  # a loss of RL says nothing
    if supervised and accuracy < 0.55:
        yield f"accuracy is {accuracy:.3f} over the last third, a coin has 0.5"
    worst = worst_of_five(losses)
    if supervised and worst > 1.5 * losses[0] + 0.05:
        yield f"loss climbed from {losses[0]:.3g} to {worst:.3g} (median of five steps)"


@rule(
    """note: the training data are being memorised. Change: train for fewer steps, or take more data."""
)
def memorising(run: Run) -> Iterator[str]:
    held_out, losses = run.values("held_out_loss"), run.values("loss")
    grows = len(held_out) >= 3 and held_out[-1] >= 1.03 * min(held_out)
    if grows and losses[-1] < losses[0] and "patience" not in run.flags:  # which stops by itself
        yield f"held_out_loss rose from {min(held_out):.3f} to {held_out[-1]:.3f}, loss fell"
    right, elsewhere = run.end("accuracy", 10), run.results.get("accuracy", math.nan)
    if right - elsewhere > 0.15:  # of healthy runs 0.09 at most
        yield f"accuracy is {right:.3f} on the last training pairs, {elsewhere:.3f} on held-out ones"


@rule("""warning: a rule that needs no judgement orders the pairs as well, and the judge has perhaps learned
    nothing else; a policy would learn it, too. Change: collect pairs on which that rule is wrong or silent,
    or drop some on which it is right; if the rule is what you want, pay it with --reward FILE:FUNCTION.""")
def trivial_judge(run: Run) -> Iterator[str]:
    if found := run.results.get("followed_rule"):
        fails, more = found["where_it_fails"], found["more_pairs"]
        right = (fails["accuracy"] or 0) * fails["pairs"]
        few = (
            f", too few to tell: {more} more would, about {5 * more} more of this kind in the file"
        )
        yield (
            f"{run.results['accuracy']:.2f} of the held-out pairs are ordered right, "
            f'{found["accuracy"]:.2f} by the rule "{found["rule"]} wins"; where that rule is wrong or '
            f"silent the judge is right in {right:g} of {fails['pairs']} pairs{few if more else ''}"
        )


@rule("""error: sampler and scorer disagree: a temperature is missing, dropout is on, or a mask is shifted.
    Change: score a fresh sample with the policy that wrote it; log-probs must be the same (page 02).""")
def ratio_at_start(run: Run) -> Iterator[str]:
    limit = 1e-3 if run.flags.get("precision") == "bfloat16" else 1e-4
    errors = run.values("ratio_error_at_start")
    if bad := sum(error > limit for error in errors):
        yield f"|ratio - 1| is up to {max(errors):.2g} before the first update (not 0 in {bad} steps)"


@rule("""error: the old log-probs are recomputed after the first update, so no ratio leaves 1.
    Change: compute the old log-probs once per batch, before its first update (page 04).""")
def ratio_always_one(run: Run) -> Iterator[str]:
    moved, groups = run.values("approx_kl")[2:], run.flags.get("prompts_per_step", 1)
    updates = run.flags.get("updates_per_batch", 1) * min(run.flags.get("minibatches", 1), groups)
    if updates > 1 and any(run.values("grad_norm")) and len(moved) >= 3 and max(moved) <= 1e-9:
        yield f"approx_kl is {max(moved):.1g} or less in every step, with {updates} updates a batch"


@rule("""error: the response mask is wrong: the EOS is left out of it, or it holds tokens of the prompt.
    Change: build it from the first EOS, inclusive, never from ids that differ from padding (page 02).""")
def impossible_length(run: Run) -> Iterator[str]:
    limit = run.flags.get("max_new_tokens", math.nan) if run.flags.get("data") != "" else math.nan
    for row in run.rows:
        length, cut_off = row.get("response_length", math.nan), 1 - row.get("eos_rate", math.nan)
        if length > limit + 1e-6 or length < 0.99 * cut_off * limit:
            yield f"{cut_off:.0%} were cut off at {limit} tokens, yet their mean length is {length:.1f}"


@rule("""error: the reference is updated with the policy (every step), so the penalty holds nothing.
    Change: copy the reference once, before training, and freeze it (page 08).""")
def reference_follows(run: Run) -> Iterator[str]:
    moved = run.flags.get("reference_update", run.flags.get("renew_reference"))
    moves = moved not in (None, "never") or "iterations" in run.flags
    near, far = run.end("kl", 3), run.end("validation/kl", 1)
    if not moves and len(run.values("kl")) >= 10 and far >= 0.3 and near <= 0.1 * far:
        yield f"kl is {near:.3g} nats while validation/kl, from the start, is {far:.3g}"


@rule("""error: a baseline's sign is flipped, or a KL per response has a coefficient per token. Change:
    advantage = (reward - group mean) / std; average k3 over the tokens of a response (page 07).""")
def loss_is_not_its_sum(run: Run) -> Iterator[str]:
    # With one update a batch GRPO's policy term is near 0: the loss is nearly its KL term alone.
    flags, keys = run.flags, {"loss", "kl_coef", "kl_k3", "response_length"}
    others = {"variant", "policy_loss", "preference_coef", "loss", "penalty", "steps_from"}
    plain = others.isdisjoint(flags) and not flags.get("pretraining_coef")
    clipped = "clip_range" in flags or "clip_low" in flags
    grpo = clipped and flags.get("kl_estimator") == "k3" and plain
    left = [
        abs(row["loss"] - row["kl_coef"] * row["kl_k3"] / row["response_length"])
        for row in run.rows
        if keys <= row.keys() and math.isfinite(row["loss"])
    ]
    if grpo and len(left) >= 5 and median(left) >= 0.015:  # of healthy runs 0.004 at most
        yield f"the loss is {median(left):.2g} away from kl_coef * kl_k3 / response_length"


@rule("""warning: the rule finds no answer, so rewards are 0: responses lack one, or a form that it reads.
    Change: fine-tune on answers that end in "#### 7", or bring a rule that reads these (page 12).""")
def unread_answers(run: Run) -> Iterator[str]:
    if (unread := run.end("unanswered")) > 0.5:
        yield f"no answer can be read in {unread:.0%} of the responses of the last steps"


@rule("""warning: advantages are zero: prompts are too hard or too easy, or the reward is too coarse.
    Change: take easier prompts where rewards are low, harder ones where they are high (page 11).""")
def no_signal(run: Run) -> Iterator[str]:
    norm, share = run.end("grad_norm"), run.end("zero_spread_groups")
    if norm < 1e-7 and len(run.rows) >= 5:
        yield f"grad_norm is {norm:.1g} over the last steps"
    repeated = run.end("distinct_responses") <= 0.3 * run.start("distinct_responses")
    if share >= 0.7 and not run.solved and not repeated:
        yield f"{share:.0%} of the groups have equal rewards over the last steps"


@rule("""error: the loss, or a KL penalty in the reward, has the wrong sign.
    Change: the loss is minus the objective; check the sign of every term on one batch (page 04).""")
def reward_falls(run: Run) -> Iterator[str]:
    moves = run.values("iteration") and run.flags.get("refresh_reward_model", True)
    first, last, error = run.thirds("reward", 10)
    if first - last > max(4 * error, 0.2 * (run.spread or abs(first))) and not moves:
        yield f"reward fell from {first:.3g} to {last:.3g} (first and last third)"


@rule("""warning: rewards reach the wrong rows, advantages are whitened in each response, or --lr is too
    low. Change: check which row gets which reward; then raise --lr or lower --kl-coef (page 04).""")
def reward_flat(run: Run) -> Iterator[str]:
    first, last, error = run.thirds("reward", 20)
    differ = run.spread > 1e-6 and not run.solved and not run.end("zero_spread_groups") > 0.7
    if abs(last - first) <= max(3 * error, 0.1 * run.spread) and differ:
        thirds = f"{first:.3g} in the first third and {last:.3g} in the last"
        yield f"reward is {thirds}; responses are {run.spread:.2g} apart"


@rule("""warning: the critic's optimizer does not step, or its learning rate or its targets are wrong.
    Change: check that the critic's weights change; raise --critic-lr (page 09).""")
def critic_is_worse(run: Run) -> Iterator[str]:
    explained = run.values("explained_variance")
    last = run.end("explained_variance", len(explained) // 3)
    if len(explained) >= 12 and (last < -0.05 or max(map(abs, explained)) < 1e-4):
        yield f"explained_variance is {last:.2f} over the last third; a constant has 0 all the time"


@rule("""warning: the KL penalty is too weak, the reward likes a length or a text, or no EOS is trained on.
    Change: read samples.jsonl; raise --kl-coef; check that the mask holds the first EOS (page 13).""")
def collapse(run: Run) -> Iterator[str]:
    entropy, length, ended = (run.start(k, 3) for k in ("entropy", "response_length", "eos_rate"))
    grown = run.end("response_length") / max(length, 1e-6)
    repeated = run.end("distinct_responses") <= 0.3 * run.start("distinct_responses")
    drifts = (grown > 2 or grown < 0.4) and len(run.rows) >= 10
    signs = {
        "distinct_responses": repeated and not run.solved,
        "entropy": run.end("entropy") < max(0.15 * entropy, 0.05) <= entropy and not run.solved,
        "response_length": drifts and "solve_rate" not in run.rows[-1],
        "eos_rate": run.end("eos_rate") <= ended - 0.1,
    }
    for key in (key for key, seen in signs.items() if seen):
        yield f"{key} went from {run.start(key, 3):.3g} to {run.end(key):.3g}"
    first, last = run.before_and_after("response_length")
    if (last < 0.4 * first or last > 2 * first) and "solve_rate" not in run.rows[-1]:
        yield f"response_length went from {first:.3g} before training to {last:.3g} after it"


@rule("""warning: the model that training began with seldom writes an EOS, or has too little room for one.
    Change: pre-train or fine-tune that model for longer, or raise --max-new-tokens (page 03).""")
def seldom_ends(run: Run) -> Iterator[str]:
    start, end = run.start("eos_rate", 3), run.end("eos_rate")
    if end <= 0.5 and start - end < 0.1:  # a fall is a collapse
        yield f"eos_rate is low from the start: {start:.3g}, and {end:.3g} at the end"


@rule("""warning: little holds the policy back: the KL penalty is too weak or its sign is flipped.
    Change: raise --kl-coef, lower --stop-kl-per-token, or train for fewer steps (page 08).""")
def kl_runs_away(run: Run) -> Iterator[str]:
    key, count = ("validation/kl", 1) if run.values("validation/kl") else ("kl", 5)
    if (kl := run.end(key, count)) > 10:  # further than any reward model can be trusted
        yield f"{key} is {kl:.1f} nats per response at the end, {run.start(key, 1):.1f} at first"
    first, last = run.before_and_after("response_length")
    if (kl := run.before_and_after("kl_per_token")[1]) > 0.3 and last < first / 2:
        lengths = f"{first:.3g} to {last:.3g} tokens"
        yield f"kl is {kl:.2f} nats per token after training, as answers went from {lengths}"


@rule("""warning: what pays the reward is exploited: the policy found what it overrates. Change: raise
    --kl-coef, train for fewer steps, or train the reward model on this policy's responses (page 13).""")
def over_optimised(run: Run) -> Iterator[str]:
    rows = [row for row in run.rows if {"validation/gold", "validation/gold_error"} <= row.keys()]
    if len(rows) < 3:
        return
    best, last = max(rows, key=lambda row: row["validation/gold"]), rows[-1]
    gold, now = best["validation/gold"], last["validation/gold"]
    error = math.hypot(best["validation/gold_error"], last["validation/gold_error"])
    lost = best.get("validation/reward", 0.0) - last.get("validation/reward", 0.0)
    if gold - now > max(3 * error, 0.02) and lost <= 0.1 * run.spread:
        yield f"gold fell from {gold:.3f} (step {best['step']}) to {now:.3f}, the reward did not"


@rule("""warning: what pays the reward is probably exploited, by few kinds of responses.
    Change: read samples.jsonl; raise --kl-coef, stop earlier, or mend the reward (page 13).""")
def proxy_suspected(run: Run) -> Iterator[str]:
    first, last, error = run.thirds("reward", 20)
    kl = run.end("kl") if run.values("kl") else run.end("validation/kl", 1)
    rise = (run.end("reward") - run.start("reward")) / (run.spread or math.nan)
    signs = [f"kl {kl:.1f} nats per response"] if kl > 8 else []
    if rise > 1.5:
        signs.append(f"a rise of {rise:.1f} standard deviations of the first responses")
    for key, share in (("reward_std", 0.35), ("entropy", 0.25), ("distinct_responses", 0.5)):
        if run.end(key) < share * run.start(key):
            signs.append(f"{key} {run.start(key):.2g} to {run.end(key):.2g}")
    if run.end("ensemble_spread") > 1.5 * run.start("ensemble_spread") > 0:
        signs.append("an ensemble that disagrees more")
    if last - first >= 3 * error and len(signs) >= 2 and "solve_rate" not in run.rows[-1]:
        yield f"the reward rose from {first:.2f} to {last:.2f} with " + ", ".join(signs)


def examine(
    rows: Sequence[Row], flags: Row | None = None, results: Row | None = None
) -> list[Finding]:
    """What the rules find, most serious first; `flags` are config.json's, `results` report.json's."""
    run = Run(rows, flags or {}, results or {})
    found = [
        Finding(each.__name__, *words, evidence)
        for each, words in (RULES.items() if rows else ())
        for evidence in islice(each(run), 1)
    ]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def as_text(findings: Sequence[Finding], width: int = 80) -> str:
    """The findings as paragraphs of at most `width` columns; "" for none."""
    lines = []
    for found in findings:
        title = f"{found.severity}: {found.evidence} ({found.rule})"
        for text in (title, f"  likely: {found.cause}", f"  change: {found.remedy}"):
            lines.append(textwrap.fill(text, width, subsequent_indent="    "))
    return "\n".join(lines)


# The command --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DoctorConfig:
    """Say what the numbers of runs show."""

    runs: tuple[Path, ...]
    """Run folders."""


def examine_folder(folder: Path) -> list[Finding]:
    """The findings of one run folder. UserError for a file that is damaged."""
    paths = folder / "config.json", folder / "report.json"
    with as_user_error(folder):
        flags, results = (read_object(path) if path.exists() else {} for path in paths)
        return examine(read_metrics(folder / "metrics.jsonl"), flags, results)


def main(config: DoctorConfig) -> None:
    """Print what is found in each run; exit status 1 where numbers are wrong."""
    severities = set()
    for run in runs_among(config.runs):
        findings = examine_folder(run.folder)
        said = f"\n{as_text(findings)}" if findings else "nothing found"
        print(f"{run.label}: {len(RULES)} rules looked at {len(run.rows)} steps: {said}")
        severities |= {finding.severity for finding in findings}
    if "error" in severities:
        sys.exit(1)


if __name__ == "__main__":
    run_command(main, DoctorConfig)
