"""Every engine from one shared start, over several seeds, beside what needs no RL.

    python scripts/study.py                                  all four studies, seeds 0, 1, 2
    python scripts/study.py --studies reviews --runs ppo rloo --seeds 0
    python scripts/study.py --studies sums --jobs 2          two runs at a time, one thread each

Four studies: `reviews` and `sums`, every engine in a world; `distillation`, the engines that learn
from a teacher beside supervised distillation; `pairs`, PG-GRPO's weights and kinds of pairs beside
GRPO and DPO. The start of a world (a base model; for reviews also a reward model, a fine-tuned policy
and a teacher) is trained once by the `study` preset, so the seeds vary the last stage alone. Each run
is a script of this project with its default flags but for those in RECIPES. What is finished is kept:
an interrupted study goes on where it was. Writes runs/study/: a folder per world with its runs, and
STUDY.json, STUDY.md and STUDY.png. Test prompts are answered once, after all training; nothing is
chosen by them.
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from studies import recipes
from studies.pages import markdown, spread
from studies.recipes import LONGEST, Recipe, prompts_of, words
from studies.runner import SECONDS, Job, run_jobs, run_stage

from data import sums
from gpt.checkpoint import load_gpt
from gpt.corpus import open_corpus
from gpt.generate import SamplingParams
from gpt.model import GPT
from gpt.pretraining import held_out_loss
from gpt.teacher import open_teacher
from gpt.tokenizer import Tokenizer
from harness.command_line import run_command
from harness.device import open_device
from harness.files import display_path, read_jsonl, write_json
from harness.flag_ranges import AtLeastOne, check_ranges
from harness.paths import RUNS
from harness.seeds import make_generator
from reward_model.scalar_head import load_reward_model
from rl.batches.rollout import sample_rollout
from rl.commands.engines import every_engine
from rl.kd_grpo_engine import KDGRPOConfig
from rl.rewards.sources import RewardFn, RewardModelReward, made_of
from rl.rewards.teacher_reward import TeacherReward
from rl.training.evaluation import Evaluation, best_of_n, evaluate, win_rate
from rl.training.figures import running_mean
from rl.training.open_reward import world_rule

LISTED = {recipe.module for recipe in recipes.RECIPES.values()}
NEW_ENGINES = {  # an engine without a recipe has one with its default flags
    engine.name: Recipe(engine.module)
    for engine in every_engine()
    if engine.learns_from == "reward" and engine.module not in LISTED
}
RECIPES = recipes.RECIPES | NEW_ENGINES


@dataclass(frozen=True)
class Study:
    """Runs of one world in one table."""

    world: Literal["reviews", "sums"]
    runs: tuple[str, ...]
    columns: tuple[tuple[str, str, int], ...]  # title, measurement, digits
    teacher: bool = False  # a teacher in place of the reward model
    distance: tuple[str, str] = ("kl", "KL from the start (nats per response)")
    best_of: int = 0  # answers per prompt of the best-of-n row; 0 leaves it out


def engines(world: str) -> tuple[str, ...]:
    """The engines of a world: steps are checked in sums alone, pairs are labelled in reviews alone."""
    return tuple(name for name in recipes.ENGINES | NEW_ENGINES if world in RECIPES[name].worlds)


LAST_COLUMNS = (
    ("KL (nats)", "kl", 1),
    ("length", "response_length", 1),
    ("CPU seconds", "seconds", 0),
)
STUDIES = {
    "reviews": Study(
        "reviews",
        engines("reviews"),
        (("gold reward", "gold", 3), ("win rate", "win_rate", 3), *LAST_COLUMNS),
        best_of=8,
    ),
    "sums": Study(
        "sums",
        engines("sums"),
        (
            ("exact match, sampled", "gold", 3), ("greedy", "greedy", 3),
            ("writes steps", "writes_steps", 2), ("exact where it does", "gold_with_steps", 3),
            ("KL (nats)", "kl", 1), ("CPU seconds", "seconds", 0),
        ),
        best_of=8,
    ),
    "distillation": Study(
        "reviews",
        tuple(recipes.STUDENTS),
        (
            ("gold reward", "gold", 3), ("KL to the teacher (nats)", "reverse_kl_full", 2),
            ("KL removed", "removed", 2), ("perplexity", "perplexity", 2),
            ("different of 8 answers", "different_answers", 1), *LAST_COLUMNS,
        ),
        teacher=True,
        distance=("reverse_kl_full", "KL to the teacher (nats per response)"),
    ),
    "pairs": Study(
        "reviews",
        ("grpo", *recipes.PAIRS),
        (("gold reward", "gold", 3), ("win rate", "win_rate", 3), *LAST_COLUMNS),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class StudyConfig:
    """Runs x seeds from one start per world."""

    studies: tuple[Literal["reviews", "sums", "distillation", "pairs"], ...] = (
        "reviews", "sums", "distillation", "pairs",
    )  # fmt: skip
    """Which tables."""
    runs: tuple[str, ...] = tuple(RECIPES)
    """Names of runs; a wrong one is answered with the list. Each study takes those that are its own."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the RL runs."""
    jobs: AtLeastOne = 1
    """Runs at a time; the machine's threads are shared out among them."""
    prompts: AtLeastOne = 1024
    """Test prompts in the comparison."""
    device: str = "auto"
    """auto (cuda, then mps, then cpu) or a device name."""
    out: Path = RUNS / "study"
    """Folder of the study."""

    def __post_init__(self) -> None:
        if not (self.studies and self.runs and self.seeds):
            raise ValueError("studies, runs and seeds each need at least one value")
        check_ranges(self)
        unknown = [name for name in self.runs if name not in RECIPES]
        if unknown:
            raise ValueError(f"there is no run {unknown[0]!r}: choose from {', '.join(RECIPES)}")


