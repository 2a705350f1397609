"""Does a policy learn to call when it pays? Seeds of the calculator's world, from base to GRPO and PPO.

    python scripts/tools_study.py               every job that is not done yet, about 40 minutes on one core
    python scripts/tools_study.py --seeds 1     one seed
    python scripts/tools_study.py --tables      docs/tools.json, docs/tools.png, the table of docs/tools.md

A job is a file in --out; a finished one is never run again. Per seed: a base from random weights; GRPO
and PPO with the calculator; both without it; and GRPO on prompts in which the call and its answer stand
already, which is a policy that always calls. A call costs 0.1. Measured on test problems, 4 samples each.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from studies.pages import between_marks, markdown
from studies.runner import once

from data import calculator, sums
from data.records import PromptRecord
from gpt import pretraining
from gpt.checkpoint import load_gpt, save_gpt
from gpt.corpus import WorldCorpus
from gpt.generate import SamplingParams
from gpt.model import GPT, GPTConfig
from gpt.tokenizer import Tokenizer, load_tokenizer
from harness.command_line import run_command
from harness.files import write_json, write_text
from harness.flag_ranges import AtLeastOne
from harness.metric_log import MetricLog
from harness.seeds import make_generator
from rl import grpo_engine, ppo_engine
from rl.batches.rollout import sample_rollout
from rl.batches.tools import open_tools
from rl.rewards.sources import CallCost
from rl.rewards.verifiable import VerifiableReward

ROOT = Path(__file__).resolve().parents[1]
COST = 0.1
NEW_TOKENS = 28
RUNS = ("grpo", "ppo", "grpo-none", "ppo-none", "grpo-always")
FIGURE = ROOT / "docs" / "tools.png"
NUMBERS = ROOT / "docs" / "tools.json"
PAGE = ROOT / "docs" / "tools.md"


@dataclass(frozen=True)
class StudyConfig:
    """The study of calls."""

    out: Path = ROOT / "runs" / "tools-study"
    """Folder with one file for each finished job."""
    seeds: AtLeastOne = 6
    """Seeds, of base and training together."""
    base_steps: AtLeastOne = 900
    """Optimizer steps of a base."""
    steps: AtLeastOne = 80
    """Batches of a training, 128 responses each."""
    tables: bool = False
    """Only write the page's numbers and its figure from the jobs that are done."""


# Jobs ---------------------------------------------------------------------------------------------


def make_base(config: StudyConfig, seed: int, folder: Path) -> dict[str, Any]:
    """Pre-train a base and measure it with the calculator, without, and with the call already made."""
    tokenizer = load_tokenizer("glassbox")
    shape = GPTConfig(tokenizer.n_vocab, 48, n_layer=2, n_head=4, n_embd=96)
    model = GPT(shape).initialize(make_generator(seed, "weights"))
    settings = pretraining.PretrainingConfig(
        data="calculator", steps=config.base_steps, batch_size=64, lr=3e-3, seed=seed,
        eval_every=10**6,
    )  # fmt: skip
    pretraining.train(settings, model, WorldCorpus("calculator", tokenizer, 64, seed), MetricLog(0))
    folder.mkdir(parents=True, exist_ok=True)
    save_gpt(folder / "model.safetensors", model, tokenizer)
    return {kind: measured(model, tokenizer, kind) for kind in ("tool", "none", "always")}


def train_run(config: StudyConfig, seed: int, name: str, base: Path) -> dict[str, Any]:
    """One training from a seed's base; its curve on validation problems, and the test at the end."""
    policy, tokenizer = load_gpt(base, torch.device("cpu"))
    engine, _, kind = name.partition("-")
    kind = kind or "tool"
    open_environment(policy, kind)
    common: dict[str, Any] = dict(
        data="calculator", steps=config.steps, seed=seed, lr=2e-4, kl_coef=0.0, stop_kl=None, warmup=5,
        max_new_tokens=NEW_TOKENS, minibatches=2, micro_batch_size=64, eval_every=5, max_calls=3,
    )  # fmt: skip
    reward = CallCost(VerifiableReward(sums.exact_match, "exact match"), COST)
    prompts = asked(calculator.prompts("train"), kind)
    curve = [{"step": 0} | measured(policy, tokenizer, kind, "validation")]

    def validate(policy: GPT, reference: GPT | None, step: int) -> dict[str, float]:
        curve.append({"step": step} | measured(policy, tokenizer, kind, "validation"))
        return {}

    log = MetricLog(0)
    module, batch = {"grpo": (grpo_engine, (16, 8)), "ppo": (ppo_engine, (128, 1))}[engine]
    settings = module.ENGINE.config(prompts_per_step=batch[0], group_size=batch[1], **common)
    module.train(settings, policy, tokenizer, reward, prompts, log, validate=validate)
    return {"curve": curve, "test": measured(policy, tokenizer, kind)}


