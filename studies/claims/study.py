"""Ten claims of recent papers, each tested in minutes: docs/claims.md's verdicts, numbers and figures.

    python -m studies claims razor entropy    two of them, and the runs that they need
    python -m studies claims razor --again    its runs with new seeds
    python -m studies claims --seeds 1        one seed of each: too few for a verdict

A job is one run: an arm and a seed, or the start that it needs; its numbers are one file. Verdicts are
of these and of what docs/claims.json holds of other seeds and arms. Claims and the arms that they share
stand in ten.py; each rule was written before its runs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from harness.files import read_object, write_json
from report.intervals import holm, t_interval
from studies.claims import worlds
from studies.claims.figures import at_a_glance, write_verdict
from studies.claims.rules import FAILED, HELD, UNTOLD, Claim, Results, Verdict, Weakest, of_seeds
from studies.claims.ten import ARMS, CLAIMS
from studies.pages import DOCS, Numbers, drawing, markdown, significant
from studies.runner import Job, Study, StudyFlags

WORLDS = "studies.claims.worlds"
NUMBERS = "numbers.json"  # of a job
SEEDS = 6  # of every arm
AGAIN = 100  # the first seed of a rerun
RECORDED = DOCS / "claims.json"


@dataclass(frozen=True, kw_only=True)
class ClaimsConfig(StudyFlags):
    """Claims tested in minutes."""

    again: bool = False
    """New seeds, beside the first ones."""


def plan(config: ClaimsConfig) -> dict[str, Job]:
    """The starts and runs of all claims, seed by seed: an interrupted study has whole seeds."""
    listed: dict[str, Job] = {}
    arms = {arm: None for claim in CLAIMS.values() for arm in claim.arms}
    first = AGAIN if config.again else 0
    for seed in range(first, first + config.seeds):
        for arm in arms:
            share = ARMS[arm].share
            start = worlds.start_name(share, seed)
            given = {"share": share, "seed": seed}
            listed.setdefault(start, Job(start, "start", given, code=(WORLDS, "gpt.pretraining")))
            of = frozenset(name for name, claim in CLAIMS.items() if arm in claim.arms)
            code = (WORLDS, "studies.claims.arms", *ARMS[arm].engines)
            given = {**ARMS[arm].settings, "seed": seed}
            listed[f"{arm}-{seed}"] = Job(f"{arm}-{seed}", arm, given, (start,), of, code=code)
    return listed


def do(config: ClaimsConfig, job: Job, folder: Path) -> None:
    torch.set_num_threads(1)
    begin = time.process_time()
    if job.stage == "start":
        numbers = worlds.make_start(folder, **job.arguments)
    else:
        numbers = ARMS[job.stage].run(folder.parent, job.arguments["seed"])
    seconds = time.process_time() - begin
    write_json(folder / NUMBERS, significant(numbers) | {"seconds": round(seconds, 1)})


# --- the recording --------------------------------------------------------------------------------


def results_of(numbers: Numbers) -> dict[str, dict[int, Any]]:
    """Arm (or start-SHARE) -> seed -> numbers."""
    kept = numbers["results"]
    return {arm: {int(seed): run for seed, run in runs.items()} for arm, runs in kept.items()}


def collect(config: ClaimsConfig, done: Mapping[str, Job]) -> dict[str, Any]:
    """Every run, those of docs/claims.json where they were not made again, and what follows from them."""
    kept = read_object(RECORDED)
    results = results_of(kept)
    for name in sorted({*done, *(need for job in done.values() for need in job.needs)}):
        arm, _, seed = name.rpartition("-")
        results.setdefault(arm, {})[int(seed)] = read_object(config.out / name / NUMBERS)
    known = kept["claims"]  # with its source and its words
    records = {n: known.get(n, {}) | record for n, record in judged(results, CLAIMS).items()}
    return {"claims": records, "results": results}


def part(results: Results, claim: Claim, *, again: bool = False) -> dict[str, dict[int, Any]]:
    """The runs of a claim's arms: the first seeds, or those of the rerun."""
    return {
        arm: {seed: run for seed, run in results[arm].items() if (seed >= AGAIN) == again}
        for arm in claim.arms
    }


def judged(results: Results, listed: Mapping[str, Claim]) -> dict[str, dict[str, Any]]:
    """The verdict of every claim whose arms have run, with its control, its rerun and other numbers."""
    ready = {name: claim for name, claim in listed.items() if set(claim.arms) <= set(results)}
    first = {name: claim.rule(part(results, claim)) for name, claim in ready.items()}
    corrected = holm({name: verdict.p for name, verdict in first.items()})
    return {
        name: described(claim, replace(first[name], corrected=corrected[name]), results)
        for name, claim in ready.items()
    }


