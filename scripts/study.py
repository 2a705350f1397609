"""Every engine from one shared start, over several seeds, beside what needs no RL.

    python scripts/study.py                                  every engine, both worlds, seeds 0, 1, 2
    python scripts/study.py --data reviews --engines ppo rloo --seeds 0
    python scripts/study.py --data sums --jobs 2             two runs at a time, one thread each

The start (a base model; for reviews also a reward model and a fine-tuned policy) is trained once by
the `study` preset, so the seeds vary reinforcement learning alone. Each run is the engine's own
script with its default flags. What is finished is kept: an interrupted study goes on where it was.
Writes runs/study/DATA/: one folder per run, study.json, study.md and study.png. Test prompts are
answered once, after all training; nothing is chosen by them.
"""

from __future__ import annotations

import data.threads  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from data import reviews, sums
from gpt.common import (
    MODEL_FILE,
    RUNS,
    UserError,
    display_path,
    load_gpt,
    pick_device,
    read_jsonl,
    run_script,
    write_json,
)
from gpt.generate import SamplingParams
from gpt.model import GPT
from gpt.tokenizer import Tokenizer
from reward_model.model import load_reward_model
from rl.evaluation import best_of_n, evaluate, running_mean, win_rate
from rl.rewards import RewardFn, RewardModelReward
from rl.setup import world_rule

ROOT = Path(__file__).resolve().parents[1]
ENGINES: dict[str, tuple[str, ...]] = {  # name: module and its flags
    "grpo": ("rl.grpo_engine",),
    "ppo": ("rl.ppo_engine",),
    "rloo": ("rl.rloo_engine",),
    "reinforce_pp": ("rl.reinforce_pp_engine",),
    "reinforce_pp_baseline": (
        "rl.reinforce_pp_engine", "--variant", "baseline", "--prompts-per-step", "16",
        "--group-size", "8",
    ),
    "grpo_single_model": ("rl.grpo_single_model_engine",),
    "dapo": ("rl.grpo_variants_engine", "--variant", "dapo"),
    "dr_grpo": ("rl.grpo_variants_engine", "--variant", "dr_grpo"),
    "gspo": ("rl.grpo_variants_engine", "--variant", "gspo"),
    "cispo": ("rl.grpo_variants_engine", "--variant", "cispo"),
    "sapo": ("rl.grpo_variants_engine", "--variant", "sapo"),
    "grpo_process": ("rl.grpo_process_engine",),
    "grpo_iterative": ("rl.grpo_iterative_engine",),
    "grpo_iterative_frozen": ("rl.grpo_iterative_engine", "--no-refresh-reward-model"),
}  # fmt: skip
ONLY_FOR = {  # steps are checked in sums alone; pairs are labelled in reviews alone
    "grpo_process": "sums",
    "grpo_iterative": "reviews",
    "grpo_iterative_frozen": "reviews",
}
MAX_NEW_TOKENS = {"reviews": 48, "sums": 40}
BEST_OF = 8


@dataclass(frozen=True)
class StudyConfig:
    """Engines x worlds x seeds from one start."""

    data: tuple[Literal["reviews", "sums"], ...] = ("reviews", "sums")
    """Worlds."""
    engines: tuple[str, ...] = tuple(ENGINES)
    """Names of engines; a wrong one is answered with the list. Some run in one world only."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the RL runs."""
    flags: str = ""
    """Further flags for every engine, in one string: "--steps 10 --lr 1e-4"."""
    jobs: int = 1
    """Runs at a time; the machine's threads are shared out among them."""
    split: Literal["test", "validation"] = "test"
    """validation: compare there instead, while tuning."""
    prompts: int = 1024
    """Prompts in the comparison."""
    device: str = "auto"
    """auto (cuda, then mps, then cpu) or a device name."""
    out: Path = RUNS / "study"
    """Folder of the study."""


# --- training: every stage is its own script ------------------------------------------------------


def run_stage(folder: Path, module: str, *flags: object, threads: int) -> None:
    """Run one script into `folder` unless it is finished there; its output goes to FOLDER.log.

    Its seconds are written beside it: by the clock, and of CPU time, which other work on the machine
    does not change. A failing script ends the study with its words.
    """
    if (folder / MODEL_FILE).exists():
        print(f"{display_path(folder)} is there", flush=True)
        return
    command = [sys.executable, "-m", module, *map(str, flags), "--out", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    folder.parent.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    log = folder.with_suffix(".log")
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT
        )
        status, cpu = wait(process)
    seconds = {"wall": time.perf_counter() - begin, "threads": threads}
    if status != 0:
        lines = [line.strip("╭╮╰╯│─ ") for line in log.read_text(encoding="utf-8").splitlines()]
        last = [line for line in lines if line][-1:]
        raise UserError(f"{module} failed, see {display_path(log)}: {' '.join(last)}")
    write_json(folder / "seconds.json", seconds if cpu is None else seconds | {"cpu": cpu})
    print(f"{display_path(folder)}: {seconds['wall']:.0f} s", flush=True)


