"""Groups of runs, the same but for the seed, compared: a page, and a table for pandas."""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import UserError
from harness.files import display_path
from harness.paths import ANSWERS
from harness.report.intervals import (
    Array,
    at_distance,
    holm,
    mean_with_interval,
    t_interval,
    welch,
)
from harness.report.page import COLOURS, PLACES, SAMPLES, Run, final_numbers, flat, lines, text
from harness.report.templating import number, render

OWN = ("seed", "script", "inputs", "made_with", *PLACES)  # what runs of one group may differ in
KL_APART = 0.2  # as a share of the larger one


@dataclass(frozen=True)
class Group:
    """Runs that differ by their seed."""

    name: str
    runs: Sequence[Run]

    def values(self, key: str) -> list[float]:
        """A final number of each run."""
        return [flat(final_numbers(run))[key] for run in self.runs]

    @property
    def seeds(self) -> list[Any]:
        return [run.flags.get("seed") for run in self.runs]


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs by the folder that they lie in; of one folder by their names without the last number.

    The first group is the baseline. UserError unless there are two.
    """
    places = [run.folder.resolve().parent for run in runs]
    names = [place.name for place in places]
    if len(set(places)) == 1:
        names = [re.sub(r"[-_.]?(seed)?[-_]?\d+$", "", run.folder.resolve().name) for run in runs]
    found: dict[str, list[Run]] = {}
    for name, run in zip(names, runs, strict=True):
        found.setdefault(name, []).append(run)
    if len(found) < 2:
        raise UserError(
            f"all {len(runs)} runs are of one group, {names[0]}: lay each group's runs in a folder, as in "
            "BASELINE/seed0 and MINE/seed0"
        )
    return [Group(name, members) for name, members in found.items()]


def measured(groups: Sequence[Group]) -> list[str]:
    """The final numbers that every run has: on test prompts, or of its last validation."""
    numbers = [flat(final_numbers(run)) for group in groups for run in group.runs]
    common = [key for key in numbers[0] if all(key in other for other in numbers)]
    tests = [key for key in common if key.startswith("test/")]
    return tests or [key for key in common if key.startswith(("validation/", "held_out_"))]


def difference(group: Group, baseline: Group, key: str) -> dict[str, Any]:
    """group - baseline over seeds: paired where both have the same seeds, else Welch's."""
    values, others = group.values(key), baseline.values(key)
    if min(len(values), len(others)) < 2:
        return {"mean": float(np.mean(values) - np.mean(others)), "test": "one seed: no test"}
    seeds = baseline.seeds
    if len(set(seeds)) == len(seeds) and sorted(map(str, seeds)) == sorted(map(str, group.seeds)):
        order = dict(zip(group.seeds, values, strict=True))
        gaps = [order[seed] - other for seed, other in zip(seeds, others, strict=True)]
        found, test = t_interval(gaps), f"paired t, {len(gaps)} seeds"
    else:
        found = welch(values, others)
        test = f"Welch's t, {len(values)} and {len(others)} seeds"
    if found["low"] == found["high"]:  # as with few prompts: t would be infinite, and p 0
        return {"mean": found["mean"], "test": "no spread over seeds: no test"}
    return found | {"test": test}


def spread(values: Sequence[float]) -> str:
    """A mean over seeds with its interval."""
    if len(values) < 2:
        return number(float(values[0]))
    return ranged(t_interval(values))


def ranged(of: Mapping[str, Any]) -> str:
    """A number with the interval that was found for it."""
    if "low" not in of:
        return number(of["mean"])
    return f"{of['mean']:.4g} [{of['low']:.4g}, {of['high']:.4g}]"


