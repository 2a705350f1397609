"""Finished jobs -> numbers: what docs/overoptimisation.json holds. Nothing here trains or draws.

Gold against d = sqrt(KL) is fitted by the two forms of Gao et al. 2022 (arXiv:2210.10760):

    best-of-n   R(d) = d (alpha - beta d)
    RL          R(d) = d (alpha - beta log d)

R is the gold reward less that of the start. Both are linear in alpha and beta, so least squares has
one solution and no starting point.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.files import read_json, read_jsonl
from report.doctor import Run, proxy_suspected
from report.intervals import holm
from studies.bootstrap import Array, at_distance, mean_with_interval, paired_difference
from studies.overoptimisation.plan import CURES, Settings
from studies.overoptimisation.stages import TERMS, Points, read_points

CURE_DISTANCES = (2.0, 4.0, 8.0, 16.0)
SHOWN = ("step", "kl", "gold", "proxy", "length", "eos", *TERMS)
FEWEST_STARTS = 2  # of a difference: within one start its interval would be over prompts alone
FEWEST = 4  # measurements beyond the nearest distance, in every run of a fit
NEAREST = 0.05  # nats; nearer points say nothing, and log d runs away
TEXTS = 3  # prompts whose answers are kept, of the steps that are told about
WEIGHTS = {"sent": 0.3, "topic": 0.3, "polite": 0.25, "form": 0.15}  # of data/worlds/reviews.py
BASE, CARE = 0.3, 0.7
FORMS: dict[str, Callable[[Array], Array]] = {  # what alpha and beta multiply, (points, 2)
    "best of n": lambda d: np.stack([d, -(d**2)], axis=1),
    "RL": lambda d: np.stack([d, -d * np.log(d)], axis=1),
}


# --- one run --------------------------------------------------------------------------------------


def best_point(points: Points, settings: Settings) -> int:
    """Where gold is highest as a running mean; the middle of that mean's window."""
    gold, width = points["gold"].mean(axis=1), min(settings.smooth, len(points["gold"]))
    means = np.convolve(gold, np.ones(width) / width, mode="valid")
    return int(means.argmax()) + width // 2


def change_by_term(before: Mapping[str, Array], after: Mapping[str, Array]) -> dict[str, float]:
    """How much of the mean change of gold each term carries; terms are (P,), answers to P prompts.

    gold = content * care with content = .3 sent + .3 topic + .25 polite + .15 form and care = .3 + .7 qual.
    change(gold) = change(content) * mean(care) + mean(content) * change(care), each mean over the two
    moments, so the parts add up to the change exactly.
    """
    contents = [sum(w * now[name] for name, w in WEIGHTS.items()) for now in (before, after)]
    cares = [BASE + CARE * now["qual"] for now in (before, after)]
    care, content = (cares[0] + cares[1]) / 2, (contents[0] + contents[1]) / 2
    parts = {
        name: float((weight * (after[name] - before[name]) * care).mean())
        for name, weight in WEIGHTS.items()
    }
    return parts | {"qual": float((CARE * (after["qual"] - before["qual"]) * content).mean())}


def about_run(folder: Path, settings: Settings) -> dict[str, Any]:
    """A run's curve, its best and its end, what fell in between, and a few answers."""
    points = read_points(folder)
    best, last = best_point(points, settings), len(points["gold"]) - 1
    thin = {name: v if v.ndim == 1 else v.mean(axis=1) for name, v in points.items()}
    moments = [{name: points[name][i] for name in TERMS} for i in (best, last)]
    steps = [float(points["step"][i]) for i in sorted({0, best, last})]
    kept = [text for text in read_json(folder / "texts.json") if text["step"] in steps]
    prompts = list(dict.fromkeys(text["prompt"] for text in kept))[:TEXTS]
    return {
        "points": {name: v.tolist() for name, v in thin.items() if name in SHOWN}, "best": best,
        "fall": change_by_term(*moments),
        "texts": [text for text in kept if text["prompt"] in prompts],
    }  # fmt: skip


# --- the law --------------------------------------------------------------------------------------


def law(settings: Settings, root: Path, done: Collection[str]) -> dict[str, Any]:
    """Cells with their curves, and a fit per cell and kind, through all starts."""
    cells: list[dict[str, Any]] = []
    fits: list[dict[str, Any]] = []
    for size in settings.sizes:
        for labels in settings.labels:
            cell = list(law_rows(settings, root, done, size, labels))
            cells += cell
            for kind in ("grpo", "ppo", "best_of_n"):
                if fitted := fit_of_cell(cell, kind):
                    fits.append({"size": size, "labels": labels, "kind": kind} | fitted)
    return {"cells": cells, "fits": fits} if cells else {}


def law_rows(
    settings: Settings, root: Path, done: Collection[str], size: str, labels: int
) -> Iterable[dict[str, Any]]:
    """What is finished of one cell, a row per start and engine."""
    for start in settings.starts:
        folder, name = root / f"start-{start}", f"{size}-{labels}"
        for engine in ("grpo", "ppo"):
            if f"{folder.name}/law/{engine}-{name}" not in done:
                continue
            row = {"size": size, "labels": labels, "start": start, "engine": engine}
            row |= about_run(folder / "law" / f"{engine}-{name}", settings)
            if engine == "grpo" and f"{folder.name}/best_of_n/{name}" in done:
                found = torch.load(folder / "best_of_n" / name / "best_of_n.pt")
                bank = {"n": found["n"].tolist(), "kl": found["kl"].tolist()}
                means = {key: found[key].double().mean(1).tolist() for key in ("gold", "proxy")}
                row["best_of_n"] = bank | means  # over the bank's prompts
            yield row