def wait(process: subprocess.Popen[bytes]) -> tuple[int, float | None]:
    """The exit status of a process and its CPU seconds, where the system counts them."""
    if not hasattr(os, "wait4"):
        return process.wait(), None
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime


def train_start(config: StudyConfig, world: str, folder: Path) -> None:
    """The base model and, for reviews, the reward model and the fine-tuned baseline."""
    threads = torch.get_num_threads()
    common = ("--preset", "study", "--device", config.device)
    base, judge = folder / "pretraining", folder / "reward_model"
    run_stage(base, "gpt.pretraining", *common, "--data", world, threads=threads)
    if world == "reviews":
        run_stage(
            judge, "reward_model.reward_model_training", *common, "--base", base, threads=threads
        )
        run_stage(
            folder / "finetuning", "gpt.finetuning", *common, "--base", base,
            "--pairs", judge / "pairs.jsonl", threads=threads,
        )  # fmt: skip


def engines_of(config: StudyConfig, world: str) -> list[str]:
    """The engines asked for that this world has a task for."""
    return [name for name in config.engines if ONLY_FOR.get(name, world) == world]


def train_engines(config: StudyConfig, world: str, folder: Path) -> None:
    """Every engine and seed, `jobs` at a time."""
    threads = max(torch.get_num_threads() // config.jobs, 1)
    judge = ("--reward-model", folder / "reward_model") if world == "reviews" else ()
    with ThreadPoolExecutor(config.jobs) as pool:
        runs = []
        for seed in config.seeds:
            for name in engines_of(config, world):
                module, *own = ENGINES[name]
                flags = (
                    "--preset", "study", "--data", world, *own, "--seed", seed, "--device",
                    config.device, "--policy", folder / "pretraining", *judge, "--test-prompts", 0,
                    *config.flags.split(),
                )  # fmt: skip
                target = folder / f"{name}-{seed}"
                runs.append(pool.submit(run_stage, target, module, *flags, threads=threads))
        for run in runs:
            run.result()


# --- the comparison -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judge:
    """What the policies of one world are measured with."""

    world: str
    base: GPT
    tokenizer: Tokenizer
    reward: RewardFn
    gold: RewardFn
    prompts: list[Any]

    def measure(self, policy: GPT) -> dict[str, float]:
        """Sampled at temperature 1 with the same random numbers for every policy, and greedy."""
        new_tokens = MAX_NEW_TOKENS[self.world]
        sampled, greedy, start = (
            evaluate(
                model, self.tokenizer, self.prompts, params, self.reward, reference=reference,
                gold=self.gold,
            )
            for model, params, reference in (
                (policy, SamplingParams(max_new_tokens=new_tokens), self.base),
                (policy, SamplingParams(greedy=True, max_new_tokens=new_tokens), None),
                (self.base, SamplingParams(max_new_tokens=new_tokens), None),
            )
        )  # fmt: skip
        assert sampled.gold is not None and greedy.gold is not None and start.gold is not None
        numbers = sampled.summary() | {
            "greedy": float(greedy.gold.mean()),
            "win_rate": win_rate(sampled.gold, start.gold),
        }
        if self.world == "sums":
            steps = torch.tensor([sums.uses_steps(text) for text in sampled.responses])
            numbers["writes_steps"] = float(steps.float().mean())
            for name, rows in (("with_steps", steps), ("without_steps", ~steps)):
                if rows.any():
                    numbers[f"gold_{name}"] = float(sampled.gold[rows].mean())
        return numbers


def open_judge(config: StudyConfig, world: str, folder: Path) -> Judge:
    """The base model, the rewards and the prompts of the comparison."""
    device = pick_device(config.device)
    base, tokenizer = load_gpt(folder / "pretraining", device)
    gold = world_rule(world)
    assert gold is not None
    reward: RewardFn = gold
    prompts = sums.prompts(config.split, count=config.prompts) if world == "sums" else None
    if world == "reviews":
        reward = RewardModelReward(load_reward_model(folder / "reward_model", device)[0])
        prompts = reviews.prompts(config.split)[: config.prompts]
    assert prompts is not None
    return Judge(world, base, tokenizer, reward, gold, prompts)


def compare(config: StudyConfig, world: str, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """One list of measurements, one per seed, for every engine and baseline."""
    judge = open_judge(config, world, folder)
    device = judge.base.device
    results: dict[str, list[dict[str, Any]]] = {"base model": [judge.measure(judge.base)]}
    best_reward, best_gold = best_of_n(
        judge.base, judge.tokenizer, judge.prompts,
        SamplingParams(max_new_tokens=MAX_NEW_TOKENS[world]), judge.reward, BEST_OF, gold=judge.gold,
    )  # fmt: skip
    assert best_gold is not None
    label = f"best of {BEST_OF} by the {judge.reward.name}"
    results[label] = [{"gold": float(best_gold.mean()), "reward": float(best_reward.mean())}]
    if world == "reviews":
        tuned, _ = load_gpt(folder / "finetuning", device)
        results["fine-tuned on preferred answers"] = [judge.measure(tuned)]
    for name in engines_of(config, world):
        for seed in config.seeds:
            run = folder / f"{name}-{seed}"
            numbers = measured_once(config, judge, run)
            seconds = json.loads((run / "seconds.json").read_text(encoding="utf-8"))
            numbers |= {"seed": seed, "steps": read_jsonl(run / "metrics.jsonl")[-1]["step"]}
            numbers |= {"seconds": seconds.get("cpu", seconds["wall"])}
            results.setdefault(name, []).append(numbers)
            print(f"{name} seed {seed}: gold {numbers['gold']:.3f}, kl {numbers['kl']:.2f}")
    return results


def measured_once(config: StudyConfig, judge: Judge, run: Path) -> dict[str, float]:
    """The measurements of a run's policy, taken from measured.json where they stand already."""
    path, key = run / "measured.json", f"{config.split} {config.prompts}"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if key not in known:
        known[key] = judge.measure(load_gpt(run, judge.base.device)[0])
        write_json(path, known)
    return dict(known[key])


def spread(rows: Sequence[Mapping[str, float]], key: str, digits: int) -> str:
    """ "mean (lowest to highest)" over the seeds, or the one number, or a dash."""
    values = [row[key] for row in rows if key in row]
    if not values:
        return "-"
    mean = f"{statistics.mean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})"


COLUMNS = {
    "reviews": [
        ("gold reward", "gold", 3), ("win rate", "win_rate", 3), ("KL (nats)", "kl", 1),
        ("length", "response_length", 1), ("CPU seconds", "seconds", 0),
    ],
    "sums": [
        ("exact match, sampled", "gold", 3), ("greedy", "greedy", 3),
        ("writes steps", "writes_steps", 2), ("exact where it does", "gold_with_steps", 3),
        ("KL (nats)", "kl", 1), ("CPU seconds", "seconds", 0),
    ],
}  # fmt: skip


def markdown(world: str, results: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """The table for a README."""
    columns = COLUMNS[world]
    lines = ["| | " + " | ".join(title for title, _, _ in columns) + " |"]
    lines.append("|" + "---|" * (len(columns) + 1))
    for name, rows in results.items():
        cells = [spread(rows, key, digits) for _, key, digits in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def plot(
    config: StudyConfig, world: str, folder: Path, results: Mapping[str, Sequence[Mapping]]
) -> None:
    """Gold against the step, gold against KL, and the final numbers with every seed as a dot."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    label = "gold reward" if world == "reviews" else "exact match"
    shown_engines = engines_of(config, world)
    palette = colormaps["tab10" if len(shown_engines) <= 10 else "tab20"]
    colors = {name: palette(i % palette.N) for i, name in enumerate(shown_engines)}
    figure = Figure(figsize=(15, 4.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for name in colors:
        for seed in config.seeds:
            rows = read_jsonl(folder / f"{name}-{seed}" / "metrics.jsonl")
            points = [row for row in rows if "validation/gold" in row]
            gold = running_mean([row["validation/gold"] for row in points], 2)
            style: dict[str, Any] = dict(color=colors[name], alpha=0.8, linewidth=1.5)
            shown = name if seed == config.seeds[0] else None
            left.plot([row["step"] for row in points], gold, label=shown, **style)
            distance = [row["validation/kl"] for row in points]
            middle.plot(distance, gold, marker=".", **style)
    left.set(xlabel="step (rollout batch)", ylabel=f"{label}, validation prompts", ylim=(0, 1))
    left.legend(fontsize=8, loc="lower right")
    middle.set(xlabel="KL from the start (nats per response)", ylabel=label, ylim=(0, 1))
    names = list(results)[::-1]
    for i, name in enumerate(names):
        values = [row["gold"] for row in results[name]]
        color = colors.get(name, "tab:grey")
        right.barh(i, statistics.mean(values), color=color, alpha=0.5)
        right.plot(values, [i] * len(values), "o", color=color, markeredgecolor="black")
    right.set_yticks(range(len(names)), names, fontsize=8)
    right.set(xlabel=f"{label}, {config.split} prompts; a dot per seed", xlim=(0, 1))
    figure.suptitle(f"{world}: one start, {len(config.seeds)} seeds per engine")
    figure.savefig(folder / "study.png", dpi=120)


def main(config: StudyConfig) -> None:
    """Train what is missing, compare, write the table and the figure."""
    unknown = [name for name in config.engines if name not in ENGINES]
    if unknown:
        raise UserError(f"there is no engine {unknown[0]!r}: choose from {', '.join(ENGINES)}")
    for world in config.data:
        folder = (config.out / world).resolve()
        print(f"== {world} ==", flush=True)
        train_start(config, world, folder)
        train_engines(config, world, folder)
        results = compare(config, world, folder)
        write_json(folder / "study.json", {"split": config.split, "results": results})
        table = markdown(world, results)
        (folder / "study.md").write_text(table, encoding="utf-8")
        plot(config, world, folder, results)
        print(f"\n{len(config.seeds)} seeds, {config.prompts} {config.split} prompts\n\n{table}")
        print(f"wrote {display_path(folder)} (study.json, study.md, study.png)")


if __name__ == "__main__":
    import tyro

    run_script(main, tyro.cli(StudyConfig))
