"""Gold against the sampler's lag and precision, for each correction: docs/off_policy.md's numbers.

    python scripts/lag_study.py                    all that is missing; Ctrl-C and the same again goes on
    python scripts/lag_study.py --pages            tables, JSON and figure from what is there

Every run of a world takes the same optimizer steps on the same number of answers from the same start. A
job is one run: cell and seed. Its numbers are one file under runs/lag_study/jobs. Seeds are the outer
loop, so an unfinished study has whole seeds. The start of the reviews is the kept base and reward model
(notebooks/course/kept); that of the sums is trained once.
"""

from __future__ import annotations

from studies.bootstrap import SIGNIFICANT

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import copy
import itertools
import json
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import saved_models
import torch
from studies.enumerated import exact_rows
from studies.pages import between_marks, markdown
from studies.runner import run_stage

from gpt.checkpoint import save_gpt
from gpt.generate import SamplingParams
from harness.command_line import run_command
from harness.files import read_jsonl, read_object, write_json, write_text
from harness.flag_ranges import AtLeastOne
from harness.frozen_copy import frozen_copy
from harness.metric_log import MetricLog
from harness.paths import MODEL_FILE, REPOSITORY, RUNS
from harness.report.intervals import holm, t_interval
from reward_model.scalar_head import save_reward_model
from rl.async_grpo_engine import PRESETS, AsyncGRPOConfig, train
from rl.training.evaluation import evaluate
from rl.training.open_task import Task, open_task

