"""Three ways to pay for answers: a Bradley-Terry model, a judge that is asked in words, and a rubric.

    python -m studies judges --chat runs/smollm2      a published chat model orders pairs, too

The world of reviews, whose gold is known. The same 480 noisy pairs train a reward model and two judges:
the base model fine-tuned to say Yes or No behind one answer, or A or B behind two. A rubric of four rules
reads none. Judges and rubric are files of docs/examples, passed to --reward as a reader would. Measured:
how often each orders held-out pairs as gold does; gold of the best of 8 answers by each; and GRPO on each,
and on gold, until 10 nats: gold where a run first reaches 2, 4 and 8. The judge of two orders pairs alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.files import read_json, read_object
from harness.flags import AtLeastOne
from studies.bootstrap import Array, at_distance, mean_with_interval
from studies.judges.stages import BEST_OF, REWARDS, STAGES, TOYS, USUAL
from studies.overoptimisation.stages import TERMS, read_points
from studies.pages import DOCS, Numbers, markdown, rounded
from studies.runner import Job, Study, StudyFlags, read_record

DISTANCES = (2.0, 4.0, 8.0)  # nats


@dataclass(frozen=True, kw_only=True)
class JudgesConfig(StudyFlags):
    """Compare a reward model, a generative judge and a rubric where gold is known."""

    chat: Path | None = None
    """A published chat model, whose order of pairs is measured too; nothing is trained on it."""
    chat_pairs: AtLeastOne = 100
    """Held-out pairs of the first seed that it is asked about."""


def plan(config: JudgesConfig) -> dict[str, Job]:
    """For each seed the pairs and what is learned from them; then a policy for each reward and seed."""
    settings, jobs = TOYS if config.quick else USUAL, list[Job]()
    files = ("docs/examples/judge_reward.py", "docs/examples/rubric_reward.py")
    code = ("studies.judges.stages", "studies.overoptimisation.stages", "rl.grpo_engine", *files)

    def add(name: str, stage: str, *needs: str, **arguments: Any) -> str:
        given = dict(arguments, settings=settings)
        jobs.append(Job(name, stage, given, needs, frozenset(["judges"]), code=code))
        return name

    for seed in range(config.seeds):
        add(f"learned-{seed}", "learned", start=seed)
    for name, seed in itertools.product(REWARDS, range(config.seeds)):
        add(f"{name}-{seed}", "policy", f"learned-{seed}", start=seed, reward=name)
    if config.chat is not None:
        asked = dict(chat=str(config.chat.resolve()), count=config.chat_pairs)
        add("chat", "chat", "learned-0", **asked)
    return {job.name: job for job in jobs}


def do(config: JudgesConfig, job: Job, folder: Path) -> None:
    STAGES[job.stage](folder, root=config.out, **job.arguments)


# --- what it says ---------------------------------------------------------------------------------


def collect(config: JudgesConfig, jobs: Mapping[str, Job]) -> dict[str, Any]:
    """Every number of the page, from the finished jobs."""
    done, root = jobs.values(), config.out
    of = {stage: [root / job.name for job in done if job.stage == stage] for stage in STAGES}
    scores = [read_object(place / "scores.json") for place in of["learned"]]
    names = scores[0]["right"] if scores else ()
    found: dict[str, Any] = {"rewards": {}, "seeds": len(scores)}
    found["cpu_minutes"] = sum(read_record(root / job.name)["cpu"] for job in done) / 60
    found["right"] = {name: mean_of([each["right"][name] for each in scores]) for name in names}
    found |= {key: [each[key] for each in scores] for key in ("same_place", "ties")}
    for name in REWARDS:
        runs = [place for place in of["policy"] if place.name.rpartition("-")[0] == name]
        points = [read_points(place) for place in runs]
        found["rewards"][name] = {
            "best_of": mean_of([each["best_of"][name] for each in scores]),
            "at": [gold_at(points, distance) for distance in DISTANCES],
            "base": mean_of([each["gold"][0] for each in points]),
            "curves": [curve(each) for each in points],
            "texts": [last_texts(place) for place in runs],
        }
    for place in of["chat"]:
        asked = read_object(place / "scores.json")
        found["chat"] = {name: mean_of([right]) for name, right in asked["right"].items()}
        found["chat"] |= {"same_place": asked["same_place"], "pairs": len(asked["right"]["chat"])}
    return rounded(found)


def curve(points: Mapping[str, Array]) -> dict[str, list[float]]:
    """Means over the prompts of each measurement of a run."""
    names = ("kl", "gold", "proxy", *TERMS)
    return {"step": points["step"].tolist()} | {n: points[n].mean(1).tolist() for n in names}


def mean_of(values: Sequence[Sequence[float]] | Sequence[Array]) -> dict[str, float]:
    """The mean of (starts, N) with its interval; {} of nothing."""
    if not len(values):
        return {}
    found = mean_with_interval(np.array(values, float))
    return {key: found[key] for key in ("mean", "low", "high")}


def gold_at(points: Sequence[Mapping[str, Array]], distance: float) -> dict[str, Any]:
    """Gold where the runs first reach a distance, of those that do."""
    there = [at_distance(p["kl"].mean(1), p["gold"], distance) for p in points]
    reached = [values for values in there if values is not None]
    return {"kl": distance, "reached": len(reached), "of": len(points)} | mean_of(reached)


def last_texts(folder: Path) -> list[dict[str, Any]]:
    """What a run answered first and last, to the first prompts."""
    texts = read_json(folder / "texts.json")
    ends = {min(row["step"] for row in texts), max(row["step"] for row in texts)}
    return [row for row in texts if row["step"] in ends]


def tables(numbers: Numbers) -> dict[str, list[str]]:
    """One line for each way to pay."""
    rows = []
    for name, row in numbers["rewards"].items():
        gold = [cell(at, 2) + share(at) for at in row["at"]]
        rows.append([name, cell(numbers["right"].get(name), 2), cell(row["best_of"], 2), *gold])
    rows.append(["judge of two", cell(numbers["right"].get("judge of two"), 2), *["-"] * 4])
    columns = ["paid by", "pairs ordered as gold does", f"gold, best of {BEST_OF}"]
    return {"judges": markdown([*columns, *(f"gold at {d:g} nats" for d in DISTANCES)], rows)}


def cell(found: Mapping[str, float] | None, digits: int) -> str:
    """A mean with its interval, a dash where there is none."""
    if not found or "mean" not in found:
        return "-"
    mean, low, high = (f"{found[key]:.{digits}f}" for key in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def share(at: Mapping[str, Any]) -> str:
    return f", {at['reached']} of {at['of']} runs" if at["reached"] < at["of"] else ""


STUDY = Study(
    flags=JudgesConfig, quick={"seeds": 1}, plan=plan, do=do, collect=collect, tables=tables,
    recorded=DOCS / "judges.json",
)  # fmt: skip
