"""Preference pairs and a published chat model: what each engine makes of them.

    python -m studies preferences --model runs/smollm2 --pairs pairs.json

`--pairs` has rows of instruction, input, output (a reference answer), chosen and rejected. They are split
by prompt: a tenth validates, a tenth tests. Of the rest one half trains the reward model that pays every
engine, and is what DPO and fine-tuning read; the other half a reward model of another seed, the judge. It
says which of two answers to a test prompt it prefers, that of a policy or that of the start. Two more
judges are rules: polite words, and whether an answer has the content words of the reference answer.

The stages, in the order of their worth: `judges`, both reward models; `policies`, GRPO and DPO; `curve`,
reward models of 50 to 400 pairs; `seeds`; `baselines`, best of 8 and fine-tuning; `engines`; `exploit`,
GRPO to which a cut-off answer costs nothing, without a KL limit; `poolings`, reward models of all pairs;
`teacher`, the start taught by the steered policy. A finished job is kept even where engines have changed
since: each takes minutes. recording.json has every number, and answers.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch

from data.collate import collate_responses
from data.files.read import read_preferences, read_prompts
from data.records import SPLIT_KEY, PromptRecord, split_of
from data.templates import instruction_prompt, instruction_text
from data.worlds.instructions import words as words_in
from gpt.folder import ModelFolder, open_model
from gpt.generate import SamplingParams
from gpt.log_probs import token_log_probs
from gpt.model import GPT
from gpt.ranks import score_in_micro_batches
from gpt.tokenizer import Tokenizer
from harness.device import open_device, precision
from harness.errors import UserError
from harness.files import read_json, read_jsonl, write_json, write_text
from harness.flags import AtLeastOne
from harness.paths import FINISHED_STATE, MODEL_FILE, RUNS, STATE_FILE
from harness.seeds import make_generator
from harness.tensors import masked_sum
from report.style import COLOURS, SERIES, styled
from reward_model.accuracy_report import preference_report, score_pairs, wilson_interval
from reward_model.pairs import encode_pairs
from reward_model.scalar_head import RewardModel, load_reward_model
from rl.batches.rollout import Rollout, sample_rollout, select_rows
from rl.rewards.model import RewardModelReward
from rl.run.evaluation import win_rate
from studies.pages import DOCS, markdown, rounded, spread
from studies.real_model import distinct
from studies.runner import Job, Study, StudyFlags, digest, run_into_log, words

Stage = Literal[
    "judges", "policies", "curve", "seeds", "baselines", "engines", "exploit", "poolings", "teacher"
]
STAGES: tuple[Stage, ...] = get_args(Stage)
CURVE = (50, 100, 200, 400)  # pairs
BATCH = 8  # pairs of an optimizer step
PASSES, LEAST = 2, 50  # over the pairs; but at least so many steps
BEST_OF = 8
ROWS = 32  # that are sampled or scored together
SHOWN = 16  # answers in the recording
START, BEST, UNPRICED = "as published", f"best of {BEST_OF}", "GRPO, cut-off answers unpriced"
KEPT = DOCS / "preferences.json"
TEMPERATURE, LONGEST = 0.7, 48  # as its makers advise; tokens

# Flags of every engine that samples: 4 prompts with 8 answers, two optimizer steps.
SAMPLED: dict[str, Any] = dict(
    lr=2e-5, warmup_steps=2, prompts_per_step=4, group_size=8, minibatches=2, micro_batch_size=16,
    temperature=TEMPERATURE, max_new_tokens=LONGEST, missing_eos_penalty=1.0, eval_prompts=0,
    test_prompts=0, save_every=8, stop_kl_per_token=None,
)  # fmt: skip
ANCHORED = SAMPLED | dict(kl_coef=0.1, stop_kl=8.0)
TAUGHT = SAMPLED | dict(missing_eos_penalty=0.0, stop_kl=None)
SINGLY = dict(prompts_per_step=32, group_size=1)  # the same number of answers, one a prompt
FIT = dict(max_prompt_tokens=512, max_response_tokens=256)
RECORDED = dict(batch_size=BATCH, warmup_steps=10)  # of what reads the pairs


class Recipe(NamedTuple):
    """How a policy is made."""

    stage: Stage
    folder: str
    module: str
    flags: Mapping[str, Any]


OF_PAIRS = ("rl.dpo_engine", "gpt.finetuning")  # in one part: their schedules need the whole run
POLICIES = {
    "GRPO": Recipe("policies", "grpo", "rl.grpo_engine", ANCHORED),
    "DPO": Recipe("policies", "dpo", "rl.dpo_engine", RECORDED | dict(
        lr=1e-5, beta=0.1, micro_batch_size=16, temperature=TEMPERATURE, max_response_tokens=256,
        held_out_pairs=0, eval_prompts=0, test_prompts=0,
    )),
    "fine-tuning": Recipe("baselines", "finetuning", "gpt.finetuning",
        RECORDED | FIT | dict(lr=2e-5, weight_decay=0.01, micro_batch_size=8)),
    "RLOO": Recipe("engines", "rloo", "rl.rloo_engine", ANCHORED | dict(kl_coef=0.05)),
    "PPO": Recipe("engines", "ppo", "rl.ppo_engine",
        ANCHORED | SINGLY | dict(kl_coef=0.05, critic_lr=1e-5, updates_per_batch=1)),
    "REINFORCE++": Recipe("engines", "reinforce", "rl.reinforce_pp_engine",
        ANCHORED | SINGLY | dict(kl_coef=0.05)),
    "PG-GRPO": Recipe("engines", "pg", "rl.pg_grpo_engine", ANCHORED | dict(preference_coef=0.1)),
    "single-model GRPO": Recipe("engines", "single", "rl.grpo_single_model_engine",
        SAMPLED | dict(kl_coef=1.0, stop_kl=None, updates_per_batch=1)),
    "LoRA": Recipe("engines", "lora", "rl.grpo_engine", ANCHORED | dict(lora_rank=16, lr=2e-4)),
    UNPRICED: Recipe("exploit", "unpriced", "rl.grpo_engine",
        ANCHORED | dict(missing_eos_penalty=0.0, stop_kl=None)),
    "KD-GRPO": Recipe("teacher", "kd", "rl.kd_grpo_engine",
        TAUGHT | dict(kl_coef=0.04, pretraining_coef=0)),
    "on-policy distillation": Recipe("teacher", "distilled", "rl.on_policy_distillation_engine",
        TAUGHT | SINGLY | dict(kl_coef=0)),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PreferencesConfig(StudyFlags):
    """Steer a published chat model by preference pairs, and let unseen judges compare."""

    model: Path = RUNS / "smollm2"
    """Folder of the chat model, in Hugging Face's layout."""
    pairs: Path = Path("instruction-data-with-preference.json")
    """A JSON list of instruction, input, output, chosen, rejected."""
    also: tuple[Path, ...] = ()
    """Other runs from the same model, to be judged as well. NAME-1 is another seed of NAME."""
    steps: AtLeastOne = 24
    """Batches of 32 answers of every engine that samples."""
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    """Of all jobs."""
    device: str = "auto"
    """auto (cuda, then mps, then cpu) or a device name."""