WORLDS = ("reviews", "sums")
LAGS = (0, 1, 4, 16, 64)
FAR = (16, 64)  # where every correction of COMPARED runs
COMPARED = (
    "none", "token_tis", "sequence_tis", "sequence_mask", "decoupled", "dppo_tv", "sampler_clip",
)  # fmt: skip
EVERYWHERE = ("none",)  # corrections that run at every lag
BUDGET = dict(prompts_per_step=4, group_size=8, minibatches=2, updates_per_batch=1, stop_kl=None)
OF_WORLD = {
    "reviews": dict(steps=40, lr=3e-4, kl_coef=0.05, max_new_tokens=40),
    "sums": dict(steps=40, lr=1.5e-4, kl_coef=0.0, max_new_tokens=32),
}
SIDES = {
    "synchronous, one": ("--ranks", 1),
    "synchronous, two": ("--ranks", 2),
    "lag 2, two that share all work": ("--ranks", 2, "--lag", 2),
    "lag 2, two, one of which samples": ("--ranks", 2, "--lag", 2, "--samplers", 1),
}
AGAINST = "synchronous, two"
ROUNDS = 5
LOGGED = (
    "sampler_kl", "ess", "ess_responses", "weights_cut", "weight_max", "clip_high_fraction",
    "clip_low_fraction", "entropy", "grad_norm",
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One setting of one world."""

    world: str
    lag: int
    precision: str
    correction: str

    @property
    def name(self) -> str:
        return f"{self.world}-{self.lag}-{self.precision}-{self.correction}"


def cells() -> Iterator[Cell]:
    """The grid. At lag 0 in float32 all corrections that weigh are one run."""
    for world in WORLDS:
        for lag in LAGS:
            names = ("none",) if lag == 0 else COMPARED if lag in FAR else EVERYWHERE
            for name in names:
                yield Cell(world, lag, "float32", name)
        yield Cell(world, 0, "bfloat16", "none")
        for name in ("none", "token_tis"):
            yield Cell(world, 0, "int8", name)


@dataclass(frozen=True)
class StudyConfig:
    """Lag and precision of the sampler x correction x seed."""

    seeds: AtLeastOne = 6
    """Runs of each cell."""
    steps: int | None = None
    """Batches of each run, in the place of the study's own: a toy of it."""
    test_prompts: AtLeastOne = 256
    """Test prompts that each run answers at its end."""
    pages: bool = False
    """Start nothing: write the pages from what is there."""
    out: Path = RUNS / "lag_study"
    """Where starts and jobs are kept."""
    debug: bool = False
    """Show the traceback of an error."""


def config_of(cell: Cell, study: StudyConfig, seed: int) -> AsyncGRPOConfig:
    preset = PRESETS["tiny"] | (PRESETS["tiny/sums"] if cell.world == "sums" else {})
    flags: dict[str, Any] = dict(preset) | BUDGET | OF_WORLD[cell.world]
    flags |= dict(lag=cell.lag, sampler_precision=cell.precision, correction=cell.correction)
    start = study.out / "starts" / cell.world
    if cell.world == "reviews":
        flags["reward_model"] = (start / "reward_model",)
    config = AsyncGRPOConfig(
        data=cell.world, policy=start, seed=seed, eval_prompts=0, device="cpu", **flags
    )
    return replace(config, steps=study.steps) if study.steps else config


def make_starts(folder: Path) -> None:
    """The models that every run of a world starts from."""
    reviews = folder / "reviews"
    if not (reviews / MODEL_FILE).exists():
        (reviews / "reward_model").mkdir(parents=True, exist_ok=True)
        save_reward_model(reviews / "reward_model" / MODEL_FILE, *saved_models.reward_model())
        save_gpt(reviews / MODEL_FILE, *saved_models.base())
    flags = ("--data", "sums", "--preset", "tiny", "--ranks", 1, "--device", "cpu")
    run_stage(folder / "sums", "gpt.pretraining", flags, threads=1, resume=True)


def run_job(cell: Cell, study: StudyConfig, seed: int, task: Task) -> dict[str, Any]:
    """Train once and answer the test prompts; what is kept of it."""
    config = config_of(cell, study, seed)
    assert task.reward_fn is not None
    policy, log = copy.deepcopy(task.policy), MetricLog(config.steps)
    begin, reference = time.process_time(), frozen_copy(task.policy)
    collapsed = ""
    try:
        train(
            config, policy, task.tokenizer, task.reward_fn, task.prompts["train"], log,
            reference=reference,
        )  # fmt: skip
    except ValueError as error:  # Diverged
        collapsed = str(error)
    seconds = time.process_time() - begin
    found = evaluate(
        policy, task.tokenizer, task.prompts["test"][: study.test_prompts],
        SamplingParams(config.temperature, max_new_tokens=config.max_new_tokens), task.reward_fn,
        reference=reference, gold=task.gold,
    ).summary()  # fmt: skip
    half = log.rows[len(log.rows) // 2 :]
    means = {key: statistics.fmean(row[key] for row in half) for key in LOGGED if half}
    rewards = [row["reward"] for row in log.rows]
    return vars(cell) | dict(
        seed=seed, steps=config.steps, seconds=seconds, collapsed=collapsed, rewards=rewards,
        **found, logged=means,
    )  # fmt: skip


def run_all(study: StudyConfig) -> None:
    torch.set_num_threads(1)
    make_starts(study.out / "starts")
    tasks = {
        world: open_task(
            config_of(Cell(world, 0, "float32", "none"), study, 0), torch.device("cpu")
        )
        for world in WORLDS
    }
    for seed in range(study.seeds):
        for cell in cells():
            path = study.out / "jobs" / f"{cell.name}-{seed}.json"
            if path.exists():
                continue
            row = run_job(cell, study, seed, tasks[cell.world])
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, row)
            print(f"{path.stem}: gold {row['gold']:.3f}, {row['seconds']:.0f} s", flush=True)


# What it says -------------------------------------------------------------------------------------


def summarised(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row per cell: gold with its interval, what was logged, the paired test against no correction."""
    by_cell: dict[tuple[Any, ...], dict[int, Mapping[str, Any]]] = {}
    for row in rows:
        key = (row["world"], row["lag"], row["precision"], row["correction"])
        by_cell.setdefault(key, {})[row["seed"]] = row
    table: list[dict[str, Any]] = []
    tests: dict[int, float] = {}
    for (world, lag, precision, correction), runs in sorted(by_cell.items()):
        gold = [runs[seed]["gold"] for seed in sorted(runs)]
        alone = dict.fromkeys(("mean", "low", "high"), gold[0])  # one run has no interval
        logged = {
            key: statistics.fmean(run["logged"][key] for run in runs.values()) for key in LOGGED
        }
        line: dict[str, Any] = dict(
            world=world, lag=lag, precision=precision, correction=correction, seeds=sorted(runs),
            gold=t_interval(gold) if len(gold) > 1 else alone,
            kl=statistics.fmean(run["kl"] for run in runs.values()),
            collapsed=sum(bool(run["collapsed"]) for run in runs.values()), logged=logged,
        )  # fmt: skip
        plain = by_cell.get((world, lag, precision, "none"), {})
        both = sorted(plain.keys() & runs.keys())
        if correction != "none" and len(both) >= 3:
            gaps = [runs[seed]["gold"] - plain[seed]["gold"] for seed in both]
            line["against_none"] = t_interval(gaps) | {"seeds": both}
            tests[len(table)] = t_interval(gaps)["p"]
        table.append(line)
    for place, p in holm({str(place): p for place, p in tests.items()}).items():
        table[int(place)]["against_none"] |= {"p": tests[int(place)], "holm": p}
    return table


def spread(interval: Mapping[str, float]) -> str:
    """0.512 ± 0.020, the half width of the 95% interval; of one run its number alone."""
    if interval["high"] == interval["low"]:
        return f"{interval['mean']:.3f}"
    return f"{interval['mean']:.3f} ± {(interval['high'] - interval['low']) / 2:.3f}"


def p_value(p: float) -> str:
    """With two digits; never 0, which no test can show."""
    return f"p {p:.2f}" if p >= 0.005 else "p < 0.005"


def tables(table: Sequence[Mapping[str, Any]]) -> list[str]:
    head = ("lag", "correction", "gold", "against none", "KL(mu, pi)", "sample", "cut")
    text = []
    for world in dict.fromkeys(row["world"] for row in table):
        rows = []
        for row in table:
            if row["world"] != world:
                continue
            test, logged = row.get("against_none"), row["logged"]
            gap = "" if test is None else f"{test['mean']:+.3f} ({p_value(test['holm'])})"
            rounded = "" if row["precision"] == "float32" else f", {row['precision']}"
            rows.append([
                f"{row['lag']}{rounded}", row["correction"], spread(row["gold"]), gap,
                f"{logged['sampler_kl']:.2g}", f"{logged['ess_responses']:.2f}",
                f"{logged['weights_cut']:.1%}",
            ])  # fmt: skip
        text += [f"### {world.capitalize()}", "", *markdown(head, rows), ""]
    return text[:-1]


def size(table: Sequence[Mapping[str, Any]], minutes: float) -> str:
    """The runs behind the tables, whose rows may differ in seeds while a study goes on."""
    seeds = sorted({len(row["seeds"]) for row in table})
    a_row = " or ".join(map(str, seeds))
    runs = sum(len(row["seeds"]) for row in table)
    return f"{runs} runs, {a_row} seeds a row, {minutes:g} minutes of one core."


def plot(table: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Gold against lag, a line for each correction that runs at every lag and points for the others."""
    import matplotlib.pyplot as plt

    worlds = list(dict.fromkeys(row["world"] for row in table))
    figure, axes = plt.subplots(1, len(worlds), figsize=(1 + 5 * len(worlds), 4), squeeze=False)
    for world, axis in zip(worlds, axes[0], strict=True):
        for number, name in enumerate(COMPARED):
            rows = [
                row for row in table
                if row["world"] == world and row["precision"] == "float32"
                and (row["correction"] == name or row["lag"] == 0)
            ]  # fmt: skip
            rows = [row for row in rows if name in EVERYWHERE or row["lag"] in FAR]
            if not rows:
                continue
            places = [LAGS.index(row["lag"]) + 0.06 * number for row in rows]
            means = [row["gold"]["mean"] for row in rows]
            ends = [
                [row["gold"]["mean"] - row["gold"]["low"] for row in rows],
                [row["gold"]["high"] - row["gold"]["mean"] for row in rows],
            ]
            axis.errorbar(
                places, means, yerr=ends, label=name, marker="o", markersize=4, capsize=2,
                linestyle="-" if name in EVERYWHERE else "none", linewidth=1,
            )  # fmt: skip
        axis.set_xticks(range(len(LAGS)), [str(lag) for lag in LAGS])
        axis.set(title=world, xlabel="lag (optimizer steps)", ylabel="gold")
    axes[0, 0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def exact_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The enumerated cosines and variances: a row of each correction. The biases are in the JSON."""
    amounts = {row["noise"]: f"{row['kl']:.2g}" for row in rows}
    titles = [f"{what} at {kl}" for what in ("cosine", "variance") for kl in amounts.values()]
    lines = []
    for name in dict.fromkeys(row["correction"] for row in rows):
        of = {row["noise"]: row for row in rows if row["correction"] == name}
        cosines = [f"{of[amount]['cosine']:.3f}" for amount in amounts]
        lines.append([name, *cosines, *(f"{of[amount]['variance']:,.0f}" for amount in amounts)])
    return markdown(["correction", *titles], lines)


def throughput(study: StudyConfig) -> None:
    """Seconds of the same steps by each of SIDES in turn, ROUNDS times over."""
    for number, (place, flags) in itertools.product(range(ROUNDS), enumerate(SIDES.values())):
        folder = study.out / "throughput" / f"{number}-{place}"
        if not (folder / "side.json").exists():
            begin = os.getloadavg()[0]
            given = ("--data", "sums", "--policy", study.out / "starts" / "sums", "--steps", 6)
            size = ("--prompts-per-step", BUDGET["prompts_per_step"], *flags)
            more = ("--eval-prompts", 0, "--test-prompts", 0, "--device", "cpu", *size)
            run_stage(folder, "rl.async_grpo_engine", (*given, *more), threads=1)
            write_json(folder / "side.json", {"load": begin})


def sides_of(study: StudyConfig) -> dict[str, Any]:
    """Medians of the rounds that have every side: seconds a step, and what they are of AGAINST's."""
    rounds, loads = [], []
    for number in range(ROUNDS):
        folders = [study.out / "throughput" / f"{number}-{place}" for place in range(len(SIDES))]
        if not all((folder / "side.json").exists() for folder in folders):
            break
        row = {}
        for name, folder in zip(SIDES, folders, strict=True):
            steps = [  # without the first two, in which memory is taken and a pipeline is empty
                sum(value for key, value in row.items() if "seconds/" in key)
                for row in read_jsonl(folder / "metrics.jsonl")[2:]
            ]
            row[name] = statistics.median(steps), float(read_object(folder / "seconds.json")["cpu"])
            loads.append(float(read_object(folder / "side.json")["load"]))
        rounds.append(row)
    middle = statistics.median
    sides = {
        name: {
            "seconds": middle(row[name][0] for row in rounds),
            "share": middle(row[name][0] / row[AGAINST][0] for row in rounds),
            "cpu": middle(row[name][1] for row in rounds),
        }
        for name in (SIDES if rounds else ())
    }
    return {"rounds": len(rounds), "load": sorted(loads), "sides": sides}


def sides_table(found: Mapping[str, Any]) -> list[str]:
    if not found["rounds"]:
        return ["Not measured yet: `python scripts/lag_study.py` does it at its end."]
    head = (
        "engine, ranks", "seconds a step", f"of {AGAINST}", "CPU seconds of the whole command",
    )  # fmt: skip
    rows = [
        [name, f"{row['seconds']:.2f}", f"{row['share']:.2f}", f"{row['cpu']:.0f}"]
        for name, row in found["sides"].items()
    ]
    load = found["load"]
    other = f"Other work ran beside it: load averages of {load[0]:.1f} to {load[-1]:.1f}."
    return [*markdown(head, rows), "", f"Medians of {found['rounds']} rounds. {other}"]


def write_pages(study: StudyConfig, docs: Path = REPOSITORY / "docs") -> None:
    rows = [read_object(path) for path in sorted((study.out / "jobs").glob("*.json"))]
    table = summarised(rows)
    about = {
        "budget": BUDGET, "of_world": OF_WORLD, "runs": len(rows),
        "cpu_minutes": round(sum(row["seconds"] for row in rows) / 60, 1),
        "significant": [
            row["world"] + " " + str(row["lag"]) + " " + row["precision"] + " " + row["correction"]
            for row in table if row.get("against_none", {}).get("holm", 1) < SIGNIFICANT
        ],
    }  # fmt: skip
    sides, exact = sides_of(study), list(exact_rows(40))
    about |= {"exact": exact, "throughput": sides}
    write_json(docs / "off_policy.json", about | {"cells": table})
    plot(table, docs / "off_policy.png")
    page = docs / "off_policy.md"
    parts = {
        "lag study": tables(table), "exact": exact_table(exact),
        "size": [size(table, about["cpu_minutes"])],
        "throughput": sides_table(sides),
    }  # fmt: skip
    text = page.read_text("utf-8")
    for name, lines in parts.items():
        text = between_marks(text, name, lines)
    write_text(page, text)


def main(study: StudyConfig) -> None:
    if not study.pages:
        run_all(study)
        throughput(study)
    write_pages(study)
    print(json.dumps({"jobs": len(list((study.out / "jobs").glob("*.json")))}))


if __name__ == "__main__":
    run_command(main, StudyConfig)