def open_environment(policy: GPT, kind: str) -> None:
    """The calculator, where it is asked while the policy writes."""
    policy.tools = open_tools("calculator" if kind == "tool" else "none", 3)


def asked(records: Sequence[PromptRecord], kind: str) -> list[PromptRecord]:
    """The prompts; of a policy that always calls, with the call and its answer behind them."""
    if kind != "always":
        return list(records)
    return [replace(r, prompt=f"{r.prompt}[{r.meta['call']}]{r.answer}") for r in records]


def measured(policy: GPT, tokenizer: Tokenizer, kind: str, split: str = "test") -> dict[str, float]:
    """Accuracy, calls per problem and reward, of easy and hard problems and of both."""
    open_environment(policy, kind)
    repeats = 4 if split == "test" else 1
    numbers: dict[str, float] = {}
    for name, easy in (("easy", True), ("hard", False)):
        problems = [r for r in calculator.prompts(split) if calculator.is_easy(r) is easy]
        rollout = sample_rollout(
            policy, tokenizer, asked(problems, kind), SamplingParams(max_new_tokens=NEW_TOKENS), repeats,
            make_generator(0, f"{split} {name}"),
        )  # fmt: skip
        rows = zip(rollout.records, rollout.responses, rollout.has_eos.tolist(), strict=True)
        right = sum(sums.exact_match(*row) for row in rows) / len(rollout)
        calls = float(rollout.calls.float().mean()) if kind != "always" else 1.0
        numbers |= {f"accuracy/{name}": right, f"calls/{name}": calls}
    for what in ("accuracy", "calls"):
        numbers[what] = (numbers[f"{what}/easy"] + numbers[f"{what}/hard"]) / 2
    numbers["reward"] = numbers["accuracy"] - COST * (0 if kind == "none" else numbers["calls"])
    return numbers


