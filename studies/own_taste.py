"""From sixty pairs to a policy with a taste: people whose taste is known answer reward_model.annotate.

    python -m studies own_taste --demo runs/demo       after `make demo`

A person reads what the command prints and answers through a pipe; two answers that the taste does not tell
apart are a tie. From the first 30, 60, 120 and 240 rows a judge goes on from the demo's reward model, by
the defaults of reward_model_training; at 60 two more start from the base model, or have as many of the
demo's pairs replayed. Measured on pairs of the base model's answers to validation prompts: how often the
judge agrees with the taste. Then GRPO from the base model on each judge of 60: the share of answers to
test prompts that have the taste, and the KL.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from data.worlds import reviews
from gpt.folder import open_model
from gpt.generate import SamplingParams
from gpt.recipes import config_of
from harness.device import open_device
from harness.errors import UserError
from harness.files import read_json, read_jsonl, read_object, write_json
from harness.paths import ANSWERS, REPOSITORY, RUNS
from harness.seeds import make_generator
from reward_model.accuracy_report import score_pairs, wins
from reward_model.continual import draw_history, read_visits
from reward_model.pairs import Labelled, PairSampling, TokenPair, pair_as_text, sample_pairs
from reward_model.questions import write_rows
from reward_model.reward_model_training import RewardModelConfig
from reward_model.reward_model_training import main as train_judge
from reward_model.scalar_head import load_reward_model
from studies.pages import DOCS, Numbers, markdown
from studies.runner import Job, Study, StudyFlags

TASTES = ("short", "name", "no_color", "two_sentences", "exclaims")
JUDGES = {"30": 30, "60": 60, "120": 120, "240": 240, "base": 60, "replay": 60}  # rows of each
HELD_OUT, TEST_PROMPTS, STEPS = 600, 256, 50


def liking(taste: str, prompt: str, text: str) -> float:
    """How much a person likes an answer; the largest value, 0, is what counts as having the taste.

    No answer of this world has an adjective of colour; some have a sentence on the product's color.
    """
    record = reviews.read_prompt(prompt)
    assert record is not None
    if taste == "short":
        return -max(len(text.split()) - 8, 0)
    if taste == "two_sentences":
        return -abs(len(re.findall(r"\w[^.?!]*", text)) - 2)
    named, colour = record.meta["name"] in text, "color" in text
    return {"name": named, "no_color": not colour, "exclaims": "!" in text}[taste] - 1


@dataclass(frozen=True, kw_only=True)
class OwnTasteConfig(StudyFlags):
    """Judges from few pairs of people whose taste is known, and policies from these judges."""

    demo: Path = RUNS / "demo"
    """Folder of a demo: its base model, and its reward model with the pairs."""


def plan(config: OwnTasteConfig) -> dict[str, Job]:
    """For each seed and taste the person, the judges from what they answered, and a policy."""
    demo, out, jobs = config.demo.resolve(), config.out, list[Job]()
    code = ("reward_model.annotate", "reward_model.reward_model_training", "studies.own_taste")
    for seed in range(config.seeds):
        for taste in TASTES:
            about: dict[str, Any] = dict(taste=taste, seed=seed, demo=demo)
            person = Job(f"person-{taste}-{seed}", "person", about, code=code)
            jobs.append(person)
            for name in JUDGES:
                asked = about | dict(judge=name, person=out / person.name)
                needs, parts = (person.name,), frozenset(["judges"])
                jobs.append(Job(f"{name}-{taste}-{seed}", "judge", asked, needs, parts, code=code))
            judge = f"60-{taste}-{seed}"
            flags = dict(
                data="reviews", model=demo / "pretraining", seed=seed, steps=STEPS, ranks=1,
                reward_model=out / judge / "model", eval_every=STEPS, test_prompts=TEST_PROMPTS,
            )  # fmt: skip
            name, parts = f"grpo-{taste}-{seed}", frozenset(["policies"])
            jobs.append(Job(name, "rl.grpo_engine", flags, (judge,), parts))
    return {job.name: job for job in jobs}


def answer(taste: str, flags: Sequence[object]) -> None:
    """Be a person at the command: read each prompt and its two answers, type 1, 2 or =."""
    command = [sys.executable, "-m", "reward_model.annotate", "--plain", *map(str, flags)]
    pipe: Any = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    with subprocess.Popen(command, **pipe) as process:
        assert process.stdin is not None and process.stdout is not None
        parts: list[list[str]] = [[]]  # what was printed since the last key, split at empty lines
        for line in process.stdout:
            if line.strip():
                parts[-1].append(line.strip())
                continue
            parts.append([])
            read = [
                " ".join(part[1:]) for part in parts if part and part[0][:5] in ("pair ", "answe")
            ]
            if len(read) == 3:
                one, two = (liking(taste, read[0], text) for text in read[1:])
                process.stdin.write("=\n" if one == two else "1\n" if one > two else "2\n")
                process.stdin.flush()
                parts = [[]]
    if process.returncode:
        raise UserError(f"{' '.join(command)} ended with {process.returncode}: run it to see why")


def do(config: OwnTasteConfig, job: Job, folder: Path) -> None:
    """A person, or a judge and how often it agrees with the person's taste on the held-out pairs."""
    about: Mapping[str, Any] = job.arguments
    demo, taste, seed = Path(about["demo"]), about["taste"], int(about["seed"])
    base, judge = demo / "pretraining", demo / "reward_model"
    if job.stage == "person":
        flags = ["--model", base, "--out", folder / "mine.jsonl", "--pairs", max(JUDGES.values())]
        return answer(taste, [*flags, "--seed", seed, "--device", "cpu"])
    name = about["judge"]
    rows: list[Any] = read_jsonl(Path(about["person"]) / "mine.jsonl")[: JUDGES[name]]
    usable = [row for row in rows if row["verdict"] in ("first", "second")]
    if name == "replay":  # as many old pairs as new ones
        rows += draw_history(read_visits(judge / "pairs.jsonl"), len(usable), random.Random(seed))
    write_rows(folder / "rows.jsonl", rows)
    more: dict[str, Any] = (
        dict(model=str(base), steps=100) if name == "base" else dict(model=str(judge))
    )
    training = config_of(
        RewardModelConfig, data=str(folder / "rows.jsonl"), out=folder / "model",
        seed=seed, device="cpu", ranks=1, **more,
    )  # fmt: skip
    found: dict[str, Any] = dict(taste=taste, judge=name, usable=len(usable), agrees=None)
    try:
        model, tokenizer = load_reward_model(train_judge(training))
        pairs = held_out(base, taste, seed)
        chosen, rejected, _ = score_pairs(model, pairs, tokenizer.eos_id, 256)
        found |= {"agrees": float(wins(chosen - rejected).mean()), "of": len(pairs)}
    except UserError as error:  # too few pairs
        found |= {"refused": str(error)}
    write_json(folder / "agreement.json", found)


