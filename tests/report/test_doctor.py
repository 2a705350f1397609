"""The doctor's rules: silent on recorded healthy runs, found on recorded bugs, and one by one.

The recordings are runs of this repository: real ones on the reviews, thinned, and small ones on
letters with and without a planted bug, which scripts/bug_zoo.py makes.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import bug_zoo
import pytest

from report.doctor import RULES, Run, examine

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = bug_zoo.RECORDINGS
HEALTHY = sorted((RECORDINGS / "healthy").glob("*.json"))
BUGS = sorted((RECORDINGS / "bugs").glob("*.json"))
DOCUMENT = ROOT / "docs" / "faq.md"


def recording(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """The rows, the flags and the report.json of a recording."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    columns = kept["columns"]
    rows = [
        {key: values[i] for key, values in columns.items() if values[i] is not None}
        for i in range(len(columns["step"]))
    ]
    return rows, kept["flags"], kept.get("results", {})


def rules_of(path: Path) -> set[str]:
    return {finding.rule for finding in examine(*recording(path))}


def documented_bugs() -> dict[str, str]:
    """Bug -> the rule that names it, "" where none does, as docs/faq.md has it."""
    text = DOCUMENT.read_text(encoding="utf-8")
    return dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| (?:`(\w+)`|-) \|", text, re.M))


# --- recorded runs --------------------------------------------------------------------------------


def test_no_healthy_run_raises_an_alarm() -> None:
    assert not [path.stem for path in HEALTHY if examine(*recording(path))] and len(HEALTHY) > 3


def test_every_bug_of_the_zoo_is_recorded_and_in_the_table() -> None:
    assert {path.stem for path in BUGS} == set(bug_zoo.BUGS) == set(documented_bugs())
    assert len(bug_zoo.BUGS) == 10


@pytest.mark.parametrize("path", BUGS, ids=lambda path: path.stem)
def test_a_bug_is_found_by_the_rule_that_the_table_says(path: Path) -> None:
    rule, found = documented_bugs()[path.stem], rules_of(path)
    assert rule in found if rule else not found  # else a rule finds it: say so in the table


# --- each rule by itself --------------------------------------------------------------------------


def steady(steps: int = 40, **columns: Any) -> list[dict[str, Any]]:
    """Rows of a healthy run, with columns replaced by a number or by a function of the step."""
    healthy: dict[str, Any] = dict(
        reward=lambda step: 0.05 * step + 0.02 * (step % 3), reward_std=1.0,
        response_length=16.0, eos_rate=1.0, entropy=lambda step: 1.2 - 0.01 * step,
        kl=lambda step: 0.1 * (step - 1), kl_k3=lambda step: 0.1 * (step - 1), approx_kl=1e-4,
        loss=lambda step: 0.1 * 0.1 * (step - 1) / 16.0, grad_norm=0.4, kl_coef=0.1,
        lr=lambda step: min(step / 5, 1.0) * 2e-4, ratio_error_at_start=2e-6,
        zero_spread_groups=0.0, clip_high_fraction=0.0, clip_low_fraction=0.0,
    )  # fmt: skip
    return [
        {"step": step}
        | {
            key: value(step) if callable(value) else value
            for key, value in (healthy | columns).items()
            if value is not None
        }
        for step in range(1, steps + 1)
    ]


FLAGS: dict[str, Any] = dict(
    steps=40, lr=2e-4, warmup_steps=5, max_new_tokens=48, prompts_per_step=16, group_size=8, minibatches=2,
    updates_per_batch=1, stop_kl=8.0, clip_range=0.2, kl_estimator="k3",
    precision="float32",
)  # fmt: skip


def test_thirds_and_the_error_of_their_difference():
    """0, 2, 1 and 10, 12, 11 vary by 1 each: sqrt((1 + 1) / 3). Too few rows tell nothing."""
    rows = [{"x": value} for value in (0, 2, 1, 5, 5, 5, 10, 12, 11)]
    assert Run(rows).thirds("x") == pytest.approx((1, 11, (2 / 3) ** 0.5))
    assert all(map(math.isnan, Run(rows[:5]).thirds("x")))


def found(rows: list[dict[str, Any]], **flags: Any) -> set[str]:
    return {finding.rule for finding in examine(rows, FLAGS | flags)}