def fit(form: str, kl: Array, gain: Array) -> dict[str, Any]:
    """Least squares of one form on points (kl, gain), (points,) each, that are farther than NEAREST.

    With the mean residual of the nearest, middle and farthest third: a form that fits has three zeros.
    """
    far = kl > NEAREST
    d, gain = np.sqrt(kl[far]), gain[far]
    columns = FORMS[form](d)
    (alpha, beta), *_ = np.linalg.lstsq(columns, gain, rcond=None)
    left = (gain - columns @ np.array([alpha, beta]))[np.argsort(d)]
    thirds = [float(third.mean()) for third in np.array_split(left, 3)]
    rmse = float(np.sqrt(np.mean(left**2)))
    return {"alpha": float(alpha), "beta": float(beta), "rmse": rmse, "residual_thirds": thirds}


def fit_of_cell(cells: Sequence[Mapping[str, Any]], kind: str) -> dict[str, Any] | None:
    """One fit through a cell's starts, of an engine or of best-of-n; None where a run hardly moved."""
    curves = [cell["points"] for cell in cells if cell["engine"] == kind]
    if kind == "best_of_n":
        curves = [cell[kind] for cell in cells if kind in cell]
    runs = [(np.array(curve["kl"]), np.array(curve["gold"])) for curve in curves]
    if not runs or min(int((kl > NEAREST).sum()) for kl, _ in runs) < FEWEST:
        return None
    kl, gain = (
        np.concatenate(each) for each in zip(*((k, g - g[0]) for k, g in runs), strict=True)
    )
    return {"starts": len(runs)} | fit("best of n" if kind == "best_of_n" else "RL", kl, gain)


# --- the cures ------------------------------------------------------------------------------------


def cure_folder(settings: Settings, root: Path, start: int, cure: str) -> Path:
    """Where a cure's run lies; the uncured run is the law's."""
    size, labels = settings.cure_cell
    if cure == "baseline":
        return root / f"start-{start}" / "law" / f"grpo-{size}-{labels}"
    return root / f"start-{start}" / "cures" / cure


def cures(settings: Settings, root: Path, done: Collection[str]) -> dict[str, Any]:
    """Every cure's curves, gold at equal KL beside the uncured run's, and the doctor's alarm."""
    runs: dict[str, dict[int, Points]] = {}
    rows = []
    for cure in CURES:
        for start in settings.cure_starts:
            folder = cure_folder(settings, root, start, cure)
            if folder.relative_to(root).as_posix() in done:
                runs.setdefault(cure, {})[start] = read_points(folder)
                rows.append({"cure": cure, "start": start} | about_run(folder, settings))
    if "baseline" not in runs:
        return {}
    table = [row for distance in CURE_DISTANCES for row in compared_at(runs, distance)]
    alarms = [
        {"start": start} | alarm(cure_folder(settings, root, start, "baseline"), settings)
        for start in runs["baseline"]
    ]
    return {"runs": rows, "table": table, "alarms": alarms}


def compared_at(runs: Mapping[str, Mapping[int, Points]], distance: float) -> list[dict[str, Any]]:
    """Gold of every cure where a run is first so far away, and its difference to the uncured run."""
    rows: list[dict[str, Any]] = []
    known: dict[int, Array] = {}  # the uncured run's; CURES begins with it
    for cure, by_start in runs.items():
        found = {
            s: at_distance(p["kl"].mean(axis=1), p["gold"], distance) for s, p in by_start.items()
        }
        reached = {start: gold for start, gold in found.items() if gold is not None}
        row = {"cure": cure, "kl": distance, "of": len(by_start), "reached": len(reached)}
        if reached:
            row |= mean_with_interval(np.stack(list(reached.values())))
        both = [start for start in reached if start in known]
        if cure == "baseline":
            known = reached
        elif len(both) >= FEWEST_STARTS:
            own, others = (np.stack([of[s] for s in both]) for of in (reached, known))
            row["difference"] = paired_difference(own, others)
        rows.append(row)
    told = {row["cure"]: row["difference"] for row in rows if "p" in row.get("difference", {})}
    for cure, p in holm({cure: difference["p"] for cure, difference in told.items()}).items():
        told[cure]["holm"] = p
    return rows


def alarm(folder: Path, settings: Settings) -> dict[str, Any]:
    """When the doctor first suspects the proxy, without gold, and what gold was there and later."""
    points, rows = read_points(folder), read_jsonl(folder / "metrics.jsonl")
    gold = points["gold"].mean(axis=1)
    row: dict[str, Any] = {
        "best": float(gold[best_point(points, settings)]),
        "end": float(gold[-1]),
    }
    first = next(
        (i for i in range(1, len(rows) + 1) if next(proxy_suspected(Run(rows[:i])), "")), None
    )
    if first is None:
        return row | {"step": None}
    step = rows[first - 1]["step"]
    at = min(int(np.searchsorted(points["step"], step)), len(gold) - 1)
    return row | {"step": step, "gold": float(gold[at]), "kl": float(points["kl"][at].mean())}