def held_out(base: Path, taste: str, seed: int) -> list[TokenPair]:
    """Pairs of answers to validation prompts that the taste tells apart, the preferred one chosen."""
    policy, tokenizer = open_model(base, open_device("cpu"))
    sampled = sample_pairs(
        policy, tokenizer, reviews.prompts("validation"), HELD_OUT, lambda *_: Labelled(True),
        PairSampling(SamplingParams(max_new_tokens=48)),
        generator=make_generator(seed, "held-out"), rng=random.Random(seed),
    )  # fmt: skip
    found = []
    for pair in (pair for batch in sampled for pair in batch):
        row = pair_as_text(pair, tokenizer)
        one, two = (liking(taste, row["prompt"], row[name]) for name in ("chosen", "rejected"))
        if one != two:
            turned = replace(pair, chosen=pair.rejected, rejected=pair.chosen)
            found.append(pair if one > two else turned)
    return found


def shares(folder: Path, taste: str) -> dict[str, Any]:
    """The share of answers to test prompts that have the taste, before and after, and the KL in nats."""
    rows, kl = read_jsonl(folder / ANSWERS), read_object(folder / "report.json")["after"]["kl"]
    found: dict[str, Any] = {"taste": taste, "kl": kl, "of": len(rows)}
    for when, name in (("before", "before"), ("after", "response")):
        found[when] = mean(liking(taste, row["prompt"], row[name]) == 0 for row in rows)
    return found


def collect(config: OwnTasteConfig, done: Mapping[str, Job]) -> dict[str, Any]:
    """What each judge agreed in, and what each policy learned."""
    out, jobs = config.out, done.values()
    judges = [read_json(out / job.name / "agreement.json") for job in jobs if job.stage == "judge"]
    policies = [shares(out / j.name, j.name.split("-")[1]) for j in jobs if j.is_command]
    return {"judges": judges, "policies": policies}


def tables(numbers: Numbers) -> dict[str, list[str]]:
    """A line for each taste: every judge's agreement, and the way of the policies."""
    lines = []
    for taste in TASTES:
        line = [taste]
        for name in JUDGES:
            asked = [r for r in numbers["judges"] if (r["taste"], r["judge"]) == (taste, name)]
            line.append(
                " ".join(f"{r['agrees']:.2f} of {r['usable']}" for r in asked if r["agrees"])
            )
        of = [r for r in numbers["policies"] if r["taste"] == taste]
        line.append(", ".join(f"{r['before']:.2f} to {r['after']:.2f}, {r['kl']:.1f}" for r in of))
        lines.append(line)
    return {"own taste": markdown(["taste", *JUDGES, "share, KL of each policy"], lines)}


STUDY = Study(
    flags=OwnTasteConfig, quick={"seeds": 1, "only": ("short",)}, plan=plan, do=do, collect=collect,
    tables=tables, recorded=DOCS / "own_taste.json", resumes=True,
)  # fmt: skip