COLUMNS_OF: dict[str, dict[str, Any]] = {  # rule -> columns that show it
    "non_finite": dict(grad_norm=lambda step: math.nan if step == 7 else 0.4),
    "ratio_at_start": dict(ratio_error_at_start=2e-4),
    "ratio_always_one": dict(approx_kl=0.0),
    "impossible_length": dict(eos_rate=0.5, response_length=20.0),
    "reference_follows": {"kl": 0.0, "validation/kl": 3.0},
    "loss_is_not_its_sum": dict(loss=0.2),
    "no_signal": dict(zero_spread_groups=0.9),
    "unread_answers": dict(unanswered=lambda step: 0.4 + 0.01 * step),
    "reward_falls": dict(reward=lambda step: -0.05 * step),
    "reward_flat": dict(reward=lambda step: 0.1 * (step % 3)),
    "critic_is_worse": dict(explained_variance=-0.3),
    "scores_jump": dict(
        reward=None, margin=24.0, grad_norm=20.0, loss=lambda step: 0.7 + (step > 9)
    ),
    "exploding_gradient": dict(grad_norm=lambda step: 9.0 if step in (20, 30, 38) else 0.4),
    "collapse": dict(entropy=lambda step: 1.2 / step),
    "seldom_ends": dict(eos_rate=0.25, response_length=40.0),
    "kl_runs_away": dict(kl=lambda step: 0.3 * (step - 1)),
    "over_optimised": {
        "validation/gold": lambda step: 0.9 - 0.4 * (step > 20),
        "validation/gold_error": 0.02,
        "validation/reward": lambda step: 0.05 * step,
    },
    "proxy_suspected": dict(
        kl=lambda step: 0.23 * (step - 1),
        kl_k3=lambda step: 0.23 * (step - 1),
        reward_std=lambda step: 1.0 - 0.02 * step,
    ),
    "memorising": dict(loss=lambda s: 2 - s / 40, held_out_loss=lambda s: 1.5 + s / 40),
    "nothing_learned": dict(reward=None, loss=0.7, accuracy=lambda s: 0.5 + 0.02 * (s % 3)),
}


SHORTER: dict[str, Any] = dict(  # the trivial rule that a judge cannot be told from
    rule="shorter", accuracy=0.978, where_it_fails=dict(pairs=2, accuracy=1.0), more_pairs=4
)


@pytest.mark.parametrize("rule", [rule.__name__ for rule in RULES])
def test_a_rule_finds_its_example_and_says_what_it_saw_and_what_to_do(rule: str) -> None:
    results = {"accuracy": 1.0, "followed_rule": SHORTER if rule == "trivial_judge" else None}
    findings = examine(steady(**COLUMNS_OF.get(rule, {})), FLAGS, results)
    (finding,) = [finding for finding in findings if finding.rule == rule]
    assert re.search(r"\d", finding.evidence) and finding.cause and finding.remedy
    assert finding.severity in ("error", "warning", "note")
    assert not any(each.__doc__ for each in RULES)  # python -OO would drop the words


def test_a_trivial_judge_is_told_the_rule_and_how_many_pairs_are_missing() -> None:
    """Four held-out pairs more, which is a fifth of what a file then has more; or enough have told."""
    known = SHORTER | dict(where_it_fails=dict(pairs=9, accuracy=0.0), more_pairs=0)
    (few,), (told,) = (
        examine(steady(), FLAGS, {"accuracy": 1.0, "followed_rule": each})
        for each in (SHORTER, known)
    )
    assert all(word in few.evidence for word in ("shorter", "2 of 2 pairs", "4 more", "20 more"))
    assert "0 of 9 pairs" in told.evidence and "more" not in told.evidence.partition("9 pairs")[2]


