"""From sixty pairs to a policy with a taste: people whose taste is known answer reward_model.annotate.

    python -m studies.own_taste --demo runs/demo       after `make demo`

Each person answers through the command, whose input is a pipe; two answers that the taste does not tell
apart are a tie. From the first 30, 60, 120 and 240 rows a judge goes on from the demo's reward model, by
the defaults of reward_model_training; at 60 two more start from the base model, or have as many of the
demo's pairs replayed. Measured on pairs of the base model's answers to validation prompts: how often the
judge agrees with the taste. Then GRPO from the base model on each judge of 60: the share of answers to
test prompts that have the taste, and the KL. numbers.json holds all.
"""

from __future__ import annotations

import dataclasses
import random
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from data.files.read import read_preferences, split_records
from data.sources import from_preset
from data.worlds import reviews
from gpt.checkpoint import load_policy
from gpt.generate import SamplingParams
from gpt.lora import thaw
from gpt.tokenizer import Tokenizer
from harness.command_line import run_command
from harness.device import open_device
from harness.files import append_jsonl, display_path, read_json, read_jsonl, read_object, write_json
from harness.metric_log import MetricLog
from harness.paths import ANSWERS, REPOSITORY, RUNS
from harness.seeds import make_generator
from reward_model import reward_model_training
from reward_model.accuracy_report import score_pairs
from reward_model.annotate import AnnotateConfig, in_turn, swapped
from reward_model.continual import draw_history, read_visits
from reward_model.pairs import (
    Labelled,
    PairSampling,
    TokenPair,
    encode_pairs,
    pair_as_text,
    sample_pairs,
)
from reward_model.reward_model_training import FEWEST, PRESETS, RewardModelConfig, train
from reward_model.scalar_head import RewardModel, load_reward_model
from studies.pages import markdown
from studies.runner import Job, StudyFlags, finished, go

SIZES = (30, 60, 120, 240)
OF_60 = ("60", "base", "replay")
HELD_OUT, TEST_PROMPTS, STEPS = 600, 256, 50


def liking(taste: str, prompt: str, text: str) -> float:
    """How much a person likes an answer. The largest value is what counts as having the taste.

    No answer of this world has an adjective of colour; some have a sentence on the product's color.
    """
    record = reviews.read_prompt(prompt)
    assert record is not None
    if taste == "short":
        return -max(len(text.split()) - 8, 0)
    if taste == "two_sentences":
        return -abs(len(re.findall(r"\w[^.?!]*", text)) - 2)
    has = {
        "name": record.meta["name"] in text,
        "no_color": "color" not in text,
        "exclaims": "!" in text,
    }
    return has[taste] - 1


TASTES = ("short", "name", "no_color", "two_sentences", "exclaims")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnTasteConfig(StudyFlags):
    """Judges from few pairs of people whose taste is known, and policies from these judges."""

    demo: Path = RUNS / "demo"
    """Folder of a demo: its base model, and its reward model with the pairs."""
    first_seed: int = 0
    """The first of the seeds."""
    out: Path = RUNS / "own_taste"
    """Folder of the stages and of numbers.json."""


def plan(config: OwnTasteConfig) -> dict[str, Job]:
    """For each seed the people with their judges, then a policy of each judge of 60."""
    demo, out, jobs = config.demo.resolve(), config.out.resolve(), list[Job]()
    for seed in range(config.first_seed, config.first_seed + config.seeds):
        code = ("reward_model.annotate", "reward_model.questions", "studies.own_taste")
        flags: dict[str, Any] = dict(seed=seed, demo=demo)
        jobs.append(Job(f"judges-{seed}", "judges", flags, (), frozenset(["judges"]), (), code))
        for taste in TASTES:
            flags = dict(
                data="reviews", policy=demo / "pretraining", seed=seed, steps=STEPS, ranks=1,
                reward_model=out / f"judges-{seed}" / f"{taste}-60", eval_every=STEPS,
                test_prompts=TEST_PROMPTS,
            )  # fmt: skip
            needs, parts = (f"judges-{seed}",), frozenset(["policies"])
            jobs.append(Job(f"grpo-{taste}-{seed}", "rl.grpo_engine", flags, needs, parts))
    return {job.name: job for job in jobs}


def keys(config: AnnotateConfig, asked: Sequence[Mapping[str, Any]]) -> str:
    """What a person types, named after the taste: the answer they like more, or a tie."""
    typed = ""
    for number, swap, _ in in_turn(config):
        row = swapped(dict(asked[number])) if swap else asked[number]
        one, two = (liking(config.annotator, row["prompt"], row[n]) for n in ("chosen", "rejected"))
        typed += f"{'=' if one == two else '1' if one > two else '2'}\n"
    return typed