def described(claim: Claim, verdict: Verdict, results: Results) -> dict[str, Any]:
    """What the page says of one claim."""
    runs, again = part(results, claim), part(results, claim, again=True)
    control = claim.rule(claim.control.swap(runs))
    others = {name: of_seeds(runs, effect) for name, effect in claim.also.items()}
    record = {
        "title": claim.title, **told(verdict), "minutes": minutes(claim, results),
        "control": {"title": claim.control.title, **told(control), "passed": control.word != HELD},
        "also": {name: t_interval(list(v.values())) for name, v in others.items() if len(v) > 1},
    }  # fmt: skip
    if all(again.values()):
        rules = claim.rule.rules if isinstance(claim.rule, Weakest) else (claim.rule,)
        new = next(rule for rule in rules if rule.unit == verdict.unit)(again)  # not its weakest
        if new.mean is not None:  # inside: None of too few first seeds
            low, high = verdict.low, verdict.high
            inside = None if low is None or high is None else low <= new.mean <= high
            record["again"] = told(new) | {"inside": inside}
    return record


def told(verdict: Verdict) -> dict[str, Any]:
    return significant(vars(verdict) | {"beyond": verdict.beyond, "verdict": verdict.word})


def minutes(claim: Claim, results: Results) -> float:
    """Of one core, for the first seeds of a claim's arms with their starts."""
    arms = {*claim.arms, *(f"start-{ARMS[arm].share}" for arm in claim.arms)}
    runs = [run for arm in arms for seed, run in results.get(arm, {}).items() if seed < AGAIN]
    return round(sum(run["seconds"] for run in runs) / 60, 1)


# --- the page -------------------------------------------------------------------------------------


def number(record: Mapping[str, Any]) -> str:
    """+0.12 (+0.03 to +0.21): a mean with its 95% interval; how many seeds have one, where not all do."""
    if record["mean"] is None:
        return "too few seeds"
    seeds = len(record.get("values", range(SEEDS)))
    fewer = f", {seeds} seeds" if seeds != SEEDS else ""
    return f"{record['mean']:+.3g} ({record['low']:+.3g} to {record['high']:+.3g}{fewer})"


def glance(records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """On top: a table with one row a claim, those that held first."""
    broken = {True: "", False: ", **but its control held: the rule is broken**"}
    rows = [
        [
            f"[{record['title']}](#{name.replace('_', '-')})",
            f"**{record['verdict']}**{broken[record['control']['passed']]}",
            f"{number(record)} {record['unit']}".replace("|", "\\|"),  # as in KL(a || b)
            f"{record['least']:g}", f"{record['corrected']:.2g}", f"{record['minutes']:g}",
        ]
        for word in (HELD, FAILED, UNTOLD)
        for name, record in records.items()
        if record["verdict"] == word
    ]  # fmt: skip
    head = ["claim", "verdict", "effect", "would have to exceed", "p", "minutes"]
    return markdown(head, rows)


def section(record: Mapping[str, Any]) -> list[str]:
    """What its control and its rerun came to."""
    control = record["control"]
    checks = f"**Control.** {control['title']}: {number(control)}, {control['verdict']}."
    if "again" in record:
        again = record["again"]
        places = {True: "inside the first interval", False: "**outside the first interval**"}
        inside = places.get(again["inside"], "not to be compared")
        checks += f" **Again, with new seeds:** {number(again)}, {inside}."
    return [checks]


def tables(numbers: Numbers) -> dict[str, list[str]]:
    """Of all verdicts, and of each claim what its control and its rerun came to."""
    records = numbers["claims"]
    return {"verdicts": glance(records)} | {name: section(each) for name, each in records.items()}


def draw(numbers: Numbers, docs: Path) -> None:
    """A figure a claim, and all verdicts in one."""
    results = results_of(numbers)
    for name in numbers["claims"]:
        with drawing(docs / "claims" / f"{name}.png", 7.5, 4) as figure:
            axis = figure.subplots()
            CLAIMS[name].draw(axis, part(results, CLAIMS[name]))
            axis.set_title(CLAIMS[name].found, fontsize=10)
            write_verdict(axis, numbers["claims"][name]["verdict"])
    at_a_glance(numbers["claims"], docs / "claims.png")


STUDY = Study(
    flags=ClaimsConfig, usual={"seeds": SEEDS}, quick={"seeds": 1, "parts": ("sigmoid",)}, plan=plan,
    do=do, collect=collect, tables=tables, draw=draw, recorded=RECORDED,
)  # fmt: skip
