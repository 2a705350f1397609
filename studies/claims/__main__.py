"""Ten claims of recent papers, each tested in minutes: docs/claims.md's verdicts, numbers and figures.

    python -m studies.claims                  all that is missing; Ctrl-C and the same again goes on
    python -m studies.claims razor entropy    two of them, and the runs that they need
    python -m studies.claims razor --again    its runs with new seeds
    python -m studies.claims --seeds 1        one seed of each: too few for a verdict
    python -m studies.claims --draw           JSON and figures from what is recorded

A job is one run: an arm and a seed, or the start that it needs; its numbers are one file
under --out. Claims and the arms that they share stand in ten.py; each rule was written before its runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from harness.command_line import run_command
from harness.errors import UserError
from harness.files import read_object, save_figure, write_json, write_text
from harness.flags import AtLeastOne
from harness.paths import REPOSITORY, RUNS
from report.intervals import holm, t_interval
from report.style import styled
from studies.claims import worlds
from studies.claims.figures import at_a_glance
from studies.claims.rules import FAILED, HELD, UNTOLD, Claim, Results, Verdict, Weakest, of_seeds
from studies.claims.ten import ARMS, CLAIMS
from studies.pages import markdown, significant
from studies.runner import Job, StudyFlags, finished, go

WORLDS = "studies.claims.worlds"
NUMBERS = "numbers.json"  # of a job
SEEDS = 6  # of every arm
AGAIN, CHOOSING = 100, 900  # the first seed of a rerun, and of runs that choose a setting
DOCS = REPOSITORY / "docs"


@dataclass(frozen=True, kw_only=True)
class ClaimsConfig(StudyFlags):
    """Claims tested in minutes."""

    names: tuple[str, ...]
    """Which claims; by default all of them."""
    seeds: AtLeastOne = SEEDS
    """Runs of each arm: 1 is a cheap look."""
    again: bool = False
    """New seeds, beside the first ones."""
    draw: bool = False
    """Start nothing: write the pages from docs/claims.json and the jobs that are there."""
    out: Path = RUNS / "claims"
    """Where jobs are kept."""


def plan(chosen: Mapping[str, Claim], seeds: Sequence[int]) -> dict[str, Job]:
    """The starts and runs of some claims, seed by seed: an interrupted study has whole seeds."""
    listed: dict[str, Job] = {}
    arms = {arm: None for claim in chosen.values() for arm in claim.arms}
    for seed in seeds:
        for arm in arms:
            share = ARMS[arm].share
            start = worlds.start_name(share, seed)
            given = {"share": share, "seed": seed}
            listed.setdefault(start, Job(start, "start", given, code=(WORLDS, "gpt.pretraining")))
            of = frozenset(name for name, claim in chosen.items() if arm in claim.arms)
            code = (WORLDS, "studies.claims.arms", *ARMS[arm].engines)
            given = {**ARMS[arm].settings, "seed": seed}
            listed[f"{arm}-{seed}"] = Job(f"{arm}-{seed}", arm, given, (start,), of, code=code)
    return listed


def do(job: Job, folder: Path) -> None:
    torch.set_num_threads(1)
    begin = time.process_time()
    if job.stage == "start":
        numbers = worlds.make_start(folder, **job.arguments)
    else:
        numbers = ARMS[job.stage].run(folder.parent, job.arguments["seed"])
    seconds = time.process_time() - begin
    write_json(folder / NUMBERS, significant(numbers) | {"seconds": round(seconds, 1)})


# --- the recording --------------------------------------------------------------------------------


def gathered(root: Path, docs: Path) -> dict[str, dict[int, Any]]:
    """Arm (or start-SHARE) -> seed -> numbers: those of docs/claims.json and of the jobs that are done."""
    path = docs / "claims.json"
    kept = read_object(path)["results"] if path.exists() else {}
    results = {arm: {int(seed): run for seed, run in runs.items()} for arm, runs in kept.items()}
    seeds = {file.parent.name.rpartition("-")[2] for file in root.glob(f"*/{NUMBERS}")}
    tried = [int(seed) for seed in seeds if seed.isdigit() and int(seed) < CHOOSING]
    for name in sorted(finished(plan(CLAIMS, tried), root)):
        arm, _, seed = name.rpartition("-")
        results.setdefault(arm, {})[int(seed)] = read_object(root / name / NUMBERS)
    return results


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


def tables(numbers: Mapping[str, Any]) -> dict[str, list[str]]:
    """Of docs/claims.md, from docs/claims.json: all verdicts, and the checks of each claim."""
    records = numbers["claims"]
    return {"verdicts": glance(records)} | {name: section(records[name]) for name in records}


def draw(records: Mapping[str, Mapping[str, Any]], results: Results, docs: Path) -> None:
    """A figure a claim, and all verdicts in one."""
    from matplotlib.figure import Figure

    for name in records:
        with styled():
            figure = Figure(figsize=(7.5, 4))
            axis = figure.subplots()
            CLAIMS[name].draw(axis, part(results, CLAIMS[name]))
            axis.set_title(CLAIMS[name].found)
            save_figure(figure, docs / "claims" / f"{name}.png")
    at_a_glance(records, docs / "claims.png")


def write_recording(config: ClaimsConfig, docs: Path = DOCS) -> None:
    """docs/claims.json, from which `make tables` has the tables of docs/claims.md, and the figures."""
    results = gathered(config.out, docs)
    known = read_object(docs / "claims.json")["claims"]  # with its source and its words
    records = {n: known.get(n, {}) | record for n, record in judged(results, CLAIMS).items()}
    recording = {"claims": records, "results": results}
    write_text(docs / "claims.json", json.dumps(recording, separators=(",", ":")) + "\n")
    draw(records, results, docs)
    print("written: docs/claims.json and the figures; `make tables` writes docs/claims.md")


def main(config: ClaimsConfig) -> None:
    unknown = [name for name in config.names if name not in CLAIMS]
    if unknown:
        raise UserError(f"there is no claim {unknown[0]!r}: choose among {', '.join(CLAIMS)}")
    chosen = {name: CLAIMS[name] for name in config.names or CLAIMS}
    first = AGAIN if config.again else 0
    jobs = plan(chosen, range(first, first + config.seeds))
    if config.draw or go(config, jobs, list(chosen), do):
        write_recording(config)


if __name__ == "__main__":
    run_command(main, ClaimsConfig)