# --- training: every stage is its own script ------------------------------------------------------


def train_start(config: StudyConfig, world: str, folder: Path, *, teacher: bool) -> None:
    """The base model and, for reviews, the reward model, the fine-tuned baseline and the teacher."""
    study, device = ("--preset", "study"), ("--device", config.device)
    base, judge = folder / "pretraining", folder / "reward_model"

    def stage(name: str, module: str, *flags: object) -> None:
        run_stage(folder / name, module, flags, threads=torch.get_num_threads())

    stage("pretraining", "gpt.pretraining", *study, *device, "--data", world)
    if world == "reviews":
        from_base = (*study, *device, "--base", base)
        stage("reward_model", "reward_model.reward_model_training", *from_base)
        stage("finetuning", "gpt.finetuning", *from_base, "--pairs", judge / "pairs.jsonl")
    if teacher:
        larger = "teacher_pretraining"
        stage(larger, "gpt.pretraining", "--preset", "teacher", "--data", world, *device)
        stage(
            "teacher", "scripts.make_teacher", *study, *device, "--data", world,
            "--base", folder / larger, "--reward-model", judge,
        )  # fmt: skip


def runs_of(config: StudyConfig, study: Study) -> list[str]:
    return [name for name in config.runs if name in study.runs]


def start_flags(study: Study, module: str, folder: Path) -> tuple[object, ...]:
    policy = "--base" if module == "gpt.distillation" else "--policy"
    flags = policy, folder / "pretraining"
    if study.teacher:
        return *flags, "--teacher", folder / "teacher"
    if study.world == "reviews":
        return *flags, "--reward-model", folder / "reward_model"
    return flags