def timed(job: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    begin = time.perf_counter()
    result = job()
    print(json.dumps(result.get("test") or result["tool"]), flush=True)
    return result | {"seconds": round(time.perf_counter() - begin, 1)}


def main(config: StudyConfig) -> None:
    torch.set_num_threads(1)
    config.out.mkdir(parents=True, exist_ok=True)
    for seed in range(0 if config.tables else config.seeds):
        base = config.out / f"base-{seed}"
        once(base.with_suffix(".json"), partial(timed, partial(make_base, config, seed, base)))
        for name in RUNS:
            job = partial(train_run, config, seed, name, base)
            once(config.out / f"{name}-{seed}.json", partial(timed, job))
    if config.tables:
        write_page(config.out)


# The page -----------------------------------------------------------------------------------------


def summary(rows: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    """Mean, least and most over the seeds, of each number."""
    return {
        key: [round(f([row[key] for row in rows]), 4) for f in (statistics.mean, min, max)]
        for key in rows[0]
    }


def write_page(out: Path) -> None:
    """docs/tools.json, the figure, and the table between the page's marks."""
    files = {path.stem: json.loads(path.read_text()) for path in sorted(out.glob("*-*.json"))}
    whole = [  # the seeds of which everything is done, so that all rows are of the same ones
        seed
        for seed in sorted(name.removeprefix("base-") for name in files if name.startswith("base-"))
        if all(f"{run}-{seed}" in files for run in RUNS)
    ]
    files = {name: data for name, data in files.items() if name.rpartition("-")[2] in whole}
    results: dict[str, Any] = {"cost": COST, "policies": {}, "curves": {}}
    bases = [data for name, data in files.items() if name.startswith("base-")]
    for kind in ("tool", "none", "always"):
        results["policies"][f"base, {kind}"] = summary([base[kind] for base in bases])
    for run in RUNS:
        rows = [data for name, data in files.items() if name.rpartition("-")[0] == run]
        if rows:
            results["policies"][run] = summary([row["test"] for row in rows])
            results["policies"][run]["seeds"] = len(rows)
            results["curves"][run] = [row["curve"] for row in rows]
    results["seeds"] = len(bases)
    results["minutes"] = round(sum(data["seconds"] for data in files.values()) / 60)
    write_json(NUMBERS, results)
    draw(results["curves"])
    page = PAGE.read_text(encoding="utf-8")
    write_text(PAGE, between_marks(page, "numbers", numbers_text(results)))


NAMES = {
    "base, none": "base, no tool", "base, always": "base, always calls", "base, tool": "base",
    "grpo-none": "GRPO, no tool", "ppo-none": "PPO, no tool",
    "grpo-always": "GRPO, always calls", "grpo": "**GRPO**", "ppo": "**PPO**",
}  # fmt: skip


def numbers_text(results: dict[str, Any]) -> list[str]:
    """The table, and what it comes to, in words; from docs/tools.json's numbers alone."""
    ends = {run: [rows[-1] for rows in results["curves"].get(run, [])] for run in ("grpo", "ppo")}
    calling = {
        run: sum(row["calls/hard"] > 0.5 > 5 * row["calls/easy"] for row in rows)
        for run, rows in ends.items()
    }
    words = [
        f"{NAMES[run].strip('*')} ends with calls for most products, and hardly any for sums, in "
        f"{calling[run]} of {len(rows)} seeds."
        for run, rows in ends.items()
    ]
    (always, _, _), (ppo, least, most), (grpo, _, _) = (
        results["policies"][run]["reward"] for run in ("grpo-always", "ppo", "grpo")
    )
    words.append(
        f"The policy that always calls has a mean reward of {always:.2f} and nothing to learn but reading; "
        f"PPO has {ppo:.2f} and GRPO {grpo:.2f}. The seeds are few and far apart (PPO from {least:.2f} to "
        f"{most:.2f}): this ranks nothing."
    )
    return [*table(results), "", " ".join(words)]


def table(results: dict[str, Any]) -> list[str]:
    keys = ("reward", "accuracy/easy", "accuracy/hard", "calls/easy", "calls/hard")
    lines = []
    for run, name in NAMES.items():
        if run not in results["policies"]:
            continue
        row = results["policies"][run]
        cells = ["{:.2f} ({:.2f}\u2013{:.2f})".format(*row[key]) for key in keys]
        lines.append([name, str(row.get("seeds", results["seeds"])), *cells])
    return markdown(["policy", "seeds", *(key.replace("/", ", ") for key in keys)], lines)


def draw(curves: dict[str, Any]) -> None:
    """Reward and calls on validation problems while GRPO and PPO learn, each seed a line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.5), layout="constrained")
    axes = figure.subplots(1, 3)
    colours = {
        "grpo": "#0072b2", "ppo": "#d55e00", "grpo-none": "#777777", "grpo-always": "#009e73",
    }  # fmt: skip
    for run, colour in colours.items():
        for seed, rows in enumerate(curves.get(run, [])):
            label = NAMES[run].strip("*") if seed == 0 else None
            for axis, key in zip(axes, ("reward", "calls/easy", "calls/hard"), strict=True):
                if key == "reward" or run in ("grpo", "ppo"):
                    steps = [row["step"] for row in rows]
                    values = [row[key] for row in rows]
                    axis.plot(steps, values, color=colour, lw=1, label=label)
    titles = ("reward", "calls, easy problems", "calls, hard problems")
    for axis, title in zip(axes, titles, strict=True):
        axis.set(title=title, xlabel="batch")
    shown = axes[0].get_legend_handles_labels()
    figure.legend(*shown, loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(FIGURE, dpi=110)


if __name__ == "__main__":
    run_command(main, StudyConfig)
