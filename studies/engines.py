"""Every engine from one shared start, over several seeds, beside what needs no RL.

    python -m studies engines reviews --only /ppo- /rloo- --seeds 1

Four parts: `reviews` and `sums`, every engine in a world; `distillation`, the engines that learn
from a teacher; `pairs`, PG-GRPO's weights and kinds of pairs beside
GRPO and DPO. The start of a world (a base model; for reviews also a reward model, a fine-tuned policy
and a teacher) is trained once, so the seeds vary the last stage alone. Each run
is a script of this project with its default flags but for those in RECIPES. Test prompts are answered
once, after all training; nothing is chosen by them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from data.sources import world_source
from data.worlds import reviews, sums
from gpt.checkpoint import load_gpt
from gpt.corpus import open_corpus
from gpt.generate import SamplingParams
from gpt.model import GPT
from gpt.pretraining import held_out_loss
from gpt.teacher import open_teacher
from gpt.tokenizer import Tokenizer
from harness.device import open_device
from harness.files import read_jsonl
from harness.flags import AtLeastOne
from report.style import COLOURS, SERIES
from reward_model.scalar_head import load_reward_model
from rl.kd_grpo_engine import KDGRPOConfig
from rl.rewards.model import RewardModelReward
from rl.rewards.reward import RewardFn, components, open_rule
from rl.rewards.teacher_reward import TeacherReward
from rl.run.evaluation import Evaluation, evaluate, win_rate
from studies.best_of import best_of_n
from studies.pages import Numbers, drawing, markdown, spread
from studies.runner import Job, Study, StudyFlags, once, read_record

LONGEST = {"reviews": 48, "sums": 40}  # tokens of an answer
BEST_OF = 8


@dataclass(frozen=True)
class Recipe:
    """How a run is made, beside its preset, its start and its seed: a command and its flags."""

    module: str
    flags: Mapping[str, Any] = field(default_factory=dict)


ITERATIVE, KD_GRPO, KD_PPO = "rl.grpo_iterative_engine", "rl.kd_grpo_engine", "rl.kd_ppo_engine"
MINILLM, REINFORCE = "rl.minillm_engine", "rl.reinforce_pp_engine"
ON_POLICY = "rl.on_policy_distillation_engine"
VARIANTS = "rl.grpo_variants_engine"
ALONE: dict[str, Any] = dict(kl_coef=0, pretraining_coef=0)  # nothing else that holds back

ENGINES = {  # that learn from a reward, in both worlds
    "grpo": Recipe("rl.grpo_engine"),
    "ppo": Recipe("rl.ppo_engine"),
    "rloo": Recipe("rl.rloo_engine"),
    "reinforce_pp": Recipe(REINFORCE),
    "reinforce_pp_baseline": Recipe(
        REINFORCE, dict(variant="baseline", prompts_per_step=16, group_size=8)
    ),
    "grpo_single_model": Recipe("rl.grpo_single_model_engine"),
    **{
        name: Recipe(VARIANTS, dict(variant=name))
        for name in ("dapo", "dr_grpo", "gspo", "cispo", "sapo")
    },
}
OF_SUMS = {"grpo_process": Recipe("rl.grpo_process_engine")}  # whose steps are checked
OF_REVIEWS = {  # whose pairs are labelled
    "grpo_iterative": Recipe(ITERATIVE),
    "grpo_iterative_frozen": Recipe(ITERATIVE, dict(refresh_reward_model=False)),
}
STUDENTS = {  # that learn from a teacher
    "kd_grpo": Recipe(KD_GRPO),
    "kd_ppo": Recipe(KD_PPO),
    "minillm": Recipe(MINILLM),
    "on_policy_distillation": Recipe(ON_POLICY),
    "on_policy_distillation_full": Recipe(ON_POLICY, dict(divergence="full")),
    "forward_kl": Recipe(ON_POLICY, dict(divergence="forward")),  # of the teacher's own text
    "kd_grpo_per_token": Recipe(KD_GRPO, dict(per_token=True)),
    # Without the student's log-probs: what collapses.
    "kd_grpo_sum": Recipe(KD_GRPO, dict(teacher_reward="sum") | ALONE),
    "kd_grpo_mean": Recipe(KD_GRPO, dict(teacher_reward="mean") | ALONE),
    "kd_grpo_reverse_kl": Recipe(KD_GRPO, ALONE),
    # The weight of the text, and the notes' bonus in its place.
    "kd_grpo_text_0": Recipe(KD_GRPO, dict(pretraining_coef=0)),
    "kd_grpo_text_1": Recipe(KD_GRPO, dict(pretraining_coef=1)),
    "minillm_text_0": Recipe(MINILLM, dict(pretraining_coef=0)),
    "kd_ppo_text_0": Recipe(KD_PPO, dict(pretraining_coef=0)),
    "kd_ppo_bonus_1": Recipe(KD_PPO, dict(pt_mode="reward_bonus", pretraining_coef=1)),
}
PREFERRED = {  # that learn from pairs
    "dpo": Recipe("rl.dpo_engine"),
    "dpo_long": Recipe("rl.dpo_engine", dict(steps=600)),
    **{
        f"pg_grpo_{mode}_{weight}": Recipe(
            "rl.pg_grpo_engine", dict(pairs=mode, preference_coef=weight)
        )
        for mode in ("best_worst", "all", "offline", "both")
        for weight in (0.1, 1, 10)
    },
}
UNLIMITED = ("rl.dpo_engine", "rl.grpo_single_model_engine")  # no limit of the KL by default
RECIPES = ENGINES | OF_SUMS | OF_REVIEWS | STUDENTS | PREFERRED


@dataclass(frozen=True)
class Part:
    """Runs of one world in one table."""

    world: Literal["reviews", "sums"]
    runs: tuple[str, ...]
    columns: tuple[tuple[str, str, int], ...]  # title, measurement, digits
    teacher: bool = False  # a teacher in place of the reward model
    distance: tuple[str, str] = ("kl", "KL from the start (nats per response)")
    best_of: bool = False  # a row of best-of-n


LAST_COLUMNS = (
    ("KL (nats)", "kl", 1),
    ("length", "response_length", 1),
    ("CPU seconds", "seconds", 0),
)
GOLD = (("gold reward", "gold", 3), ("win rate", "win_rate", 3))
PARTS = {
    "reviews": Part(
        "reviews", (*ENGINES, *OF_REVIEWS), (*GOLD, *LAST_COLUMNS), best_of=True
    ),
    "sums": Part(
        "sums",
        (*ENGINES, *OF_SUMS),
        (
            ("exact match, sampled", "gold", 3), ("greedy", "greedy", 3),
            ("KL (nats)", "kl", 1), ("CPU seconds", "seconds", 0),
        ),
        best_of=True,
    ),
    "distillation": Part(
        "reviews",
        tuple(STUDENTS),
        (
            ("gold reward", "gold", 3), ("KL to the teacher (nats)", "reverse_kl_full", 2),
            ("KL removed", "removed", 2), ("perplexity", "perplexity", 2),
            *LAST_COLUMNS,
        ),
        teacher=True,
        distance=("reverse_kl_full", "KL to the teacher (nats per response)"),
    ),
    "pairs": Part("reviews", ("grpo", *PREFERRED), (*GOLD, *LAST_COLUMNS)),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class EnginesConfig(StudyFlags):
    """Runs x seeds from one start per world."""

    prompts: AtLeastOne = 1024
    """Test prompts in the comparison."""
    device: str = "auto"
    """auto (cuda, then mps, then cpu) or a device name."""

    @property
    def short(self) -> dict[str, Any]:
        """What is added to a base model and to a run."""
        return {"steps": 10} if self.quick else {}


# --- training: every job is a command of its own --------------------------------------------------


def start_jobs(config: EnginesConfig, part: Part, folder: Path) -> Iterator[Job]:
    """The base model and, for reviews, the reward model, the fine-tuned baseline and the teacher."""
    world = part.world

    def job(name: str, module: str, *needs: str, preset: str = "tiny", **flags: object) -> Job:
        arguments = dict(preset=preset, device=config.device) | flags
        return Job(f"{world}/{name}", module, arguments, tuple(f"{world}/{n}" for n in needs))

    base, judge = folder / "pretraining", folder / "reward_model"
    yield job("pretraining", "gpt.pretraining", data=world, **config.short)
    if world == "reviews":
        train = "reward_model.reward_model_training"
        yield job("reward_model", train, "pretraining", model=base, pairs=160_000)
        pairs = judge / "pairs.jsonl"
        yield job("finetuning", "gpt.finetuning", "reward_model", model=base, pairs=pairs)
    if part.teacher:
        larger = "teacher_pretraining"
        yield job(larger, "gpt.pretraining", preset="teacher", data=world)
        yield job(
            "teacher", "scripts.make_teacher", larger, "reward_model",
            data=world, model=folder / larger, reward_model=judge,
        )  # fmt: skip


def flags_of(part: Part, name: str, folder: Path) -> dict[str, Any]:
    """What a run is started with, but for its seed and device."""
    recipe = RECIPES[name]
    flags: dict[str, Any] = dict(data=part.world, test_prompts=0, model=folder / "pretraining")
    learned = part.world == "reviews" and not part.teacher
    if learned and recipe.module not in UNLIMITED:
        flags["stop_kl"] = 8.0  # in all recorded tables
    flags |= recipe.flags
    if part.teacher:
        return flags | dict(teacher=folder / "teacher")
    return flags | (dict(reward_model=folder / "reward_model") if part.world == "reviews" else {})


def plan(config: EnginesConfig) -> dict[str, Job]:
    """Every start and run; what two parts share is there once."""
    listed: dict[str, Job] = {}
    for title, part in PARTS.items():
        folder = config.out / part.world
        starts = list(start_jobs(config, part, folder))
        runs = [
            Job(
                f"{part.world}/{name}-{seed}", RECIPES[name].module,
                flags_of(part, name, folder) | dict(seed=seed, device=config.device) | config.short,
                tuple(start.name for start in starts), frozenset([title]),
            )
            for seed in range(config.seeds)
            for name in part.runs
        ]  # fmt: skip
        for job in [*starts, *runs]:
            known = listed.get(job.name, job)
            listed[job.name] = replace(known, parts=known.parts | job.parts)
    return listed


# --- the comparison -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judge:
    """What the policies of one part are measured with."""

    part: Part
    base: GPT
    tokenizer: Tokenizer
    reward: RewardFn
    gold: RewardFn
    prompts: list[Any]

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(max_new_tokens=LONGEST[self.part.world])

    def answers(self, policy: GPT, *, greedy: bool = False) -> Evaluation:
        """One answer per prompt, with the same random numbers for every policy."""
        params = replace(self.params, greedy=greedy)
        return evaluate(
            policy, self.tokenizer, self.prompts, params, None if greedy else self.reward,
            reference=None if greedy else self.base, gold=self.gold,
        )  # fmt: skip

    @cached_property
    def start(self) -> Evaluation:
        return self.answers(self.base)

    def measure(self, policy: GPT) -> dict[str, float]:
        """Sampled at temperature 1, and greedy."""
        sampled, start = self.answers(policy), self.start
        greedy = self.answers(policy, greedy=True)
        assert sampled.gold is not None and greedy.gold is not None and start.gold is not None
        numbers = sampled.summary() | {
            "greedy": float(greedy.gold.mean()),
            "win_rate": win_rate(sampled.gold, start.gold),
        }
        if self.part.teacher:
            text = open_corpus(
                self.part.world, self.tokenizer, batch_size=64, seed=0,
                context=policy.config.context,
            )  # fmt: skip
            numbers["perplexity"] = math.exp(held_out_loss(policy, text.held_out_batches()))
            assert start.reverse_kl_full is not None and sampled.reverse_kl_full is not None
            distance = float(start.reverse_kl_full.mean())
            numbers["removed"] = 1 - float(sampled.reverse_kl_full.mean()) / distance
        return numbers


def open_judge(config: EnginesConfig, part: Part, folder: Path) -> Judge:
    """The base model, the rewards and the prompts of the comparison."""
    device = open_device(config.device)
    base, tokenizer = load_gpt(folder / "pretraining", device)
    gold = open_rule(world_source(part.world), part.world, {}, needed=False)
    assert gold is not None
    reward: RewardFn = gold
    if part.teacher:
        teacher = open_teacher(str(folder / "teacher"), tokenizer, device)
        reward = TeacherReward(teacher, KDGRPOConfig(), aggregate="sum", reverse_kl=True)
    elif part.world == "reviews":
        reward = RewardModelReward(load_reward_model(folder / "reward_model", device)[0])
    prompts = reviews.prompts("test")[: config.prompts]
    if part.world == "sums":
        prompts = sums.prompts("test", config.prompts)
    return Judge(part, base, tokenizer, reward, gold, prompts)


Measured = dict[str, list[dict[str, Any]]]  # by run or baseline, one of each seed


def compare(config: EnginesConfig, part: Part, done: Container[str]) -> Measured:
    """The measurements of the baselines, and of every run that is done."""
    folder = config.out / part.world
    judge = open_judge(config, part, folder)
    results: Measured = {"base model": [judge.measure(judge.base)]}
    teacher = components(judge.reward).teacher
    if teacher is not None:
        results["teacher"] = [judge.measure(teacher)]
    if part.best_of:
        best_reward, best_gold = best_of_n(
            judge.base, judge.tokenizer, judge.prompts, judge.params, judge.reward, BEST_OF,
            gold=judge.gold,
        )  # fmt: skip
        label = f"best of {BEST_OF} by the {judge.reward.name}"
        results[label] = [{"gold": float(best_gold.mean()), "reward": float(best_reward.mean())}]
    if part.world == "reviews" and not part.teacher:
        tuned, _ = load_gpt(folder / "finetuning", judge.base.device)
        results["fine-tuned on preferred answers"] = [judge.measure(tuned)]
    for name in part.runs:
        for seed in range(config.seeds):
            run = folder / f"{name}-{seed}"
            if f"{part.world}/{run.name}" in done:
                numbers = measured_once(config, judge, run)
                numbers |= {"seed": seed, "steps": read_jsonl(run / "metrics.jsonl")[-1]["step"]}
                numbers |= {"seconds": read_record(run)["cpu"]}
                results.setdefault(name, []).append(numbers)
                print(f"{name} seed {seed}: gold {numbers['gold']:.3f}, kl {numbers['kl']:.2f}")
    return results


def measured_once(config: EnginesConfig, judge: Judge, run: Path) -> dict[str, Any]:
    """The measurements of a run's policy, taken from a file where they stand already."""
    by = "-by-teacher" if judge.part.teacher else ""
    path = run / f"measured-{config.prompts}{by}.json"
    return dict(once(path, lambda: judge.measure(load_gpt(run, judge.base.device)[0])))