def train_runs(config: StudyConfig, study: Study, folder: Path) -> None:
    threads = max(torch.get_num_threads() // config.jobs, 1)
    jobs = [
        Job(f"{name}-{seed}", RECIPES[name].module, dict(RECIPES[name].flags) | dict(seed=seed))
        for seed in config.seeds
        for name in runs_of(config, study)
    ]

    def run(job: Job) -> float:
        flags = (
            "--preset", "study", "--data", study.world, *words(job.arguments), "--device",
            config.device, *start_flags(study, job.stage, folder), "--test-prompts", 0,
        )  # fmt: skip
        return run_stage(folder / job.name, job.stage, flags, threads=threads)

    run_jobs(jobs, run, at_a_time=config.jobs)


# --- the comparison -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judge:
    """What the policies of one study are measured with."""

    study: Study
    base: GPT
    tokenizer: Tokenizer
    reward: RewardFn
    gold: RewardFn
    prompts: list[Any]

    def answers(self, policy: GPT, *, greedy: bool = False) -> Evaluation:
        """One answer per prompt, with the same random numbers for every policy."""
        params = SamplingParams(greedy=greedy, max_new_tokens=LONGEST[self.study.world])
        return evaluate(
            policy, self.tokenizer, self.prompts, params, None if greedy else self.reward,
            reference=None if greedy else self.base, gold=self.gold,
        )  # fmt: skip

    @cached_property
    def start(self) -> Evaluation:
        return self.answers(self.base)

    def different_answers(self, policy: GPT, prompts: int = 128, tries: int = 8) -> float:
        """How many of several answers to one prompt differ, on average."""
        params = SamplingParams(max_new_tokens=LONGEST[self.study.world])
        generator = make_generator(0, "different answers")
        asked = self.prompts[:prompts]
        rollout = sample_rollout(policy, self.tokenizer, asked, params, tries, generator)
        groups = [rollout.responses[i : i + tries] for i in range(0, len(rollout), tries)]
        return statistics.mean(len(set(group)) for group in groups)

    def measure(self, policy: GPT) -> dict[str, float]:
        """Sampled at temperature 1, and greedy."""
        world = self.study.world
        sampled, start = self.answers(policy), self.start
        greedy = self.answers(policy, greedy=True)
        assert sampled.gold is not None and greedy.gold is not None and start.gold is not None
        numbers = sampled.summary() | {
            "greedy": float(greedy.gold.mean()),
            "win_rate": win_rate(sampled.gold, start.gold),
        }
        if world == "sums":
            steps = torch.tensor([sums.uses_steps(text) for text in sampled.responses])
            numbers["writes_steps"] = float(steps.float().mean())
            for name, rows in (("with_steps", steps), ("without_steps", ~steps)):
                if rows.any():
                    numbers[f"gold_{name}"] = float(sampled.gold[rows].mean())
        if self.study.teacher:
            text = open_corpus(
                world, self.tokenizer, batch_size=64, seed=0, context=policy.config.context
            )
            numbers["perplexity"] = math.exp(held_out_loss(policy, text.held_out_batches()))
            numbers["different_answers"] = self.different_answers(policy)
            assert start.reverse_kl_full is not None and sampled.reverse_kl_full is not None
            distance = float(start.reverse_kl_full.mean())
            numbers["removed"] = 1 - float(sampled.reverse_kl_full.mean()) / distance
        return numbers


def open_judge(config: StudyConfig, study: Study, folder: Path) -> Judge:
    """The base model, the rewards and the prompts of the comparison."""
    device = open_device(config.device)
    base, tokenizer = load_gpt(folder / "pretraining", device)
    gold = world_rule(study.world)
    assert gold is not None
    reward: RewardFn = gold
    if study.teacher:
        teacher = open_teacher(folder / "teacher", tokenizer, device)
        reward = TeacherReward(teacher, KDGRPOConfig(), aggregate="sum", reverse_kl=True)
    elif study.world == "reviews":
        reward = RewardModelReward(load_reward_model(folder / "reward_model", device)[0])
    prompts = prompts_of(study.world, "test", config.prompts)
    return Judge(study, base, tokenizer, reward, gold, prompts)


def compare(config: StudyConfig, study: Study, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """One list of measurements, one per seed, for every run and baseline."""
    judge = open_judge(config, study, folder)
    device = judge.base.device
    results: dict[str, list[dict[str, Any]]] = {"base model": [judge.measure(judge.base)]}
    teacher = made_of(judge.reward).teacher
    if teacher is not None:
        results["teacher"] = [judge.measure(teacher)]
    if study.best_of:
        best_reward, best_gold = best_of_n(
            judge.base, judge.tokenizer, judge.prompts,
            SamplingParams(max_new_tokens=LONGEST[study.world]), judge.reward, study.best_of,
            gold=judge.gold,
        )  # fmt: skip
        assert best_gold is not None
        label = f"best of {study.best_of} by the {judge.reward.name}"
        results[label] = [{"gold": float(best_gold.mean()), "reward": float(best_reward.mean())}]
    if study.world == "reviews" and not study.teacher:
        tuned, _ = load_gpt(folder / "finetuning", device)
        results["fine-tuned on preferred answers"] = [judge.measure(tuned)]
    for name in runs_of(config, study):
        for seed in config.seeds:
            run = folder / f"{name}-{seed}"
            numbers = measured_once(config, judge, run)
            seconds = json.loads((run / SECONDS).read_text(encoding="utf-8"))
            numbers |= {"seed": seed, "steps": read_jsonl(run / "metrics.jsonl")[-1]["step"]}
            numbers |= {"seconds": seconds.get("cpu", seconds["wall"])}
            results.setdefault(name, []).append(numbers)
            print(f"{name} seed {seed}: gold {numbers['gold']:.3f}, kl {numbers['kl']:.2f}")
    return results


def measured_once(config: StudyConfig, judge: Judge, run: Path) -> dict[str, float]:
    """The measurements of a run's policy, taken from measured.json where they stand already."""
    path, key = run / "measured.json", f"test {config.prompts}"
    key += " by the teacher" if judge.study.teacher else ""
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if key not in known:
        known[key] = judge.measure(load_gpt(run, judge.base.device)[0])
        write_json(path, known)
    return dict(known[key])


def table(study: Study, results: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """The table for a README: "mean (lowest to highest)" over the seeds."""
    rows = [
        [name, *(spread([r[key] for r in own if key in r], n) for _, key, n in study.columns)]
        for name, own in results.items()
    ]
    return "\n".join(markdown(["", *(title for title, _, _ in study.columns)], rows)) + "\n"


def mean_curve(
    folder: Path, seeds: Sequence[int], name: str, keys: Sequence[str]
) -> list[list[float]]:
    """Per key its mean over the seeds at every step that all of them have validated."""
    runs = [
        {row["step"]: row for row in read_jsonl(folder / f"{name}-{seed}" / "metrics.jsonl")}
        for seed in seeds
    ]
    steps = [step for step in runs[0] if all(keys[-1] in run.get(step, {}) for run in runs)]
    return [[statistics.mean(run[step][key] for run in runs) for step in steps] for key in keys]


def plot(
    config: StudyConfig,
    study: Study,
    folder: Path,
    path: Path,
    results: Mapping[str, Sequence[Mapping[str, float]]],
) -> None:
    """Gold over the run and against the KL, means of the seeds, and every seed's final number."""
    from matplotlib.figure import Figure

    label = "exact match" if study.world == "sums" else "gold reward"
    distance, distance_label = study.distance
    names = list(results)
    runs = [name for name in names if name in RECIPES]
    colors = {name: f"C{i % 10}" for i, name in enumerate(runs)}
    figure = Figure(figsize=(16, max(5, 0.25 * len(names) + 1.4)), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for i, name in enumerate(runs):
        steps, far, gold = mean_curve(
            folder, config.seeds, name, ("step", f"validation/{distance}", "validation/gold")
        )
        style: dict[str, Any] = dict(color=colors[name], linestyle=("-", "--", ":")[i // 10 % 3])
        run = folder / f"{name}-{config.seeds[0]}"
        planned = json.loads((run / "config.json").read_text(encoding="utf-8"))["steps"]
        done = [step / planned for step in steps]
        left.plot(done, running_mean(gold, 2), label=name, **style)
        middle.plot(far, running_mean(gold, 2), marker=".", **style)
    left.set(xlabel="part of the run", ylabel=f"{label}, validation prompts")
    figure.legend(fontsize=8, loc="outside lower center", ncols=8)
    middle.set(xlabel=distance_label, ylabel=f"{label}, validation prompts")
    for i, name in enumerate(names[::-1]):
        values = [row["gold"] for row in results[name]]
        color = colors.get(name, "tab:grey")
        right.barh(i, statistics.mean(values), color=color, alpha=0.5)
        right.plot(values, [i] * len(values), "o", color=color, markeredgecolor="black")
    right.set_yticks(range(len(names)), names[::-1], fontsize=8)
    right.set(xlabel=f"{label}, test prompts; a dot per seed", xlim=(0, 1))
    figure.suptitle(f"{path.stem}: one start, mean of {len(config.seeds)} seeds")
    figure.savefig(path, dpi=120)


def main(config: StudyConfig) -> None:
    out = config.out.resolve()
    for name in config.studies:
        study = STUDIES[name]
        folder = out / study.world
        print(f"== {name} ==", flush=True)
        train_start(config, study.world, folder, teacher=study.teacher)
        train_runs(config, study, folder)
        results = compare(config, study, folder)
        write_json(out / f"{name}.json", {"split": "test", "results": results})
        text = table(study, results)
        (out / f"{name}.md").write_text(text, encoding="utf-8")
        plot(config, study, folder, out / f"{name}.png", results)
        print(f"\n{len(config.seeds)} seeds, {config.prompts} test prompts\n\n{text}")
        print(f"wrote {display_path(out)} ({name}.json, {name}.md, {name}.png)")


if __name__ == "__main__":
    run_command(main, StudyConfig)
