"""Finished jobs -> numbers: what docs/overoptimisation.json holds. Nothing here trains or draws."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from studies.bootstrap import Array, at_cost, at_distance, mean_with_interval, paired_difference
from studies.pages import rounded
from studies.runner import DONE, Job, is_done

from harness.files import read_jsonl
from harness.report.intervals import holm, prediction_interval, t_tails
from overopt.cells import BUDGET_DISTANCES, distance_view
from overopt.fits import NEAREST, pooled_fit, slope
from overopt.plan import CURES, PARTS, plan
from overopt.repeats import repeated
from overopt.runs import TERMS, Points, best_of_tuning, read_points, sampled_tokens
from overopt.settings import ENGINES, TUNING, Settings
from overopt.terms import change_by_term
from rl.training.run_rules import Run, proxy_suspected

CURE_DISTANCES = (2.0, 4.0, 8.0, 16.0)
SHOWN = ("step", "kl", "gold", "proxy", "length", "eos", *TERMS)
DRAWN = ("step", "kl", "gold", "length")  # of the many runs on one budget
FEWEST_STARTS = 2  # of a difference: within one start its interval would be over prompts alone
FEWEST = 4  # measurements beyond the nearest distance, in every run of a fit
TEXTS = 3  # prompts whose answers are kept, of the steps that are told about


def collect(part: str, settings: Settings, root: Path) -> dict[str, Any]:
    """The numbers of one part; {} where none of its runs is finished."""
    found = {"law": law, "cures": cures, "budget": budget}[part](settings, root)
    return rounded(found) if found else {}


def progress(settings: Settings, root: Path, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """How many jobs of each part are done, and their CPU hours.

    What is recorded counts although its folders are gone; then only jobs of other engines are new.
    """
    jobs = plan(settings).values()
    rows = {}
    for part in PARTS:
        own = [job for job in jobs if part in job.parts]
        done = [job for job in own if is_done(root, job.name)]
        before = recorded.get("progress", {}).get(part, {"done": 0, "cpu_hours": 0.0})
        if before["done"] > len(done):
            kept = [recorded.get(group, {}) for group in ("budget", "later")]
            known = set().union(*(engines_of(w) for group in kept for w in group.values()))
            new = set(ENGINES) - known if part == "budget" else set()
            done = [job for job in done if job.stage == "run" and engine_of(job) in new]
        else:
            before = {"done": 0, "cpu_hours": 0.0}
        spent = [json.loads((root / job.name / DONE).read_text("utf-8"))["cpu"] for job in done]
        rows[part] = {
            "jobs": len(own), "done": before["done"] + len(done),
            "cpu_hours": before["cpu_hours"] + sum(spent) / 3600,
        }  # fmt: skip
    return rows


def engine_of(job: Job) -> str:
    """Of a run of one budget; of any other job the part of its name that can be no engine's."""
    return job.name.rsplit("/", 1)[1].rsplit("-", 1)[0]


