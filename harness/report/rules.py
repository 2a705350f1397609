"""What a run's numbers show: rules over the rows of metrics.jsonl, no model needed.

A rule is a function of a `Run`: its rows, its flags and its report.json. It returns the numbers that
speak for a finding, or None, and is silent where its keys are missing. findings.ini says what it
means, what to change and where to read on. Those of reinforcement learning are in
rl/training/run_rules.py.

A rule sees symptoms. The cause that it names is the likeliest one, and a curve of rewards cannot tell
a wrong formula from a hard task: docs/doctor.md says which planted bugs each rule finds.
"""

from __future__ import annotations

import json
import math
import statistics
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from configparser import ConfigParser
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from harness.command_flags import Flags
from harness.files import display_path
from harness.paths import WORLDS
from harness.report.page import read
from harness.report.writing import add_to_page, refresh

Severity = Literal["error", "warning", "note"]  # numbers are wrong; the run suffers; worth knowing
ORDER: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One thing that a run's numbers say."""

    rule: str
    severity: Severity
    evidence: str
    cause: str
    change: str
    page: str


@dataclass(frozen=True)
class Rule:
    """What to look for, and what it means (findings.ini). `page` is a notebook's slug or in docs/."""

    check: Callable[[Run], str | None]
    severity: Severity
    cause: str
    change: str
    page: str
    elsewhere: Mapping[str, tuple[str, str]]  # source of the reward -> cause and change


def rules_of(*checks: Callable[[Run], str | None]) -> dict[str, Rule]:
    """The rules by name, each with what findings.ini says under it."""
    meanings = ConfigParser(interpolation=None)
    meanings.read(Path(__file__).with_name("findings.ini"), encoding="utf-8")
    rules = {}
    for check in checks:
        texts = (text.replace("\n", " ") for text in meanings[check.__name__].values())
        severity, cause, change, page = texts
        elsewhere = {
            name.partition(":")[2]: (section["cause"], section["change"])
            for name, section in meanings.items()
            if name.startswith(f"{check.__name__}:")
        }
        rule = Rule(check, cast(Severity, severity), cause, change, page, elsewhere)
        rules[check.__name__] = rule
    return rules


@dataclass(frozen=True)
class Run:
    """A run's rows in order, its flags and its report.json (empty where nobody kept them)."""

    rows: Sequence[Mapping[str, Any]]
    flags: Mapping[str, Any] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)

    def values(self, key: str) -> list[float]:
        """The finite numbers that were logged under `key`, in order."""
        return [
            float(row[key])
            for row in self.rows
            if isinstance(row.get(key), int | float) and math.isfinite(row[key])
        ]

    def start(self, key: str, count: int = 5) -> float | None:
        """Mean of the first `count` values; None without any."""
        return mean(self.values(key)[:count])

    def end(self, key: str, count: int = 5) -> float | None:
        """Mean of the last `count` values; None without any."""
        return mean(self.values(key)[-count:])

    def flag(self, name: str, default: Any = None) -> Any:
        """A flag, `default` where it is missing or None."""
        value = self.flags.get(name)
        return default if value is None else value

    def result(self, key: str) -> float | None:
        """A number of report.json; None where it has none of this name."""
        value = self.results.get(key)
        return float(value) if isinstance(value, int | float) else None

    @property
    def reward_source(self) -> str:
        """model, function (the user's), rule or teacher: where the reward comes from."""
        reward = str(self.flag("reward", "auto"))
        if "teacher" in self.flags:
            return "teacher"
        if ":" in reward:
            return "function"
        return "rule" if self.checked or reward in ("gold", "rule") else "model"

    @property
    def keeps_best(self) -> bool:
        """Whether pre-training has kept the weights of its best held-out loss (--patience)."""
        of_a_file = self.flag("data", "reviews") not in WORLDS
        return "patience" in self.flags and bool(self.flag("patience", of_a_file))

    @property
    def supervised(self) -> bool:
        """Whether the loss is what is learned: there is no reward that is maximised instead."""
        return not any("reward" in row for row in self.rows)

    @property
    def checked(self) -> bool:
        """Whether answers are checked by a rule: the best policy then has no spread left."""
        return any("solve_rate" in row for row in self.rows)

    @property
    def solved(self) -> bool:
        """Whether nearly every prompt is answered right by now."""
        return self.checked and (self.end("reward") or 0.0) > 0.8

    @property
    def updates(self) -> int:
        """Optimizer steps per batch of rollouts."""
        groups = int(self.flag("prompts_per_step", 1))
        return int(self.flag("updates_per_batch", 1)) * min(
            int(self.flag("minibatches", 1)), groups
        )


def mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None


