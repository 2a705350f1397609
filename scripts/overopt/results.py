"""Finished jobs -> numbers: what docs/overoptimisation.json holds. Nothing here trains or draws."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from studies.bootstrap import Array, at_distance, mean_with_interval, paired_difference
from studies.pages import rounded
from studies.runner import DONE, is_done

from harness.files import read_jsonl
from harness.report.intervals import holm, t_tails
from harness.report.rules import Run, proxy_suspected
from overopt.fits import NEAREST, pooled_fit, slope
from overopt.plan import CURES, PARTS, plan
from overopt.runs import TERMS, Points, read_points
from overopt.settings import Settings
from overopt.terms import change_by_term

CURE_DISTANCES = (2.0, 4.0, 8.0, 16.0)
SHOWN = ("step", "kl", "gold", "proxy", "length", "eos", *TERMS)
FEWEST_STARTS = 2  # of a difference: within one start its interval would be over prompts alone
FEWEST = 4  # measurements beyond the nearest distance, in every run of a fit
TEXTS = 3  # prompts whose answers are kept, of the steps that are told about


def collect(part: str, settings: Settings, root: Path) -> dict[str, Any]:
    """The numbers of one part; {} where none of its runs is finished."""
    found = {"law": law, "cures": cures}[part](settings, root)
    return rounded(found) if found else {}


def progress(settings: Settings, root: Path, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """How many jobs of each part are done, and their CPU hours.

    What is recorded counts although its folders are gone.
    """
    jobs = plan(settings).values()
    rows = {}
    for part in PARTS:
        own = [job for job in jobs if part in job.parts]
        done = [job for job in own if is_done(root, job.name)]
        spent = [json.loads((root / job.name / DONE).read_text("utf-8"))["cpu"] for job in done]
        row = {"jobs": len(own), "done": len(done), "cpu_hours": sum(spent) / 3600}
        before = recorded.get("progress", {}).get(part, row)
        rows[part] = before if before["done"] > len(done) else row
    return rows


def thin(points: Points) -> dict[str, list[float]]:
    """Means over the prompts, by name."""
    return {
        name: [float(x) for x in (v if v.ndim == 1 else v.mean(axis=1))]
        for name, v in points.items()
        if name in SHOWN
    }


def best_point(points: Points, settings: Settings) -> int:
    """Where gold is highest as a running mean; the middle of that mean's window."""
    gold, width = points["gold"].mean(axis=1), min(settings.smooth, len(points["gold"]))
    means = np.convolve(gold, np.ones(width) / width, mode="valid")
    return int(means.argmax()) + width // 2


def about_run(folder: Path, settings: Settings) -> dict[str, Any]:
    """A run's curve, its best and its end, what fell in between, and a few answers."""
    points = read_points(folder)
    best, last = best_point(points, settings), len(points["gold"]) - 1
    row: dict[str, Any] = {"points": thin(points), "best": best}
    if TERMS[0] in points:
        moments = [{name: points[name][i] for name in TERMS} for i in (best, last)]
        row["fall"] = change_by_term(*moments)
    steps = [float(points["step"][i]) for i in sorted({0, best, last})]
    texts = json.loads((folder / "texts.json").read_text("utf-8"))
    kept = [text for text in texts if text["step"] in steps]
    prompts = list(dict.fromkeys(text["prompt"] for text in kept))[:TEXTS]
    row["texts"] = [text for text in kept if text["prompt"] in prompts]
    return row


# --- part 1 ---------------------------------------------------------------------------------------


def law(settings: Settings, root: Path) -> dict[str, Any]:
    """Cells with their curves; a fit per cell and kind, through all starts; trends of the fits."""
    cells, fits = [], []
    for size in settings.sizes:
        for labels in settings.labels:
            rows = list(law_rows(settings, root, size, labels))
            cells += rows
            for kind in ("grpo", "ppo", "best_of_n"):
                if fitted := fit_of_cell(settings, root, size, labels, kind):
                    fits.append({"size": size, "labels": labels, "kind": kind} | fitted)
    if not cells:
        return {}
    return {"cells": cells, "fits": fits, "trends": trends(cells, fits)}


def law_rows(settings: Settings, root: Path, size: str, labels: int) -> Iterable[dict[str, Any]]:
    """What is finished of one cell, a row per start and engine."""
    for start in settings.starts:
        folder, name = root / f"start-{start}", f"{size}-{labels}"
        for engine in ("grpo", "ppo"):
            if not is_done(folder, f"law/{engine}-{name}"):
                continue
            report = json.loads((folder / "rm" / name / "report.json").read_text("utf-8"))
            row = {
                "size": size, "labels": labels, "start": start, "engine": engine,
                "weights": report["weights"], "gold_accuracy": report.get("gold_accuracy"),
            }  # fmt: skip
            row |= about_run(folder / "law" / f"{engine}-{name}", settings)
            if engine == "grpo" and is_done(folder, f"best_of_n/{name}"):
                row["best_of_n"] = best_of_n_rows(folder / "best_of_n" / name)
            yield row


def best_of_n_rows(folder: Path) -> dict[str, list[float]]:
    """n, KL, gold and proxy as means over the bank's prompts."""
    found = torch.load(folder / "best_of_n.pt")
    rows = {"n": found["n"].tolist(), "kl": found["kl"].tolist()}
    return rows | {name: found[name].mean(1).tolist() for name in ("gold", "proxy")}