def thin(points: Points, names: Sequence[str] = SHOWN) -> dict[str, list[float]]:
    """Means over the prompts, by name."""
    return {
        name: [float(x) for x in (v if v.ndim == 1 else v.mean(axis=1))]
        for name, v in points.items()
        if name in names
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
    found: dict[str, Any] = {"cells": cells, "fits": fits, "trends": trends(cells, fits)}
    return found | {"repeats": law_repeats(settings, root, cells)}


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


def law_repeats(
    settings: Settings, root: Path, cells: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The best gold of a run with a new seed, beside what the starts of its cell make expected."""
    found = []
    for run in settings.repeated:
        best = [
            cell["points"]["gold"][cell["best"]] for cell in cells
            if run.endswith(f"/law/{cell['engine']}-{cell['size']}-{cell['labels']}")
        ]  # fmt: skip
        if len(best) > 1:
            expected = {"best gold": prediction_interval(best)}
            found.append(repeated(root, run, expected, lambda new: best_gold(new, settings)))
    return [row for row in found if row]


def best_gold(folder: Path, settings: Settings) -> dict[str, float]:
    """As a law's row shows it."""
    points = read_points(folder)
    return {"best gold": float(points["gold"][best_point(points, settings)].mean())}


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
    return with_holm(rows, p_values, "cure")


def with_holm(
    rows: list[dict[str, Any]], p_values: Mapping[str, float | None], key: str
) -> list[dict[str, Any]]:
    """The corrected p beside every difference."""
    tested = {name: p for name, p in p_values.items() if p is not None}
    for name, p in holm(tested).items():
        for row in rows:
            if row[key] == name:
                row["difference"]["holm"] = p
    return rows


def gold_at(points: Points, distance: float) -> Array | None:
    """Gold per prompt where the run first is so many nats away; None where it never is."""
    return at_distance(points["kl"].mean(axis=1), points["gold"], distance)


def alarm(folder: Path, settings: Settings) -> dict[str, Any]:
    """When the doctor first suspects the proxy, without gold, and what gold was there and later."""
    points, rows = read_points(folder), read_jsonl(folder / "metrics.jsonl")
    gold, steps = points["gold"].mean(axis=1), points["step"]
    first = next((i for i in range(1, len(rows) + 1) if proxy_suspected(Run(rows[:i]))), None)
    row = {"best": float(gold[best_point(points, settings)]), "end": float(gold[-1])}
    if first is None:
        return row | {"step": None}
    at = int(np.searchsorted(steps, rows[first - 1]["step"]))
    at = min(at, len(gold) - 1)
    return row | {
        "step": rows[first - 1]["step"], "gold": float(gold[at]),
        "kl": float(points["kl"][at].mean()), "says": proxy_suspected(Run(rows[:first])),
    }  # fmt: skip


# --- part 3 ---------------------------------------------------------------------------------------


def budget(settings: Settings, root: Path) -> dict[str, Any]:
    """Per world: every engine's curves, and its gold at equal tokens, CPU time and KL."""
    worlds = {}
    for world in ("reviews", "sums"):
        runs, tuned = budget_runs(settings, root, world), tuned_flags(settings, root, world)
        if tuned == {}:  # SAPO's own settings were the best: the same runs a second time
            runs.pop("sapo_tuned", None)
        if "grpo" in runs:
            found = compared_budgets(runs, settings) | {"tuned": tuned}
            worlds[world] = found | {"repeats": budget_repeats(settings, root, world, found)}
    return worlds


def is_later(found: Mapping[str, Any], recorded: Mapping[str, Any]) -> bool:
    """Whether recorded engines are missing: these runs are of later ones, which stand for themselves."""
    return any(not engines_of(runs) <= engines_of(found.get(w)) for w, runs in recorded.items())


def engines_of(world: Mapping[str, Any] | None) -> set[str]:
    return {row["engine"] for row in world["runs"]} if world else set()


def budget_repeats(
    settings: Settings, root: Path, world: str, found: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Every view of a run with a new seed, beside the interval that its engine's row gives."""
    views, rows = views_of(found["tokens"], found["seconds"]), []

    def values(folder: Path) -> dict[str, float | None]:
        points = budget_points(folder)
        by_view = {view: at(points) for view, at in views.items()}
        return {view: None if v is None else float(np.mean(v)) for view, v in by_view.items()}

    for run in settings.repeated:
        if f"/budget/{world}/" in run:
            engine = run.rsplit("/", 1)[1].rsplit("-", 1)[0]
            own = [row for row in found["table"] if row["engine"] == engine]
            expected = {row["view"]: row["prediction"] for row in own if "prediction" in row}
            rows.append(repeated(root, run, expected, values))
    return [row for row in rows if row]


def tuned_flags(settings: Settings, root: Path, world: str) -> dict[str, Any] | None:
    """What the tries of SAPO chose; None before all of them are there."""
    tries = f"start-{settings.budget_starts[0]}/budget/{world}/sapo_tries"
    if all(is_done(root, f"{tries}/try-{number}") for number in range(len(TUNING))):
        return best_of_tuning(root / tries)
    return None


def budget_runs(
    settings: Settings, root: Path, world: str
) -> dict[str, dict[tuple[int, int], Points]]:
    """Finished runs by engine and (start, seed), with the tokens sampled at every measurement."""
    runs: dict[str, dict[tuple[int, int], Points]] = {}
    for name in ENGINES:
        for start in settings.budget_starts:
            for seed in settings.budget_seeds:
                folder = root / f"start-{start}" / "budget" / world / f"{name}-{seed}"
                if is_done(folder, ""):
                    runs.setdefault(name, {})[start, seed] = budget_points(folder)
    return runs


def budget_points(folder: Path) -> Points:
    """A run's measurements, with the tokens sampled until each."""
    points, tokens = read_points(folder), [0.0, *sampled_tokens(folder)]
    return points | {"tokens": np.array([tokens[int(step)] for step in points["step"]])}


def compared_budgets(
    runs: Mapping[str, Mapping[tuple[int, int], Points]], settings: Settings
) -> dict[str, Any]:
    """One table of a world: each view of equality, each engine, beside GRPO."""
    grpo = list(runs["grpo"].values())
    length = float(np.mean([points["length"][0].mean() for points in grpo]))
    tokens = settings.budget_responses * length
    seconds = float(np.mean([np.interp(tokens, p["tokens"], p["seconds"]) for p in grpo]))
    views = views_of(tokens, seconds)
    table = [row for view, at in views.items() for row in compared_by(runs, view, at, settings)]
    rows = [
        {"engine": name, "start": start, "seed": seed, "points": thin(points, DRAWN)}
        for name, by_run in runs.items()
        for (start, seed), points in by_run.items()
    ]
    return {"tokens": tokens, "seconds": seconds, "table": table, "runs": rows}


def views_of(tokens: float, seconds: float) -> dict[str, Callable[[Points], Array | None]]:
    """What is compared of a run, per prompt: gold at equal tokens, seconds and KL; KL at equal tokens."""
    by_cost: dict[str, Callable[[Points], Array | None]] = {
        "tokens": lambda points: at_cost(points["tokens"], points["gold"], tokens),
        "seconds": lambda points: at_cost(points["seconds"], points["gold"], seconds),
        "kl_at_tokens": lambda points: at_cost(points["tokens"], points["kl"], tokens),
    }
    return by_cost | {
        distance_view(distance): lambda points, distance=distance: gold_at(points, distance)
        for distance in BUDGET_DISTANCES
    }


def compared_by(
    runs: Mapping[str, Mapping[tuple[int, int], Points]], view: str, at: Any, settings: Settings
) -> list[dict[str, Any]]:
    """Every engine under one view: mean, interval, prediction interval, difference to GRPO."""
    grids = {name: grid(by_run, at, settings) for name, by_run in runs.items()}
    rows: list[dict[str, Any]] = []
    p_values: dict[str, float | None] = {}
    for name, values in grids.items():
        row: dict[str, Any] = {"engine": name, "view": view, "of": len(runs[name])}
        means = values[np.isfinite(values).all(axis=2)].mean(axis=1)
        row["reached"] = len(means)
        if len(means):
            row |= mean_with_interval(values)
        if len(means) > 1:
            row["prediction"] = prediction_interval(means.tolist())
        in_both = np.all(np.isfinite(values - grids["grpo"]), axis=2)  # (starts, seeds)
        if name != "grpo" and np.sum(np.any(in_both, axis=1)) >= FEWEST_STARTS:
            row["difference"] = paired_difference(values, grids["grpo"])
            p_values[name] = row["difference"].get("p")
        rows.append(row)
    return with_holm(rows, p_values, "engine")


def grid(by_run: Mapping[tuple[int, int], Points], at: Any, settings: Settings) -> Array:
    """(starts, seeds, prompts), NaN where a run is not there or never got so far."""
    shape = len(settings.budget_starts), len(settings.budget_seeds)
    prompts = next(iter(by_run.values()))["gold"].shape[1]
    values = np.full((*shape, prompts), np.nan)
    for (start, seed), points in by_run.items():
        found = at(points)
        if found is not None:
            place = settings.budget_starts.index(start), settings.budget_seeds.index(seed)
            values[place] = found
    return values