def annotate(policy: Path, out: Path, taste: str, seed: int) -> list[dict[str, Any]]:
    """The rows of one person; everyone is asked about the same pairs."""
    config = AnnotateConfig(pairs=SIZES[-1], seed=seed, annotator=taste)
    words = ["-m", "reward_model.annotate", "--policy", policy, "--out", out, "--device", "cpu"]
    words += ["--pairs", config.pairs, "--seed", seed, "--annotator", taste]
    questions = out.with_suffix(".questions.jsonl")
    for _ in range(1 if questions.exists() else 2):  # the first time nobody answers
        typed = keys(config, read_jsonl(questions)[1:]) if questions.exists() else ""
        subprocess.run(
            [sys.executable, *map(str, words)], input=typed, text=True, check=True, cwd=REPOSITORY,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
    return [row for row in read_jsonl(out) if row["annotator"] == taste]


def do(job: Job, folder: Path) -> None:
    """All people and judges of a seed; how often each judge agrees on the held-out pairs."""
    demo, seed = Path(job.arguments["demo"]), int(job.arguments["seed"])
    policy, tokenizer = load_policy(demo / "pretraining", open_device("cpu"))
    sampled = sample_pairs(
        policy, tokenizer, reviews.prompts("validation"), HELD_OUT, lambda *_: Labelled(True),
        PairSampling(SamplingParams(max_new_tokens=48)),
        generator=make_generator(seed, "held-out"), rng=random.Random(seed),
    )  # fmt: skip
    pairs = [pair for batch in sampled for pair in batch]
    visits, found = read_visits(demo / "reward_model" / "pairs.jsonl"), list[dict[str, Any]]()
    for taste in TASTES:
        rows = annotate(demo / "pretraining", folder / "mine.jsonl", taste, seed)
        held_out = preferred(pairs, taste, tokenizer)
        for name in dict.fromkeys([*map(str, SIZES), *OF_60]):
            given: list[Any] = rows[: 60 if name in OF_60 else int(name)]
            usable = sum(row["verdict"] in ("first", "second") for row in given)
            if name == "replay":  # as many old pairs as new ones
                given = [*given, *draw_history(visits, usable, random.Random(seed))]
            file = folder / f"{taste}-{name}.jsonl"
            append_jsonl(file, given)
            config = from_preset(
                RewardModelConfig, PRESETS, "tiny", data=str(file), seed=seed, device="cpu", ranks=1,
                base=demo / "reward_model", out=folder / f"{taste}-{name}",
            )  # fmt: skip
            if name == "60":  # which a policy is trained on
                judge, _ = load_reward_model(reward_model_training.main(config))
            else:
                records = split_records(read_preferences(file).records)["train"]
                training = encode_pairs(records, tokenizer)
                judge, _ = load_reward_model(demo / "reward_model")
                if name == "base":
                    generator = make_generator(seed, "head")
                    judge = RewardModel.from_policy(policy, config.pooling, generator)
                thaw(judge)
                log = MetricLog((2 if name == "base" else 1) * FEWEST)
                train(judge, training, config, log, eos_id=tokenizer.eos_id)
            chosen, rejected, _ = score_pairs(judge, held_out, tokenizer.eos_id, 256)
            agrees = float((chosen > rejected).float().mean())
            row = dict(taste=taste, judge=name, usable=usable, agrees=agrees, of=len(held_out))
            found.append(row)
    write_json(folder / "agreement.json", found)


def preferred(pairs: Sequence[TokenPair], taste: str, tokenizer: Tokenizer) -> list[TokenPair]:
    """The pairs that the taste tells apart, the answer that it prefers as the chosen one."""
    found = []
    for pair in pairs:
        row = pair_as_text(pair, tokenizer)
        one, two = (liking(taste, row["prompt"], row[name]) for name in ("chosen", "rejected"))
        if one != two:
            turned = dataclasses.replace(pair, chosen=pair.rejected, rejected=pair.chosen)
            found.append(pair if one > two else turned)
    return found


def shares(folder: Path, taste: str) -> dict[str, Any]:
    """The share of answers to test prompts that have the taste, before and after, and the KL in nats."""
    rows, kl = read_jsonl(folder / ANSWERS), read_object(folder / "report.json")["after"]["kl"]
    before, after = (
        mean(liking(taste, row["prompt"], row[name]) == 0 for row in rows)
        for name in ("before", "response")
    )
    return {"taste": taste, "before": before, "after": after, "kl": kl, "of": len(rows)}


def main(config: OwnTasteConfig) -> None:
    jobs, out = plan(config), config.out.resolve()
    if not go(config, jobs, ("judges", "policies"), do, resume=True):
        return
    done = finished(jobs, out)
    judges = [row for n in jobs if n in done and n.startswith("judges")
              for row in read_json(out / n / "agreement.json")]  # fmt: skip
    policies = [shares(out / n, n.split("-")[1]) for n in jobs if n in done and n[:4] == "grpo"]
    write_json(out / "numbers.json", {"judges": judges, "policies": policies})
    names = list(dict.fromkeys(row["judge"] for row in judges))
    lines = []
    for taste in TASTES:
        line = [taste]
        for name in names:
            of = [r for r in judges if (r["taste"], r["judge"]) == (taste, name)]
            low = min(r["agrees"] for r in of)
            line += [
                f"{mean(r['agrees'] for r in of):.2f} ({low:.2f}; {mean(r['usable'] for r in of):.0f})"
            ]
        of = [r for r in policies if r["taste"] == taste]
        line += [" ".join(f"{r['before']:.2f} to {r['after']:.2f} at {r['kl']:.1f}" for r in of)]
        lines.append(line)
    print(*markdown(["taste", *names, "share and KL of each policy"], lines), sep="\n")
    print(f"wrote {display_path(out)}")


if __name__ == "__main__":
    run_command(main, OwnTasteConfig)