def fit_of_cell(
    settings: Settings, root: Path, size: str, labels: int, kind: str
) -> dict[str, Any] | None:
    """One fit through the finished starts of a cell; None where a run hardly moved."""
    runs = []
    for start in settings.starts:
        folder, name = root / f"start-{start}", f"{size}-{labels}"
        if kind == "best_of_n" and is_done(folder, f"best_of_n/{name}"):
            bank = torch.load(folder / "best_of_n" / name / "best_of_n.pt")
            gold = bank["gold"].double().numpy()
            runs.append([bank["kl"].double().numpy()[:, None], gold - gold[:1]])
        elif kind != "best_of_n" and is_done(folder, f"law/{kind}-{name}"):
            points = read_points(folder / "law" / f"{kind}-{name}")
            runs.append([points["kl"], points["gold"] - points["gold"][:1]])
    if not runs or min(int((run[0].mean(axis=1) > NEAREST).sum()) for run in runs) < FEWEST:
        return None
    form = "best of n" if kind == "best_of_n" else "RL"
    return {"starts": len(runs)} | pooled_fit(form, runs)


def trends(cells: list[dict[str, Any]], fits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How alpha and beta move with the logarithms of labels and weights: slopes and their errors."""
    weights = {cell["size"]: cell["weights"] for cell in cells}
    rows: list[dict[str, Any]] = []
    for kind in ("grpo", "best_of_n"):
        own = [fit for fit in fits if fit["kind"] == kind and fit["size"] in weights]
        for over, value in (
            ("labels", lambda fit: fit["labels"]), ("weights", lambda fit: weights[fit["size"]]),
        ):  # fmt: skip
            x = [float(np.log(value(fit))) for fit in own]
            if len(set(x)) < 3:
                continue
            for name in ("alpha", "beta"):
                found, error = slope(x, [fit[name] for fit in own])
                p = t_tails(found / error, len(x) - 2)
                rows.append(
                    {"kind": kind, "over": over, "of": name, "slope": found, "error": error, "p": p}
                )
    corrected = holm({str(place): row["p"] for place, row in enumerate(rows)})
    return [row | {"holm": p} for row, p in zip(rows, corrected.values(), strict=True)]


# --- part 2 ---------------------------------------------------------------------------------------


def cure_folder(settings: Settings, root: Path, start: int, cure: str) -> Path:
    """Where a cure's run lies; the uncured run is the law's."""
    size, labels = settings.cure_cell
    if cure == "patient":
        return root / f"start-{start}" / "law" / f"grpo-{size}-{labels}"
    return root / f"start-{start}" / "cures" / cure


def cures(settings: Settings, root: Path) -> dict[str, Any]:
    """Every cure's curves, gold at equal KL beside the uncured run's, and the doctor's alarm."""
    runs: dict[str, dict[int, Points]] = {}
    rows = []
    for cure in CURES:
        for start in settings.cure_starts:
            folder = cure_folder(settings, root, start, cure)
            if is_done(folder, ""):
                runs.setdefault(cure, {})[start] = read_points(folder)
                rows.append({"cure": cure, "start": start} | about_run(folder, settings))
    if "patient" not in runs:
        return {}
    table = [row for distance in CURE_DISTANCES for row in compared_at(runs, distance, settings)]
    alarms = [
        {"start": start} | alarm(cure_folder(settings, root, start, "patient"), settings)
        for start in runs["patient"]
    ]
    return {"runs": rows, "table": table, "alarms": alarms}


def compared_at(
    runs: Mapping[str, Mapping[int, Points]], distance: float, settings: Settings
) -> list[dict[str, Any]]:
    """Gold of every cure at one KL, and its paired difference to the uncured run on the same starts."""
    values = {
        cure: {start: gold_at(points, distance) for start, points in by_start.items()}
        for cure, by_start in runs.items()
    }
    rows: list[dict[str, Any]] = []
    p_values: dict[str, float | None] = {}
    for cure, by_start in values.items():
        row: dict[str, Any] = {"cure": cure, "kl": distance, "of": len(by_start)}
        reached = {start: gold for start, gold in by_start.items() if gold is not None}
        row["reached"] = len(reached)
        if reached:
            row |= mean_with_interval(np.stack(list(reached.values()))[:, None])
        both = [s for s in reached if values["patient"].get(s) is not None]
        if len(both) >= FEWEST_STARTS and cure != "patient":
            own, others = (
                np.stack([np.asarray(values[name][s]) for s in both])[:, None]
                for name in (cure, "patient")
            )
            row["difference"] = paired_difference(own, others)
            alone = paired_difference(own[:1], others[:1])
            row["in_one_start"] = {name: alone[name] for name in ("low", "high")}
            p_values[cure] = row["difference"].get("p")
        rows.append(row)
    corrected = holm({cure: p for cure, p in p_values.items() if p is not None})
    for row in rows:
        if row["cure"] in corrected:
            row["difference"]["holm"] = corrected[row["cure"]]
    return rows


def gold_at(points: Points, distance: float) -> Array | None:
    """Gold per prompt where the run first is so many nats away; None where it never is."""
    return at_distance(points["kl"].mean(axis=1), points["gold"], distance)


def alarm(folder: Path, settings: Settings) -> dict[str, Any]:
    """When the doctor first suspects the proxy, without gold, and what gold was there and later."""
    points, rows = read_points(folder), read_jsonl(folder / "metrics.jsonl")
    gold, steps = points["gold"].mean(axis=1), points["step"]
    told = (next(proxy_suspected(Run(rows[:i])), "") for i in range(1, len(rows) + 1))
    first, says = next(((i, says) for i, says in enumerate(told, start=1) if says), (None, ""))
    row = {"best": float(gold[best_point(points, settings)]), "end": float(gold[-1])}
    if first is None:
        return row | {"step": None}
    at = int(np.searchsorted(steps, rows[first - 1]["step"]))
    at = min(at, len(gold) - 1)
    return row | {
        "step": rows[first - 1]["step"], "gold": float(gold[at]),
        "kl": float(points["kl"][at].mean()), "says": says,
    }  # fmt: skip