def halves(values: Sequence[float]) -> tuple[float, float, float]:
    """Means of the first and the last third, and the standard error of their difference."""
    third = max(len(values) // 3, 2)
    first, last = values[:third], values[-third:]
    error = math.sqrt((statistics.variance(first) + statistics.variance(last)) / third)
    return sum(first) / third, sum(last) / third, error


# What every stage logs -----------------------------------------------------------------------------


def non_finite(run: Run) -> str | None:
    """NaN or infinity anywhere."""
    for row in run.rows:
        for key, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                return f"{key} is {value} at step {row.get('step')}"
    return None


def no_gradient(run: Run) -> str | None:
    """Nothing to learn from, or less and less."""
    norms = run.values("grad_norm")
    if len(norms) < 5:
        return None
    first, last = statistics.median(norms[:5]), statistics.median(norms[-5:])
    if last < 1e-7:
        return f"grad_norm is {last:.1g} over the last steps"
    fitted = run.solved or (run.end("accuracy") or 0.0) > 0.99  # every pair is ordered right
    if last < first / 100 and not fitted:
        return f"grad_norm fell from {first:.2g} to {last:.2g}"
    return None


def never_warmed_up(run: Run) -> str | None:
    """A learning rate that is 0, that starts at its peak, or that never reached it."""
    rates, peak, warmup = run.values("lr"), run.flag("lr"), run.flag("warmup", 0)
    if not rates or peak is None:
        return None
    if max(rates) == 0 < len(rates) and peak:
        return "lr is 0 in every step"
    fresh = run.rows[0].get("step") == 1
    if fresh and warmup > 1 and rates[0] > 0.99 * peak:
        return f"lr is {rates[0]:.2g} at step 1, its peak, with --warmup {warmup}"
    if len(rates) > warmup and max(rates) < 0.9 * peak:
        return f"lr never went above {max(rates):.2g}, with --lr {peak:.2g}"
    return None


def exploding_gradient(run: Run) -> str | None:
    """A gradient norm that grows tenfold, or jumps there again and again."""
    for key in ("grad_norm", "critic_grad_norm"):
        norms = run.values(key)[5:] if key == "critic_grad_norm" else run.values(key)
        if len(norms) < 10:
            continue
        usual = statistics.median(norms[: len(norms) // 2])
        late = norms[len(norms) // 5 :]
        spikes = sum(norm > 10 * usual for norm in late)
        if usual > 1e-6 and spikes >= max(3, len(late) // 50):
            return (
                f"{key} was above ten times its usual {usual:.2g} in {spikes} steps, up to "
                f"{max(late):.2g}"
            )
    return None


# Where the loss is what is learned ----------------------------------------------------------------


def loss_rises(run: Run) -> str | None:
    """A supervised loss that goes up, from its start or from where it was lowest."""
    losses = run.values("loss")
    fifth = len(losses) // 5
    if not run.supervised or fifth < 3:
        return None
    parts = [losses[i * fifth : (i + 1) * fifth] for i in range(5)]
    worst, start = max(map(statistics.median, parts)), losses[0]
    if run.rows[0].get("step") == 1 and worst > 1.5 * start + 0.05:
        return (
            f"loss climbed from {start:.3g} at step 1 to {worst:.3g} (median of a fifth of the run)"
        )
    parts.append(losses[:3])
    lowest, last = min(parts, key=statistics.fmean), losses[-fifth:]
    best, now = statistics.fmean(lowest), statistics.fmean(last)
    error = math.sqrt(sum(statistics.variance(part) / len(part) for part in (lowest, last)))
    if now - best <= max(4 * error, 0.15 * abs(best)):
        return None
    return f"loss rose from {best:.3g} to {now:.3g} (where it was lowest, and the last fifth)"


def nothing_learned(run: Run) -> str | None:
    """A language model that stays near a uniform guess, or pairs that stay a coin's."""
    losses, right = run.values("loss"), run.values("accuracy")
    if not run.supervised or len(losses) < 20:
        return None
    third = len(losses) // 3
    if right and statistics.fmean(right[-third:]) < 0.55:
        return f"accuracy is {statistics.fmean(right[-third:]):.3f} over the last third, a coin has 0.5"
    untrained = losses[0] > 4  # nats per token, as of a model that guesses
    if not right and untrained and statistics.fmean(losses[-third:]) > 0.8 * losses[0]:
        return f"loss went from {losses[0]:.3g} to {statistics.fmean(losses[-third:]):.3g} nats per token"
    return None


def memorising(run: Run) -> str | None:
    """What is held out gets worse while training gets better, or is far behind it."""
    held_out, losses = run.values("held_out_loss"), run.values("loss")
    if not run.keeps_best and len(held_out) >= 3 and held_out[-1] >= 1.03 * min(held_out):
        first, last, _ = halves(losses)
        if last < first:
            return (
                f"held_out_loss rose from {min(held_out):.3f} to {held_out[-1]:.3f} while loss fell "
                f"from {first:.3f} to {last:.3f}"
            )
    right, elsewhere = run.end("accuracy", 10), run.result("accuracy")
    if right is not None and elsewhere is not None and right - elsewhere > ACCURACY_LEFT:
        return (
            f"accuracy is {right:.3f} on the last training pairs, {elsewhere:.3f} on held-out ones"
        )
    return None


ACCURACY_LEFT = 0.15  # of healthy runs 0.09 at most: their training pairs are easier to tell apart


def no_better_than_length(run: Run) -> str | None:
    """A reward model that orders held-out pairs no better than their lengths, or a coin, would."""
    right, length = run.result("accuracy"), run.result("length_accuracy")
    if right is None or length is None:
        return None
    longer = length >= 0.5
    baseline = max(length, 1 - length)
    if right > baseline + 0.02:
        return None
    who = f"the {'longer' if longer else 'shorter'} answer" if baseline > 0.5 else "a coin"
    return f"held-out accuracy is {right:.3f}, {who} is right in {baseline:.3f}"


def above_the_labels(run: Run) -> str | None:
    """Held-out pairs that are ordered better than their own noisy labels allow."""
    interval, ceiling = run.results.get("accuracy_interval"), run.result("label_ceiling")
    if not interval or ceiling is None or interval[0] <= ceiling:
        return None
    return (
        f"held-out accuracy is at least {interval[0]:.3f}, although its labels agree with the truth in "
        f"{ceiling:.3f} only"
    )


def away_from_teacher(run: Run) -> str | None:
    """A distilled student whose own text is further from the teacher's than it was."""
    for key in ("validation/reverse_kl_full", "validation/reverse_kl"):
        kl = run.values(key)
        if len(kl) >= 3 and kl[-1] > 1.2 * min(kl) + 0.2:
            return f"{key} rose from {min(kl):.3g} to {kl[-1]:.3g} nats per response"
    return None


# The list -----------------------------------------------------------------------------------------

RULES = rules_of(
    non_finite, no_gradient, never_warmed_up, exploding_gradient, loss_rises, nothing_learned,
    above_the_labels, no_better_than_length, away_from_teacher, memorising,
)  # fmt: skip


def examine(
    rows: Sequence[Mapping[str, Any]],
    flags: Mapping[str, Any] | None = None,
    results: Mapping[str, Any] | None = None,
    rules: Mapping[str, Rule] = RULES,
) -> list[Finding]:
    """Every finding, the gravest first; `flags` are config.json's, `results` report.json's."""
    run = Run(rows, flags or {}, results or {})
    findings = []
    for name, rule in rules.items() if rows else ():
        evidence = rule.check(run)
        if evidence is not None:
            cause, change = rule.elsewhere.get(run.reward_source, (rule.cause, rule.change))
            findings.append(Finding(name, rule.severity, evidence, cause, change, rule.page))
    return sorted(findings, key=lambda finding: ORDER.index(finding.severity))


def say_findings(
    config: Flags,
    rows: Sequence[Mapping[str, Any]],
    folder: Path,
    rules: Mapping[str, Rule] = RULES,
) -> None:
    """What is found in a run's numbers, if there is anything: in print and on its page."""
    flags = json.loads(json.dumps(asdict(config), default=str))  # as config.json has them
    if findings := examine(rows, flags, read(folder / "report.json", {}), rules):
        put_on_page(folder, rows, findings)
        print(f"python -m rl.doctor {display_path(folder)} says:\n{as_text(findings)}")


def put_on_page(
    folder: Path, rows: Sequence[Mapping[str, Any]], findings: Sequence[Finding]
) -> None:
    on_page = [asdict(finding) | {"remedy": finding.change} for finding in findings]
    add_to_page(folder, findings=on_page)
    refresh(folder, rows)


def page_path(page: str) -> str:
    """Where a page is in the repository: a file in docs/, or a notebook by its slug."""
    return page if page.startswith("docs/") else f"notebooks/{page}.ipynb"


def as_text(findings: Sequence[Finding], width: int = 80) -> str:
    """The findings as paragraphs of at most `width` columns; "" for none."""
    lines = []
    for finding in findings:
        about = (
            f"{finding.severity}: {finding.evidence} ({finding.rule})",
            f"likely: {finding.cause}",
            f"change: {finding.change}",
            f"read: {page_path(finding.page)}",
        )
        for number, text in enumerate(about):
            indent = "  " if number else ""
            lines += textwrap.wrap(
                text, width, initial_indent=indent, subsequent_indent="    ",
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip
    return "\n".join(lines)