def table(part: Part, results: Measured) -> list[str]:
    """ "mean (lowest to highest)" over the seeds."""
    rows = [
        [name, *(spread([r[key] for r in own if key in r], n) for _, key, n in part.columns)]
        for name, own in results.items()
    ]
    return markdown(["", *(title for title, _, _ in part.columns)], rows)


def mean_curve(folders: Sequence[Path], keys: Sequence[str]) -> list[list[float]]:
    """Per key its mean over the runs at every step that all of them have validated."""
    runs = [
        {row["step"]: row for row in read_jsonl(folder / "metrics.jsonl")} for folder in folders
    ]
    steps = [step for step in runs[0] if all(keys[-1] in run.get(step, {}) for run in runs)]
    return [[statistics.mean(run[step][key] for run in runs) for step in steps] for key in keys]


def smoothed(values: Sequence[float]) -> list[float]:
    """The mean of each value and the one before it."""
    return [(a + b) / 2 for a, b in zip([*values[:1], *values], values, strict=False)]


def collect(config: EnginesConfig, done: Mapping[str, Job]) -> dict[str, Any]:
    """Of each part its measurements, and by run the mean curve of gold by distance."""
    found = {}
    there = {part for job in done.values() for part in job.parts}.intersection(config.parts)
    for title, part in PARTS.items():
        if title in there:
            results, curves = compare(config, part, done), {}
            for name in [name for name in results if name in RECIPES]:
                runs = [config.out / part.world / f"{name}-{row['seed']}" for row in results[name]]
                keys = f"validation/{part.distance[0]}", "validation/gold"
                curves[name] = mean_curve(runs, keys)
            found[title] = {"results": results, "curves": curves}
    return found


