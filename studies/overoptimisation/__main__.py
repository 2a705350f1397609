"""The price of a proxy: over-optimisation against a known gold reward.

    python -m studies.overoptimisation                        all that is left; Ctrl-C and the same goes on
    python -m studies.overoptimisation --parts law            the law alone; likewise cures
    python -m studies.overoptimisation --seeds 1 --only 1x32-600   one cell, from one start
    python -m studies.overoptimisation --plan                 what is done and left
    python -m studies.overoptimisation --draw law             numbers and figure of one part, no training

Two parts. law: reward models of 4 sizes on 5 numbers of labels, each optimised by GRPO until its
gold reward has turned, and by best-of-n. cures: what helps, compared at equal KL. plan.py lists the jobs
and their sizes. Numbers go to docs/overoptimisation.json, from which every table and figure is drawn.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from harness.command_line import run_command
from harness.files import display_path, read_object, write_text
from harness.flags import AtLeastOne
from harness.paths import REPOSITORY, RUNS
from studies.overoptimisation import figures, results
from studies.overoptimisation.plan import PARTS, SETTINGS, Settings, plan
from studies.overoptimisation.stages import STAGES
from studies.pages import markdown, rounded
from studies.runner import Job, StudyFlags, go

Numbers = Mapping[str, Any]
Part = Literal["law", "cures"]
JSON = "overoptimisation.json"
TERMS = ("sentiment", "topic", "politeness", "form", "repetition")


@dataclass(frozen=True, kw_only=True)
class OveroptimisationConfig(StudyFlags):
    """Run the study or a part of it, or draw what is there."""

    parts: tuple[Part, ...] = PARTS  # type: ignore[assignment]
    """Which parts."""
    seeds: AtLeastOne = 5
    """Starts of the cures, and of the law at most its three: 1 is a cheap look."""
    draw: tuple[Part, ...] = ()
    """Write the numbers and figures of these parts from the finished jobs, and run nothing."""
    size: Literal["full", "rehearsal"] = "full"
    """rehearsal: everything once, in toy sizes, to see that it works."""
    out: Path = RUNS / "overoptimisation"
    """Folder of all runs."""


# --- the page -------------------------------------------------------------------------------------


def tables(numbers: Numbers) -> dict[str, list[str]]:
    """Every table of the page, by its name."""
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


def draw(parts: Sequence[str], settings: Settings, root: Path, docs: Path) -> None:
    """Write the numbers of these parts, where runs are there, and every figure of them.

    Without the runs' folder the committed JSON stays as it is.
    """
    path = docs / JSON
    numbers = read_object(path) if path.exists() else {}
    if root.exists():
        numbers["settings"] = numbers.get("settings", {}) | rounded(vars(settings))
    for part in parts:
        if found := results.collect(part, settings, root):
            numbers[part] = found
    write_text(path, json.dumps(numbers, separators=(",", ":")) + "\n")
    for part in set(parts) & numbers.keys():
        figures.DRAWN[part](numbers, docs)
    print(f"wrote {display_path(path)} and the figures; `make tables` writes the page")


def main(config: OveroptimisationConfig) -> None:
    settings, root = SETTINGS[config.size], config.out.resolve()
    starts = settings.starts[: config.seeds], settings.cure_starts[: config.seeds]
    settings = replace(settings, starts=starts[0], cure_starts=starts[1])
    if config.draw:
        draw(config.draw, settings, root, REPOSITORY / "docs")
        return

    def do(job: Job, folder: Path) -> None:
        STAGES[job.stage](folder, root=root, **job.arguments)

    if go(config, plan(settings), config.parts, do):
        found = {part: results.collect(part, settings, root) for part in config.parts}
        for mark, table in tables({part: each for part, each in found.items() if each}).items():
            print("\n".join(["", mark, *table]))


if __name__ == "__main__":
    run_command(main, OveroptimisationConfig)
