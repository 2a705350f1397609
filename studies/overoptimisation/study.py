"""The price of a proxy: over-optimisation against a known gold reward.

    python -m studies overoptimisation law                    the law alone; likewise cures
    python -m studies overoptimisation --seeds 1 --only 1x32-600   one cell, from one start

Two parts. law: reward models of 4 sizes on 5 numbers of labels, each optimised by GRPO until its
gold reward has turned, and by best-of-n. cures: what helps, compared at equal KL. plan.py lists the jobs
and their sizes. Numbers go to docs/overoptimisation.json, from which every table and figure is drawn.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from studies.overoptimisation import results
from studies.overoptimisation.figures import draw
from studies.overoptimisation.plan import plan, settings_of
from studies.overoptimisation.stages import STAGES
from studies.pages import DOCS, Numbers, markdown, rounded
from studies.runner import Job, Study, StudyFlags

TERMS = ("sentiment", "topic", "politeness", "form", "repetition")


def do(flags: StudyFlags, job: Job, folder: Path) -> None:
    STAGES[job.stage](folder, root=flags.out, **job.arguments)


def collect(flags: StudyFlags, done: Mapping[str, Job]) -> dict[str, Any]:
    """The settings, and the numbers of each part of which a run is there."""
    settings = settings_of(flags)
    found: dict[str, Any] = {"settings": vars(settings)}
    for part, numbers_of in (("law", results.law), ("cures", results.cures)):
        if part in flags.parts and (numbers := numbers_of(settings, flags.out, done)):
            found[part] = numbers
    return dict(rounded(found))


# --- the page -------------------------------------------------------------------------------------


def tables(numbers: Numbers) -> dict[str, list[str]]:
    """Every table of the page, by its mark."""
    found: dict[str, list[str]] = {}
    if cells := numbers.get("law", {}).get("cells"):
        found |= {"law": grid(cells), "falls": falls(cells), "answers": answers(cells[0])}
    if "cures" in numbers:
        found |= {"cures": cures(numbers["cures"]["table"]), "alarms": alarms(numbers["cures"])}
    return found


def grid(cells: Sequence[Numbers]) -> list[str]:
    """Peak gold and gold at the end of every size and engine, by labels."""
    labels = sorted({cell["labels"] for cell in cells})
    of: dict[Any, list[list[float]]] = {}
    for cell in cells:
        gold = cell["points"]["gold"]
        key = cell["engine"], cell["size"], cell["labels"]
        of.setdefault(key, []).append([gold[cell["best"]], gold[-1]])
    rows = []
    for engine, size in sorted({key[:2] for key in of}):
        row = [f"{size}, {engine}"]
        for count in labels:
            means = map(statistics.fmean, zip(*of.get((engine, size, count), []), strict=True))
            row.append(", ".join(f"{mean:.3f}" for mean in means) or "-")
        rows.append(row)
    return markdown(["run against", *(f"{count:,}" for count in labels)], rows)


def falls(cells: Sequence[Numbers]) -> list[str]:
    """Which term of GRPO's gold fell between the best measurement and the end, mean of sizes and starts."""
    rows = []
    for labels in sorted({cell["labels"] for cell in cells}):
        own = [c["fall"].values() for c in cells if (c["engine"], c["labels"]) == ("grpo", labels)]
        means = [statistics.fmean(part) for part in zip(*own, strict=True)]
        rows.append([f"{labels:,}", *(f"{mean:+.3f}" for mean in [*means, sum(means)])])
    return markdown(["labels", *TERMS, "sum"], rows)


def answers(cell: Numbers) -> list[str]:
    """Answers to one prompt at the start, the peak and the end of a run."""
    prompt = sorted({row["prompt"] for row in cell["texts"]})[-2:][0]
    texts = sorted(cell["texts"], key=lambda row: row["step"])
    rows = [
        [
            str(row["step"]), re.sub(r"\s+", " ", row["response"].replace("|", "/")).strip(),
            f"{row['reward']:.2f}", f"{row['gold']:.2f}",
        ]
        for row in texts
        if row["prompt"] == prompt
    ]  # fmt: skip
    return markdown(["step", "answer", "proxy", "gold"], rows)


def cures(table: Sequence[Numbers]) -> list[str]:
    """The baseline's gold, and below it every mitigation's difference, a distance a column."""
    found = {(row["cure"], row["kl"]): row for row in table}
    distances = dict.fromkeys(row["kl"] for row in table)
    rows = [
        [cure, *(cure_cell(found[cure, distance]) for distance in distances)]
        for cure in dict.fromkeys(row["cure"] for row in table)
    ]
    return markdown(["mitigation", *(f"{distance:g} nats" for distance in distances)], rows)


def cure_cell(row: Numbers) -> str:
    """A mean or a difference with its interval, p below 1, and how many runs get so far if not all."""
    if row["cure"] == "baseline" and "mean" in row:
        shown = f"{row['mean']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
    elif "difference" in row:
        d = row["difference"]
        shown = f"{d['mean']:+.3f} ({d['low']:+.3f} to {d['high']:+.3f})"
        shown += f", {d['holm']:.3f}" if d.get("holm", 1) < 0.9995 else ""
    else:
        shown = "-"
    return shown + (f" ({row['reached']} of {row['of']})" if row["reached"] < row["of"] else "")


def alarms(found: Numbers) -> list[str]:
    """When report.doctor suspects the proxy in the baseline's runs, without gold."""
    rows = []
    for row in found["alarms"]:
        seen = ["never", "-"]
        if row["step"] is not None:
            seen = [f"{row['step']} ({row['kl']:.1f})", f"{row['gold']:.3f}"]
        rows.append([str(row["start"]), *seen, f"{row['best']:.3f}", f"{row['end']:.3f}"])
    columns = ["start", "proxy suspected at step (nats)", "gold there", "best gold"]
    return markdown([*columns, "gold at the end"], rows)


STUDY = Study(
    usual={"seeds": 5}, quick={"seeds": 1}, plan=plan, do=do, collect=collect, tables=tables, draw=draw,
    recorded=DOCS / "overoptimisation.json",
)  # fmt: skip