def tables(numbers: Numbers) -> dict[str, list[str]]:
    return {title: table(PARTS[title], found["results"]) for title, found in numbers.items()}


def draw(numbers: Numbers, folder: Path) -> None:
    for title, found in numbers.items():
        plot(PARTS[title], **found, path=folder / f"{title}.png")


def plot(part: Part, results: Measured, curves: Mapping[str, Any], path: Path) -> None:
    """Gold against the distance, the mean of the seeds, beside GRPO's; and every seed's final number."""
    label = "exact match" if part.world == "sums" else "gold reward"
    runs = [name for name in results if name in curves]
    ordered = sorted(results, key=lambda name: statistics.mean(r["gold"] for r in results[name]))
    with drawing(path, 10, max(5, 0.25 * len(results) + 1.4)) as figure:
        left, right = figure.subplots(1, 2)
        named = dict.fromkeys((*(runs[:1]), *(name for name in ordered[::-1] if name in runs)))
        for i, name in enumerate(named):
            far, gold = curves[name]
            shown: dict[str, Any] = dict(color=SERIES[5], linewidth=1, label="others" * (i == 4))
            if i < 4:  # the part's first, and the best three
                shown = dict(color=SERIES[i], linestyle=("-", "--", "-.", ":")[i], label=name)
            left.plot(far, smoothed(gold), zorder=3 - (i > 3), **shown)
        left.set(xlabel=part.distance[1], ylabel=f"{label}, validation prompts")
        left.set_title("Gold changes with the distance")
        left.legend(fontsize=9)
        for i, name in enumerate(ordered):
            values = [row["gold"] for row in results[name]]
            meaning = COLOURS["policy" if name in runs else "reference"]
            right.plot(values, [i] * len(values), "o", color=meaning, alpha=0.6)
        right.set_yticks(range(len(ordered)), ordered, fontsize=9)
        right.set(xlabel=f"{label}, test prompts; a dot a seed", xlim=(0, 1))
        right.set_title(f"{ordered[-1]} has the most on average")


STUDY = Study(
    flags=EnginesConfig,
    quick=dict(seeds=1, parts=("sums",), only=("/grpo-", "/rloo-"), prompts=64),
    plan=plan, collect=collect, tables=tables, draw=draw, shares_threads=True,
)  # fmt: skip