@pytest.mark.parametrize(
    ("rule", "columns", "flags"),
    [
        ("ratio_at_start", dict(ratio_error_at_start=5e-4), dict(precision="bfloat16")),
        ("ratio_always_one", dict(approx_kl=0.0), dict(minibatches=1)),
        ("impossible_length", dict(eos_rate=0.5, response_length=25.0), {}),
        ("reference_follows", {"kl": 0.0, "validation/kl": 3.0}, dict(renew_reference=5)),
        ("reference_follows", {"kl": 0.0, "validation/kl": 3.0}, dict(iterations=3)),
        ("no_signal", dict(zero_spread_groups=0.9, solve_rate=0.95, reward=0.95), {}),
        ("collapse", dict(response_length=lambda step: 16.0 + step, solve_rate=0.5), {}),
        ("loss_is_not_its_sum", dict(loss=0.2), dict(preference_coef=1.0)),
        ("exploding_gradient", dict(grad_norm=lambda step: 9.0 if step < 3 else 0.4), {}),
        ("scores_jump", dict(reward=None, margin=6.0, grad_norm=6.0, loss=lambda s: 1 + s % 3), {}),
        (
            "scores_jump",
            dict(reward=None, margin=9.0, grad_norm=20.0, loss=lambda s: 1.0 / (s % 5 + 1)),
            {},
        ),
        ("collapse", dict(eos_rate=0.25, response_length=40.0), {}),  # nothing fell
        ("seldom_ends", dict(eos_rate=lambda step: 1 - step / 60, response_length=40.0), {}),
        ("kl_runs_away", dict(kl=lambda step: 0.22 * (step - 1)), dict(stop_kl=None)),
        ("nothing_learned", dict(loss=lambda step: 2 + step / 20), {}),  # of RL a loss says nothing
        ("nothing_learned", dict(reward=None, loss=lambda step: 2 + 0.3 * (step % 3)), {}),
        ("nothing_learned", dict(reward=None, loss=1.1), {}),  # fine-tuning on text it knows
    ],
)
def test_a_rule_is_silent_where_the_same_numbers_are_right(
    rule: str, columns: dict[str, Any], flags: dict[str, Any]
) -> None:
    assert rule not in found(steady(**columns), **flags)


# --- the zoo --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["late_mask", "critic_rests"])
def test_a_planted_bug_is_found_today_as_it_was_when_it_was_recorded(name: str) -> None:
    """Four steps are enough for what is wrong from the first one on; twelve for the critic."""
    bug = bug_zoo.BUGS[name]
    engine = bug_zoo.ENGINES[bug_zoo.STORIES[name].engine]
    with bug.plant():
        rows, flags = bug_zoo.small_run(engine, steps=12 if name == "critic_rests" else 4)
    assert documented_bugs()[name] in {finding.rule for finding in examine(rows, flags)}
    rows, flags = bug_zoo.small_run(engine, steps=4)
    assert not any(finding.severity == "error" for finding in examine(rows, flags))


# --- a run that is not healthy ----------------------------------------------------------------------


def first_named(rows: list[dict[str, Any]], flags: dict[str, Any], rule: str) -> int:
    """The first step after which the doctor, asked at every step, names this rule."""
    for count in range(1, len(rows) + 1):
        if rule in {finding.rule for finding in examine(rows[:count], flags)}:
            return rows[count - 1]["step"]
    raise AssertionError(f"{rule} is never named")


def test_over_optimisation_is_told_without_gold_before_gold_tells_it() -> None:
    """Recorded: GRPO without a KL penalty against a reward model of 1,400 labels (docs/faq.md)."""
    rows, flags, _ = recording(RECORDINGS / "unhealthy" / "overoptimised-0.json")
    blind = [{k: v for k, v in row.items() if "gold" not in k} for row in rows]
    assert blind != rows
    told, proven = (
        first_named(blind, flags, "proxy_suspected"),
        first_named(rows, flags, "over_optimised"),
    )
    gold = {row["step"]: row["validation/gold"] for row in rows if "validation/gold" in row}
    best = max(gold, key=lambda step: gold[step])
    assert best < told < proven
    assert gold[best] - gold[min(step for step in gold if step >= told)] < 0.05  # hardly lost yet
    assert gold[best] - gold[max(gold)] > 0.5  # and lost in the end
    assert (best, told, proven) == (20, 26, 35)  # as docs/faq.md has it


def test_a_reward_model_of_few_labels_is_found_to_memorise_them() -> None:
    assert rules_of(RECORDINGS / "unhealthy" / "reward_model-few.json") == {"memorising"}


def test_the_policy_that_is_kept_is_judged_by_what_it_does_after_training() -> None:
    """A chat model whose answers shrink: 6.3 nats are few, and half a nat for each of 12.7 tokens."""
    before = dict(response_length=35.8, kl=0.0, kl_per_token=0.0)
    for length, kl, rules in ((12.7, 6.3, {"collapse", "kl_runs_away"}), (25.0, 6.3, set())):
        after = dict(response_length=length, kl=kl, kl_per_token=kl / length)
        results = {"before": before, "after": after}
        assert {each.rule for each in examine(steady(12), FLAGS, results)} == rules


def test_rows_that_were_undone_do_not_speak_for_the_policy_that_is_kept() -> None:
    """It is of step 20, and the row of step 21 still measures it."""
    rows = steady(response_length=lambda step: 16.0 if step <= 21 else 1.0)
    assert "collapse" in found(rows)
    rows[-1]["kept_step"] = 20
    assert "collapse" not in found(rows)
    assert Run(rows).end("step", 1) == 21