# --- the pairs ------------------------------------------------------------------------------------


def drawn(text: str) -> int:
    return zlib.crc32(text.encode())


def write_pairs(config: PreferencesConfig) -> dict[str, int]:
    """Write the files of pairs that jobs read, and return how many pairs of each are to train on.

    Prompts are in the chat model's form, by which every command splits them. The held-out ones are in each
    file.
    """
    chat, rows = ModelFolder.open(config.model).tokenizer().chat, []
    for row in read_json(config.pairs):
        asked = instruction_text(row["instruction"], row["input"])
        answers = {name: row[name].strip() for name in ("output", "chosen", "rejected")}
        if answers["chosen"] != answers["rejected"]:
            prompt = instruction_prompt(asked, chat)
            rows.append({"prompt": prompt, SPLIT_KEY: prompt, "asked": asked} | answers)
    rows.sort(key=lambda row: drawn(f"order {row['prompt']}"))
    train = [row for row in rows if split_of(row["prompt"]) == "train"]
    held_out = [row for row in rows if split_of(row["prompt"]) != "train"]
    halves = [[row for row in train if drawn(f"half {row['prompt']}") % 2 == n] for n in (0, 1)]
    parts = {"all": train, "a": halves[0], "b": halves[1]}
    parts |= {str(count): train[:count] for count in CURVE}
    for name, part in parts.items():
        path = pairs_file(config, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{json.dumps(row)}\n" for row in [*part, *held_out])
        if not path.exists() or path.read_text("utf-8") != text:  # jobs may be reading it
            write_text(path, text)
    return {name: len(part) for name, part in parts.items()}


def pairs_file(config: PreferencesConfig, name: str) -> Path:
    return config.out.resolve() / "pairs" / f"{name}.jsonl"


def plan(config: PreferencesConfig) -> dict[str, Job]:
    """Every reward model, the start, best of 8, and every policy; those that others need come first."""
    counts, out, jobs = write_pairs(config), config.out.resolve(), dict[str, Job]()
    shared = dict(device=config.device, precision=config.precision)

    def add(name: str, stage: Stage, kind: str, *needs: str, **arguments: Any) -> None:
        jobs[name] = Job(name, kind, arguments, needs, frozenset([stage]))

    def reward_model(name: str, stage: Stage, pairs: str, seed: int, pooling: str) -> None:
        add(
            name, stage, "reward model", module="reward_model.reward_model_training", count=counts[pairs],
            until=(max(PASSES * counts[pairs] // BATCH, LEAST),), data=pairs_file(config, pairs),
            model=config.model.resolve(), lr=2e-5, weight_decay=0.01, micro_batch_size=16, pooling=pooling,
            seed=seed, **RECORDED, **FIT, **shared,
        )  # fmt: skip

    def policy(name: str, seed: int) -> None:
        of = POLICIES[name]
        parts = 3 if name == UNPRICED else 2  # of a run, after each of which it is measured
        until = [max(config.steps * part // parts, 1) for part in range(1, parts + 1)]
        until = [counts["a"] // BATCH] if of.module in OF_PAIRS else until
        flags = dict(of.flags, data=pairs_file(config, "a"), seed=seed, **shared)
        flags["model"] = config.model.resolve()
        needs: tuple[str, ...] = ("rm-a",)
        if of.stage == "teacher":
            flags, needs = flags | dict(teacher=out / "grpo-0"), (*needs, "grpo-0")
        elif of.module not in OF_PAIRS:
            flags |= dict(reward="model", reward_model=out / "rm-a")
        stage = of.stage if seed == 0 else "seeds"
        add(f"{of.folder}-{seed}", stage, "policy", *needs, module=of.module, until=until, **flags)

    reward_model("rm-a", "judges", "a", 0, "mean_score")
    reward_model("rm-b", "judges", "b", 1, "last_token")
    add("start", "policies", "start", "rm-a", model=config.model.resolve())
    seeded = [name for name, of in POLICIES.items() if of.stage == "policies"]
    for name in seeded:
        policy(name, 0)
    for count in CURVE:
        reward_model(f"rm-{count}", "curve", str(count), 0, "last_token")
    for seed in range(1, config.seeds):
        for name in seeded:
            policy(name, seed)
    add("best", "baselines", "best of", "rm-a", model=config.model.resolve(), n=BEST_OF)
    for name in [name for name in POLICIES if name not in seeded]:
        policy(name, 0)
    for pooling, short in (("mean_score", "mean"), ("last_token", "last")):
        for seed in range(config.seeds):
            reward_model(f"rm-all-{short}-{seed}", "poolings", "all", seed, pooling)
    return jobs


# --- one job --------------------------------------------------------------------------------------


def do(config: PreferencesConfig, job: Job, folder: Path) -> None:
    """Train what the job trains, part by part, and measure it after each; measured-STEPS.json."""
    device = open_device(config.device, config.precision)
    if job.stage in ("start", "best of"):
        bench = Bench(config, device)
        found = bench.measure(bench.start, job.arguments.get("n", 1))
        write_json(folder / "measured-0.json", found)
        return
    for steps in job.arguments["until"]:
        path = folder / f"measured-{steps}.json"
        if not path.exists():
            cpu = train(job, folder, steps)
            if job.stage == "reward model":
                found = accuracy(folder, config, device)
                found["train_pairs"] = job.arguments["count"]
            else:
                found = Bench(config, device).measure(open_model(folder, device)[0])
            write_json(path, found | {"steps": steps, "cpu_minutes": cpu / 60})
        if read_jsonl(folder / "metrics.jsonl")[-1]["step"] < steps:
            break  # it has left the KL limit, and cannot go on
    (folder / FINISHED_STATE).unlink(missing_ok=True)  # 2 GB


def flags_of(job: Job, steps: int) -> list[str]:
    """The command line of a job's command, up to so many steps."""
    own = ("module", "until", "count")
    return words({k: v for k, v in job.arguments.items() if k not in own} | {"steps": steps})


def train(job: Job, folder: Path, steps: int) -> float:
    """Run the job's command from where it was; returns its CPU seconds."""
    module, log = job.arguments["module"], folder.with_name(f"{folder.name}-run.log")
    begun = any((folder / name).exists() for name in (STATE_FILE, MODEL_FILE))
    flags = [*flags_of(job, steps), "--out", str(folder), *["--resume"] * begun]
    wall, cpu = run_into_log(module, [sys.executable, "-m", module, *flags], log, append=begun)
    return wall if cpu is None else cpu


def accuracy(folder: Path, config: PreferencesConfig, device: torch.device) -> dict[str, Any]:
    """How a reward model orders the held-out pairs, and how the longer answer does.

    Those of the validation split are among them: nothing is chosen by them.
    """
    model, tokenizer = load_reward_model(folder, device)
    records = read_preferences(pairs_file(config, "all")).records
    pairs = encode_pairs([r for r in records if split_of(r.prompt) != "train"], tokenizer)
    with precision(device, config.precision):
        chosen, rejected, batch = score_pairs(model, pairs, tokenizer.eos_id, ROWS)
    report = preference_report(chosen, rejected, batch.lengths.cpu(), pairs, float(model.std))
    names = ("pairs", "accuracy", "accuracy_interval", "length_accuracy", "calibration_error")
    return {name: report.numbers[name] for name in names}


# --- the judges -----------------------------------------------------------------------------------

# In chosen answers of the training pairs at least five times as often as in rejected ones, but for
# could, please and thank; glad and certainly are in none of them.
POLITE = frozenset(
    "i'd i'm indeed may kindly happy glad would could help assist suggest please thank lovely "
    "appreciate clarify delighted certainly".split()
)
FUNCTION_WORDS = frozenset(
    "a an the is are was were be been being am do does did to of in on at by for from with as that this "
    "these those it its he she they we you i his her their our your my me him them and or but not no so if "
    "then than there here can will shall should must have has had what which who whom whose how when where "
    "why into about over up out very".split()
)


def polite_words(text: str) -> int:
    return sum(word in POLITE for word in words_in(text))


def is_right(meta: Mapping[str, str], answer: str) -> bool:
    """Whether an answer has at least half of the words that the reference answer adds to the question.

    Function words and polite ones do not count; where nothing is added, all other words of it do.
    """

    def content(text: str) -> set[str]:  # 3,000 is one word
        return set(words_in(re.sub(r"(?<=\d),(?=\d{3})", "", text))) - FUNCTION_WORDS - POLITE

    wanted = content(meta["output"])
    new = wanted - content(meta["asked"]) or wanted
    return 2 * len(new & content(answer)) >= len(new)


def test_prompts(config: PreferencesConfig) -> list[PromptRecord]:
    records = read_prompts(pairs_file(config, "all")).records
    test = {record.prompt: record for record in records if split_of(record.prompt) == "test"}
    return list(test.values())


class Bench:
    """The start, the reward model of training, and the test prompts that every policy answers."""

    def __init__(self, config: PreferencesConfig, device: torch.device) -> None:
        self.precision, out = config.precision, config.out.resolve()
        self.start, self.tokenizer = open_model(config.model, device)
        model = load_reward_model(out / "rm-a", device)[0]
        self.proxy = RewardModelReward(model, ROWS, config.precision)
        self.prompts = test_prompts(config)
        self.params = SamplingParams(TEMPERATURE, max_new_tokens=LONGEST)

    def answers(self, policy: GPT, samples: int = 1) -> list[Rollout]:
        """Sampled with the same random numbers for every policy."""
        size, generator = 2 * ROWS // samples, make_generator(0, "evaluation")
        batches = [self.prompts[i : i + size] for i in range(0, len(self.prompts), size)]
        sample = partial(sample_rollout, policy, self.tokenizer)
        with precision(policy.device, self.precision):
            return [sample(batch, self.params, samples, generator) for batch in batches]

    @torch.no_grad()
    def measure(self, policy: GPT, samples: int = 1) -> dict[str, Any]:
        """Every number of a policy but those of the unseen judges, and its answers.

        Of several `samples` the one that the reward model of training likes best is the answer.
        """
        rollouts = self.answers(policy, samples)
        if samples > 1:
            best = [self.proxy(rollout).view(-1, samples).argmax(1) for rollout in rollouts]
            rows = [samples * torch.arange(len(each)) + each for each in best]
            rollouts = [select_rows(*pair) for pair in zip(rollouts, rows, strict=True)]
        texts = [text for rollout in rollouts for text in rollout.responses]
        tokens = sum(rollout.tokens for rollout in rollouts)
        kl = of_start = 0.0
        models = (policy, self.start)  # the sampler's own log-probs round otherwise in bfloat16
        scores = [partial(token_log_probs, model, temperature=TEMPERATURE) for model in models]
        for rollout in rollouts:
            with precision(policy.device, self.precision):
                own, expected = (
                    score_in_micro_batches(score, rollout.sequences, ROWS) for score in scores
                )
            kl += float(masked_sum(own - expected, rollout.response_mask).sum())
            of_start += float(expected.sum())
        at_most = math.log(samples) - 1 + 1 / samples  # of best of n (Stiennon et al. 2020, G.3)
        return {
            "proxy": torch.cat([self.proxy(rollout) for rollout in rollouts]).tolist(),
            "kl": at_most if samples > 1 else kl / len(texts),
            "perplexity": math.exp(-of_start / tokens),
            "distinct_2": distinct(texts, 2),
            "tokens": tokens / len(texts),
            "ended": [bool(e) for rollout in rollouts for e in rollout.has_eos],
            "answers": texts,
        }


class Judge:
    """The reward model that no engine is paid by, and its verdicts, which are kept in files.

    It reads the text of an answer, behind it the end if there was one. All of its pairs have ended.
    """

    def __init__(self, config: PreferencesConfig) -> None:
        self.config, self.out = config, config.out.resolve()
        self.prompts = [record.prompt for record in test_prompts(config)]

    @cached_property
    def model(self) -> tuple[RewardModel, Tokenizer]:
        device = open_device(self.config.device, self.config.precision)
        return load_reward_model(self.out / "rm-b", device)

    def scores(self, path: Path) -> list[float]:
        """Of the answers in a measured-STEPS.json."""
        kept = self.out / "judged" / f"{path.parent.name}-{path.name}"
        by = [digest(self.out / "rm-b.json"), digest(path)]
        if not kept.exists() or read_json(kept)["by"] != by:
            found = read_json(path)
            judged = self.judge(found["answers"], found["ended"])
            write_json(kept, {"by": by, "scores": judged})
        scores: list[float] = read_json(kept)["scores"]
        return scores

    def judge(self, answers: Sequence[str], ended: Sequence[bool]) -> list[float]:
        model, tokenizer = self.model
        both = zip(answers, ended, strict=True)
        read = [tokenizer.encode(answer) + [tokenizer.eos_id] * end for answer, end in both]
        prompts = [tokenizer.encode_prompt(prompt) for prompt in self.prompts]
        batch = collate_responses(prompts, read, tokenizer.eos_id).to(model.device)
        with precision(model.device, self.config.precision):
            found: list[float] = score_in_micro_batches(model, batch, ROWS).tolist()
        return found


def compared(found: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """How often each reward model prefers a policy's answer to the start's; a tie counts half.

    The same answer is one, although its scores differ in their last digits where its batch does.
    """
    both = [[*zip(x["answers"], x["ended"], strict=True)] for x in (found, before)]
    other = torch.tensor([one != two for one, two in zip(*both, strict=True)])
    by_judge, by_proxy = (
        win_rate(*(torch.tensor(x[key]) * other for x in (found, before)))
        for key in ("judge", "proxy")
    )
    count = len(found["judge"])
    about = {"interval": wilson_interval(by_judge * count, count), "prompts": count}
    return {"preferred": by_judge, "preferred_by_proxy": by_proxy} | about


# --- the recording --------------------------------------------------------------------------------

LISTS = ("proxy", "judge", "polite", "right", "ended")  # of each answer; recorded are their means
ANSWERS = ("answers", "judge", "right")  # what is recorded of an answer


def without_seed(name: str) -> str:
    return re.sub(r"-\d+$", "", name)


def check_also(config: PreferencesConfig, jobs: Mapping[str, Job]) -> None:
    taken, names = {without_seed(name) for name in jobs}, set[str]()
    for folder in config.also:
        if not (folder / MODEL_FILE).is_file():
            raise UserError(
                f"--also {folder}: no {MODEL_FILE} there; give folders of finished runs"
            )
        if without_seed(folder.name) in taken or folder.name in names:
            raise UserError(f"--also {folder}: another run here has that name; rename the folder")
        names.add(folder.name)


def also_measured(config: PreferencesConfig) -> dict[str, Path]:
    """Where the numbers of each run of --also are; those that are not yet there are measured."""
    files = {
        folder: config.out / folder.name / f"measured-{digest(folder / MODEL_FILE)!s:.8}.json"
        for folder in config.also
    }
    if missing := [folder for folder, path in files.items() if not path.exists()]:
        device = open_device(config.device, config.precision)
        bench = Bench(config, device)
        for folder in missing:
            write_json(files[folder], bench.measure(open_model(folder, device)[0]))
    return {folder.name: path for folder, path in files.items()}


def collect(config: PreferencesConfig, jobs: Mapping[str, Job]) -> dict[str, Any]:
    """What all jobs that are done have measured: reward models, and of policies every point."""
    check_also(config, jobs)
    out = config.out
    found: dict[str, Any] = {"reward models": {}, "policies": {}, "answers": {}}
    asked = [record.meta for record in test_prompts(config)]
    found["asked"] = [{name: meta[name] for name in ("asked", "output")} for meta in asked[:SHOWN]]
    judge, start = Judge(config), dict[str, Any]()
    files = {name: [*out.glob(f"{name}/measured-*.json")] for name in jobs}
    files |= {name: [path] for name, path in also_measured(config).items()}
    for name, paths in files.items():
        points = {path: read_json(path) for path in paths}
        if name in jobs and jobs[name].stage == "reward model":
            about = {key: jobs[name].arguments[key] for key in ("pooling", "seed")}
            found["reward models"][name] = points.popitem()[1] | about
            continue
        listed, minutes = sorted(points.values(), key=lambda point: point.get("steps", 0)), 0.0
        for path, point in points.items():
            point["judge"], texts = judge.scores(path), point["answers"]
            point["polite"] = [*map(polite_words, texts)]
            point["right"] = [is_right(*both) for both in zip(asked, texts, strict=True)]
        start = start or listed[0]
        kept = zip(*(listed[-1][key] for key in ANSWERS), strict=True)
        found["answers"][name] = [dict(zip(ANSWERS, row, strict=True)) for row in kept][:SHOWN]
        found["policies"][name] = [point | compared(point, start) for point in listed]
        for point in found["policies"][name]:
            del point["answers"]
            point |= {key: statistics.fmean(point[key]) for key in LISTS}
            if "steps" in point:  # those of the parts before it, too
                minutes = point["cpu_minutes"] = minutes + point["cpu_minutes"]
    return rounded(found)


def by_policy(found: Mapping[str, Any]) -> dict[str, list[list[dict[str, Any]]]]:
    """The points of every seed by the name of its policy, in the order of POLICIES."""
    names = {"start": START, "best": BEST} | {of.folder: name for name, of in POLICIES.items()}
    groups: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in names.values()}
    for job, points in found["policies"].items():
        folder = without_seed(job)
        groups.setdefault(names.get(folder, folder), []).append(points)
    return {name: runs for name, runs in groups.items() if runs}


COLUMNS = (  # title, measurement, digits
    ("preferred by the unseen judge", "preferred", 2), ("by the study's payer", "preferred_by_proxy", 2),
    ("right", "right", 2), ("polite words", "polite", 2), ("KL, nats", "kl", 1), ("ended", "ended", 2),
    ("perplexity of the start", "perplexity", 1), ("CPU minutes", "cpu_minutes", 0),
)  # fmt: skip


def table(found: Mapping[str, Any]) -> list[str]:
    """Markdown: a line per policy, the mean over its seeds and their range."""
    lines = []
    for name, runs in by_policy(found).items():
        last = [points[-1] for points in runs]
        cells = [  # the KL of best of n is a bound
            "at most " * ((name, key) == (BEST, "kl"))
            + spread([p[key] for p in last if key in p], n)
            for _, key, n in COLUMNS
        ]
        lines.append([name, str(len(runs)), *cells])
    return markdown(["policy", "seeds", *(title for title, _, _ in COLUMNS)], lines)


def table_of_judges(found: Mapping[str, Any]) -> list[str]:
    """Markdown: a line per number of pairs and pooling, the mean of its seeds and their range."""
    groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in found["reward models"].values():
        groups.setdefault((row["train_pairs"], row["pooling"]), []).append(row)
    lines = []
    for (count, pooling), rows in sorted(groups.items()):
        numbers = [str(n) for n in (count, pooling, len(rows), rows[0]["steps"])]
        interval = " to ".join(f"{bound:.3f}" for bound in rows[0]["accuracy_interval"])
        cells = [
            spread([row[key] for row in rows], n)
            for key, n in (("accuracy", 3), ("cpu_minutes", 0))
        ]
        lines.append([*numbers, cells[0], interval, cells[1]])
    titles = ["pairs", "pooling", "seeds", "steps", "held-out accuracy", "95% of the first"]
    return markdown([*titles, "CPU minutes"], lines)


def draw(found: Mapping[str, Any], folder: Path) -> None:
    """What goes along with the judge's verdict over all policies, and the run that exploits its payer."""
    from matplotlib.figure import Figure

    policies = by_policy(found)
    unpriced = policies.get(UNPRICED, [])
    with styled():
        figure = Figure(figsize=(10, 4.2) if unpriced else (5, 4.2))
        ends, *partings = figure.subplots(1, 2 if unpriced else 1, squeeze=False)[0]
        draw_ends(ends, policies)
        for points, parting in zip(unpriced, partings, strict=False):  # one seed
            for key, label, colour in (
                ("preferred_by_proxy", "by the reward model that pays", COLOURS["proxy"]),
                ("preferred", "by the unseen judge", SERIES[1]),
            ):
                xs, ys = ([p[name] for p in points] for name in ("steps", key))
                parting.plot([0, *xs], [0.5, *ys], marker="o", label=label, color=colour)
            parting.legend(title="preferred to the start", loc="lower left")
            parting.set(xlabel="step", ylabel="share of answers", ylim=(0, 1))
            parting.set_title("Without a price on cut-offs the judge turns away")
        figure.savefig(folder / "preferences.png", dpi=150)


def draw_ends(axis: Any, policies: Mapping[str, list[list[dict[str, Any]]]]) -> None:
    """A point for each trained policy: does the judge like it, and do its answers end?"""
    named = {
        "the four commands": COLOURS["policy"], UNPRICED: COLOURS["bad"], "DPO": SERIES[0],
        START: COLOURS["reference"],
    }  # fmt: skip
    for name, runs in policies.items():
        if name == BEST:
            continue
        colour = named.get(name, SERIES[2])
        points = [points[-1] for points in runs]
        shown = name if name in named else None
        xs, ys = ([point[key] for point in points] for key in ("ended", "preferred"))
        axis.plot(xs, ys, "o", color=colour, label=shown, markersize=8)
    axis.plot([], [], "o", color=SERIES[2], label="other engines")
    axis.axhline(0.5, color=COLOURS["exact"], linewidth=1, linestyle=":")
    axis.set(xlabel="share of its answers that end", ylabel="preferred by the unseen judge")
    axis.set(xlim=(-0.03, 1.03), ylim=(0.2, 0.85))
    axis.set_title("The judge prefers policies whose answers end")
    axis.legend(loc="upper left")


def tables(found: Mapping[str, Any]) -> dict[str, list[str]]:
    return {"reward models": table_of_judges(found), "preferences": table(found)}


STUDY = Study(
    flags=PreferencesConfig, usual={"jobs": 1},
    quick={"seeds": 1, "steps": 4, "parts": ("judges", "policies")}, plan=plan, do=do, collect=collect,
    tables=tables, draw=draw, recorded=KEPT, shares_threads=True, resumes=True,
)  # fmt: skip