def table_of(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """A row for each measured number and group but the baseline; p holds for all groups together."""
    baseline, rows = groups[0], []
    for key in measured(groups):
        gaps = {group.name: difference(group, baseline, key) for group in groups[1:]}
        corrected = holm({name: gap["p"] for name, gap in gaps.items() if "p" in gap})
        for group in groups[1:]:
            gap = gaps[group.name]
            rows.append({
                "key": key, "group": group.name, "baseline": spread(baseline.values(key)),
                "value": spread(group.values(key)), "difference": ranged(gap),
                "p": corrected.get(group.name), "test": gap["test"], "gap": gap,
            })  # fmt: skip
    return rows


# At equal KL, head to head ------------------------------------------------------------------------


def path_of(run: Run) -> tuple[str, Array, Array, Array]:
    """What is measured against the KL on validation prompts: its name, steps, KLs and values."""
    name = "gold" if any("validation/gold" in row for row in run.rows) else "reward"
    keys = ("step", "validation/kl", f"validation/{name}")
    points = [[row[key] for key in keys] for row in run.rows if all(key in row for key in keys)]
    found = np.array(points, dtype=np.float64).reshape(-1, 3)
    return name, found[:, 0], found[:, 1], found[:, 2]


def at_equal_kl(groups: Sequence[Group]) -> tuple[float, dict[str, list[float]]] | None:
    """The largest KL that every run reaches, and each run's measure where it first does."""
    paths = {group.name: [path_of(run)[2:] for run in group.runs] for group in groups}
    flat_paths = [path for each in paths.values() for path in each]
    if not all(len(kl) for kl, _ in flat_paths):
        return None
    target = min(float(kl.max()) for kl, _ in flat_paths)
    values = {
        name: [float(v[0]) for kl, y in each if (v := at_distance(kl, y[:, None], target)) is not None]
        for name, each in paths.items()
    }  # fmt: skip
    return target, values


def head_to_head(group: Group, baseline: Group) -> dict[str, Any] | None:
    """How often the group's answer to a test prompt is worth more; a tie counts half.

    By gold where both know it, else by the reward if that is the same. The interval resamples seeds
    and prompts. None where the answers are not kept or cannot be compared.
    """
    both = [[answers_of(run) for run in each.runs] for each in (group, baseline)]
    every = [rows for each in both for rows in each]
    prompts = [row.get("prompt") for row in every[0]]
    if not prompts or any([row.get("prompt") for row in rows] != prompts for rows in every):
        return None
    same = not differing([group, baseline], ("reward", "reward_model", "data", "ensemble"))
    known = [key for key in ("gold", "reward") if all(key in row for rows in every for row in rows)]
    by = next((key for key in known if key == "gold" or same), None)
    if by is None:
        return None
    mine, others = (np.array([[row[by] for row in rows] for rows in each]) for each in both)
    gaps = mine[:, None, :] - others[None, :, :]  # (seeds, seeds, prompts)
    wins = (np.sign(gaps) + 1) / 2
    return mean_with_interval(wins) | {"by": by, "prompts": len(prompts)}


def answers_of(run: Run) -> list[dict[str, Any]]:
    return lines(run.folder / ANSWERS)


def differing(groups: Sequence[Group], names: Sequence[str] | None = None) -> list[str]:
    """The flags, but for the seed, in which runs differ."""
    runs = [run for group in groups for run in group.runs]
    names = names or list(dict.fromkeys(name for run in runs for name in run.flags))
    return [
        name
        for name in names
        if name not in OWN and len({text(run.flags.get(name)) for run in runs}) > 1
    ]


def remarks_of(groups: Sequence[Group], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a reader must know before believing the table."""
    said = []
    for row in rows:
        means = [float(np.mean(g.values(row["key"]))) for g in groups if g.name == row["group"]]
        means.append(float(np.mean(groups[0].values(row["key"]))))
        if row["key"].endswith("/kl") and abs(means[0] - means[1]) > KL_APART * max(
            map(abs, means)
        ):
            said.append(
                f"The KL is unequal: {row['group']} {means[0]:.3g}, {groups[0].name} {means[1]:.3g} nats. "
                "Whoever goes further may earn more by that alone: compare at equal KL, below."
            )
    for group in groups:
        if inside := differing([group]):
            said.append(
                f"The runs of {group.name} differ in more than the seed: {', '.join(inside)}."
            )
        if len(group.runs) < 3:
            said.append(f"{group.name} has fewer than three seeds: {len(group.runs)}.")
    if len({text(run.flags.get("script")) for group in groups for run in group.runs}) > 1:
        said.append("The groups are of different scripts.")
    between = differing(groups)
    said.append(
        f"Flags that differ: {', '.join(between)}." if between else "All flags are the same."
    )
    return said


# The page and the table ---------------------------------------------------------------------------


def figure(groups: Sequence[Group]) -> str:
    """The measure over the steps and against the KL, a line for each run, as a PNG in base64."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(9, 3.6), dpi=120, layout="constrained")
    left, right = drawn.subplots(1, 2)
    name = "reward"
    for index, group in enumerate(groups):
        colour = COLOURS[index % len(COLOURS)]
        for place, run in enumerate(group.runs):
            label = group.name if place == 0 else None
            name, steps, kl, values = path_of(run)
            left.plot(steps, values, color=colour, label=label, marker=".", linewidth=1)
            right.plot(kl, values, color=colour, label=label, marker=".", linewidth=1)
    left.set(xlabel="step", ylabel=f"{name}, validation prompts")
    right.set(xlabel="KL to the start, nats", ylabel=f"{name}, validation prompts")
    left.legend()
    data = io.BytesIO()
    drawn.savefig(data, format="png")
    return base64.b64encode(data.getvalue()).decode("ascii")


def side_by_side(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """What the first run of each group answers to the first test prompts."""
    answers = [answers_of(group.runs[0])[:SAMPLES] for group in groups]
    rows = []
    for together in zip(*answers, strict=False):
        if len({row.get("prompt") for row in together}) > 1:
            return []
        parts = []
        for group, row in zip(groups, together, strict=True):
            worth = [f"{key} {row[key]:.3f}" for key in ("gold", "reward") if key in row]
            label = " ".join([group.name, *worth])
            parts.append({"label": label, "text": row.get("response", "")})
        rows.append({"prompt": together[0].get("prompt", ""), "parts": parts})
    return rows


def group_html(groups: Sequence[Group]) -> str:
    """The page. All text in it is escaped."""
    rows, equal, battles = table_of(groups), at_equal_kl(groups), []
    for group in groups[1:]:
        if battle := head_to_head(group, groups[0]):
            battles.append(battle | {"group": group.name, "shown": ranged(battle)})
    levels = {name: spread(values) for name, values in equal[1].items()} if equal else {}
    return render(
        "groups.html",
        title=" against ".join(group.name for group in reversed(groups)),
        groups=[{"name": group.name, "seeds": group.seeds} for group in groups],
        baseline=groups[0].name,
        remarks=remarks_of(groups, rows),
        rows=rows,
        battles=battles,
        target=equal[0] if equal else None,
        levels=levels,
        figure=figure(groups),
        samples=side_by_side(groups),
    )


def write_table(groups: Sequence[Group], path: Path) -> None:
    """metrics.jsonl of all runs as one CSV: a row a step, and what was tested in a run's last row."""
    rows = []
    for group in groups:
        for run in group.runs:
            who = {"group": group.name, "run": run.label, "seed": run.flags.get("seed")}
            tested = {k: v for k, v in flat(final_numbers(run)).items() if k.startswith("test/")}
            rows += [who | dict(row) for row in run.rows[:-1]]
            rows += [who | dict(row) | tested for row in run.rows[-1:]]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    try:
        with path.open("x", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)
    except FileExistsError:
        raise UserError(f"{display_path(path)} is there already: give --out another file") from None
