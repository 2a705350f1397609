"""Real English: film reviews, from the raw files to a steered policy and the table that measures it.

    python scripts/imdb.py --data aclImdb                   the folder of the Large Movie Review Dataset
    python scripts/imdb.py --data aclImdb --budget small    the same code in minutes, for a smoke test

A tokenizer and a language model learn from the unlabelled reviews. Classifier A, the reward, learns
from one half of the labels on the language model's trunk; classifier B, the judge, from the other half
on a trunk of its own; n-gram regression on B's half is a third judge. GRPO (several seeds), PPO, RLOO
and DPO then make the language model's continuations positive by A's measure, and one run without a KL
penalty shows what over-optimisation looks like. Every stage is a script of this project with its own
folder. A stage that is finished is kept, and one that was interrupted is resumed. The results are
table.md and recordings.json (all numbers) in the run folder.
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import json
import math
import statistics
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import torch
from studies import runner
from studies.pages import markdown
from studies.recipes import Recipe, words
from studies.runner import once
from torch import Tensor

from data.collate import collate_documents
from data.labelled import LabelledText, read_labelled
from data.readers import read_text
from data.records import PromptRecord
from gpt.checkpoint import load_gpt
from gpt.corpus import open_prompts
from gpt.generate import SamplingParams
from gpt.log_probs import score_in_micro_batches, token_log_probs
from gpt.model import GPT
from gpt.pretraining import bytes_per_token, held_out_loss
from gpt.tokenizer import Tokenizer, load_tokenizer
from harness.command_line import run_command
from harness.device import open_device
from harness.errors import UserError
from harness.files import append_jsonl, display_path, read_jsonl, write_json, write_text
from harness.paths import RUNS
from harness.seeds import make_generator
from reward_model.ngrams import NgramRegression
from reward_model.pairs import TokenPair, pair_as_text
from reward_model.scalar_head import load_reward_model
from rl.batches.rollout import Rollout, sample_rollout
from rl.equations.kl import k1
from rl.equations.losses import row_sums
from rl.rewards.sources import RewardModelReward

VOCABULARY = 4096
NEW_TOKENS = 32
SHORTEST_PROMPT, LONGEST_PROMPT = 2, 8  # tokens
PROMPTS = 8000  # beginnings of reviews to steer from; about a tenth of them is measured on
UNSEEN = 8  # test prompts in the file of pairs
SHOWN = 8  # prompts whose answers are kept to be read
MEASURED = 512  # the most test prompts in the table, one answer each
STEERING: dict[str, Any] = dict(
    prompts_per_step=16, group_size=8, eval_every=5, eval_prompts=128, test_prompts=0,
    checkpoint_every=10, stop_kl=7,
)  # fmt: skip
# GRPO divides by the rewards' spread in a group, about 2 here: its 0.2 weighs like 0.4 in the others.
RECIPES = {
    "grpo": Recipe(
        "rl.grpo_engine", STEERING | dict(steps=100, lr=1.5e-4, minibatches=1, kl_coef=0.2)
    ),
    "ppo": Recipe("rl.ppo_engine", STEERING | dict(steps=80, lr=4e-5, kl_coef=0.4)),
    "rloo": Recipe(
        "rl.rloo_engine", STEERING | dict(steps=100, lr=1e-4, minibatches=1, kl_coef=0.4)
    ),
    "dpo": Recipe(
        "rl.dpo_engine", dict(steps=40, lr=2e-4, eval_every=5, eval_prompts=128, test_prompts=0)
    ),
    "unbounded": Recipe(
        "rl.grpo_engine", STEERING | dict(steps=30, lr=4e-4, kl_coef=0, stop_kl=None)
    ),
}
NAMES = {
    "base": "base model", "grpo": "GRPO", "ppo": "PPO", "rloo": "RLOO", "dpo": "DPO",
    "unbounded": "GRPO without a KL penalty",
}  # fmt: skip


@dataclass(frozen=True)
class IMDBConfig:
    """From raw reviews to steered policies and the table that compares them."""

    data: Path = Path("aclImdb")
    """The extracted archive."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of GRPO; the other engines take the first."""
    budget: Literal["full", "small"] = "full"
    """small: a smoke test with too little training to convince."""
    device: str = "auto"
    """auto (cuda, then mps, then cpu) or a device name."""
    out: Path = RUNS / "imdb"
    """Run folder."""

    def __post_init__(self) -> None:
        if not self.seeds:
            raise ValueError("seeds is empty: give at least one")


SMALL: dict[str, dict[str, Any]] = {  # what a smoke test changes, by stage
    "pretraining": dict(steps=20, eval_every=10),
    "outcome": dict(steps=8, held_out_texts=60),
    "steering": dict(steps=2, eval_every=1, eval_prompts=8),
}


def small(config: IMDBConfig, stage: str) -> dict[str, Any]:
    return SMALL[stage] if config.budget == "small" else {}


# --- the raw files --------------------------------------------------------------------------------


def prepare(config: IMDBConfig, folder: Path) -> None:
    """Write the texts that each stage reads: no text is in two of them."""
    if (folder / "done").exists():
        return
    if not (config.data / "train" / "pos").is_dir():
        raise UserError(
            f"--data {config.data} holds no train/pos/: give the extracted aclImdb folder"
        )
    train = read_labelled(config.data / "train")
    test = read_labelled(config.data / "test", known=[record.text for record in train.records])
    for result in (train, test):
        print(result.summary(), flush=True)
    halves: dict[str, list[LabelledText]] = {"a": [], "b": []}
    for record in train.records:
        halves["ab"[zlib.crc32(b"half:" + record.text.encode()) % 2]].append(record)
    labelled = {record.text for record in [*train.records, *test.records]}
    unlabelled = dict.fromkeys(read_text(config.data / "train" / "unsup"))
    texts = [text for text in unlabelled if text not in labelled]
    print(f"{len(texts):,} unlabelled texts, without repeated and labelled ones", flush=True)
    for name, records in [*halves.items(), ("test", test.records)]:
        write_rows(folder / f"{name}.jsonl", [vars(record) for record in records])
    write_rows(folder / "texts.jsonl", [{"text": text} for text in texts])
    write_text(folder / "done", "")


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    append_jsonl(path, rows)


def write_prompts(folder: Path, tokenizer: Tokenizer) -> None:
    """The first 2 to 8 tokens of reviews, as text; each beginning once."""
    path = folder / "prompts.jsonl"
    if path.exists():
        return
    prompts: dict[str, None] = {}
    for text in read_text(folder / "texts.jsonl"):
        count = SHORTEST_PROMPT + zlib.crc32(text.encode()) % (LONGEST_PROMPT - SHORTEST_PROMPT + 1)
        prompt = tokenizer.decode(tokenizer.encode(text[:200])[:count])
        if "\ufffd" not in prompt and "\n" not in prompt:
            prompts[prompt] = None
        if len(prompts) == PROMPTS:
            break
    write_rows(path, [{"prompt": prompt} for prompt in prompts])


# --- training: every stage is its own script ------------------------------------------------------


def run_stage(config: IMDBConfig, folder: Path, module: str, flags: Mapping[str, Any]) -> None:
    """Run one script into `folder` unless it is finished there; an interrupted one is resumed."""
    runner.run_stage(folder, module, words({**flags, "device": config.device}), resume=True)


def train_language_model(config: IMDBConfig, folder: Path, texts: Path) -> None:
    """The tokenizer, then the language model, both from the unlabelled texts."""
    ranks = folder / "reviews.tiktoken"
    if not ranks.exists():
        flags = words(dict(data=texts, vocab_size=VOCABULARY, documents=50_000, out=ranks))
        command = [sys.executable, "-m", "gpt.tokenizer_training", *flags]
        runner.run_into_log("gpt.tokenizer_training", command, folder / "tokenizer.log")
    own = dict(preset="english", data=texts, tokenizer=ranks) | small(config, "pretraining")
    run_stage(config, folder / "pretraining", "gpt.pretraining", own)


def train_classifiers(config: IMDBConfig, folder: Path) -> None:
    """A on the language model's trunk; B on a trunk of its own, from random weights."""
    texts = folder / "data"
    common = dict(held_out=texts / "test.jsonl") | small(config, "outcome")
    a = dict(data=texts / "a.jsonl", base=folder / "pretraining", epochs=6, lr=1e-3)
    b = dict(data=texts / "b.jsonl", tokenizer=folder / "reviews.tiktoken", layers=1, width=128)
    b |= dict(epochs=7, lr=2e-3)
    for name, own in (("classifier_a", a), ("classifier_b", b)):
        run_stage(config, folder / name, "reward_model.outcome_training", own | common)


def runs_of(config: IMDBConfig) -> list[tuple[str, int]]:
    return [
        (name, seed)
        for name in RECIPES
        for seed in (config.seeds if name == "grpo" else config.seeds[:1])
    ]


def steer(config: IMDBConfig, folder: Path) -> None:
    """One run for every engine and seed, all from the same language model and the same reward."""
    for name, seed in runs_of(config):
        prompts = folder / "data" / ("pairs.jsonl" if name == "dpo" else "prompts.jsonl")
        own = dict(
            data=prompts, seed=seed, policy=folder / "pretraining",
            reward_model=folder / "classifier_a", max_new_tokens=NEW_TOKENS,
        )  # fmt: skip
        flags = {**RECIPES[name].flags, **own, **small(config, "steering")}
        run_stage(config, folder / f"{name}-{seed}", RECIPES[name].module, flags)


# --- measuring ------------------------------------------------------------------------------------


class Judges:
    """The base model, the two classifiers and the n-gram regression, opened once."""

    def __init__(self, config: IMDBConfig, folder: Path) -> None:
        self.folder, self.device = folder, open_device(config.device)
        self.base, self.tokenizer = load_gpt(folder / "pretraining", self.device)
        self.a, self.b = (
            RewardModelReward(load_reward_model(folder / name, self.device)[0])
            for name in ("classifier_a", "classifier_b")
        )
        prompts = open_prompts(str(folder / "data" / "prompts.jsonl"), self.tokenizer, 64)
        self.prompts = prompts["test"][:MEASURED]

    @cached_property
    def ngrams(self) -> NgramRegression:
        """The third judge, from B's half of the labels: each text whole, and its first words."""
        records = read_labelled(self.folder / "data" / "b.jsonl").records
        texts = [record.text for record in records] + [record.text[:150] for record in records]
        return NgramRegression().fit(texts, [record.label for record in records] * 2)

    def answers(self, policy: GPT) -> Rollout:
        """One sampled answer to every test prompt, with the same random numbers for every policy."""
        generator = make_generator(0, "evaluation")
        params = SamplingParams(max_new_tokens=NEW_TOKENS)
        return sample_rollout(policy, self.tokenizer, self.prompts, params, 1, generator)

    def log_odds(self, rollout: Rollout) -> dict[str, Tensor]:
        """What each judge makes of prompt and answer, (N,) each."""
        texts = [r.prompt + t for r, t in zip(rollout.records, rollout.responses, strict=True)]
        return {
            "a": self.a(rollout).cpu(),
            "b": self.b(rollout).cpu(),
            "ngrams": self.ngrams(texts),
        }

    def measure_run(self, folder: Path) -> dict[str, Any]:
        return self.measure(load_gpt(folder, self.device)[0])

    @torch.no_grad()
    def measure(self, policy: GPT) -> dict[str, Any]:
        """A row of the table, and the first answers."""
        rollout = self.answers(policy)
        own, base = (
            score_in_micro_batches(partial(token_log_probs, model), rollout.sequences, 64)
            for model in (policy, self.base)
        )
        mask, odds = rollout.response_mask, self.log_odds(rollout)
        row: dict[str, Any] = {
            f"positive_{name}": float((values > 0).double().mean()) for name, values in odds.items()
        }
        row |= {f"score_{name}": float(values.mean()) for name, values in odds.items()}
        row["kl"] = float(row_sums(k1(own, base), mask).mean())
        row["perplexity"] = math.exp(-float(base.sum() / mask.sum()))
        row |= {f"distinct_{n}": distinct(rollout.responses, n) for n in (1, 2)}
        row["tokens"] = float(rollout.lengths.double().mean())
        row["samples"] = [
            {"prompt": rollout.records[i].prompt, "answer": rollout.responses[i]}
            | {name: round(float(values[i]), 2) for name, values in odds.items()}
            for i in range(min(SHOWN, len(rollout)))
        ]
        return row


def distinct(texts: Sequence[str], n: int) -> float:
    """Different n-grams of words over all n-grams, in all texts together (Li et al. 2016)."""
    grams: Counter[tuple[str, ...]] = Counter()
    for text in texts:
        words = text.split()
        grams.update(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
    return len(grams) / max(grams.total(), 1)


def write_pairs(judges: Judges, path: Path, prompts: int, tries: int = 4) -> None:
    """DPO's pairs: of `tries` answers of the base to a prompt, the one that A likes best and least.

    Every split has some, as an engine wants; those of the test prompts are neither trained on nor read.
    """
    if path.exists():
        return
    generator = make_generator(0, "pairs")
    params = SamplingParams(max_new_tokens=NEW_TOKENS)
    rows = []
    splits = open_prompts(str(path.with_name("prompts.jsonl")), judges.tokenizer, 64)
    asked = [*splits["train"][:prompts], *splits["validation"][: max(prompts // 10, 1)]]
    asked += splits["test"][-UNSEEN:]
    for start in range(0, len(asked), 64):
        batch = asked[start : start + 64]
        rollout = sample_rollout(judges.base, judges.tokenizer, batch, params, tries, generator)
        rows += pairs_of(rollout, judges, batch)
    write_rows(path, rows)
    print(f"{display_path(path)}: {len(rows):,} pairs", flush=True)


def pairs_of(
    rollout: Rollout, judges: Judges, records: Sequence[PromptRecord]
) -> list[dict[str, Any]]:
    """One row for every prompt whose best and worst answers differ."""
    scores = judges.a(rollout).cpu().view(len(records), -1)
    answers = zip(rollout.response_tokens.tolist(), rollout.lengths.tolist(), strict=True)
    tokens, tries = [row[:length] for row, length in answers], scores.shape[1]
    rows = []
    for index, record in enumerate(records):
        best, worst = int(scores[index].argmax()), int(scores[index].argmin())
        chosen, rejected = tokens[index * tries + best], tokens[index * tries + worst]
        if chosen == rejected:
            continue
        margin = float(scores[index, best] - scores[index, worst])
        pair = TokenPair(
            judges.tokenizer.encode(record.prompt), chosen, rejected, {"margin": margin}
        )
        rows.append(pair_as_text(pair, judges.tokenizer))
    return rows


def language_model_numbers(judges: Judges, texts: int = 400) -> dict[str, float]:
    """Bits per byte and perplexity on reviews of the test set, which no stage has read."""
    context, rows = judges.base.config.context, []
    for record in read_labelled(judges.folder / "data" / "test.jsonl", limit=texts).records:
        tokens = [*judges.tokenizer.encode(record.text), judges.tokenizer.eos_id]
        rows += [tokens[i : i + context] for i in range(0, len(tokens), context)]
    rows = [row for row in rows if len(row) > 1]
    batches = [collate_documents(rows[i : i + 32]) for i in range(0, len(rows), 32)]
    loss = held_out_loss(judges.base, batches)
    size = bytes_per_token(batches, judges.tokenizer)
    return {
        "loss": loss, "bits_per_byte": loss / math.log(2) / size, "perplexity": math.exp(loss),
        "bytes_per_token": size, "texts": texts,
    }  # fmt: skip


def measure_all(config: IMDBConfig, judges: Judges, folder: Path) -> dict[str, Any]:
    """The base's row and one for every steered policy, each measured once and kept."""
    rows: dict[str, list[dict[str, Any]]] = {
        "base": [once(folder / "base.json", lambda: judges.measure(judges.base))]
    }
    for name, seed in runs_of(config):
        run_folder = folder / f"{name}-{seed}"
        row = once(run_folder / "measured.json", partial(judges.measure_run, run_folder))
        seconds = json.loads((run_folder / "seconds.json").read_text(encoding="utf-8"))
        steps = read_jsonl(run_folder / "metrics.jsonl")[-1]["step"]
        rows.setdefault(name, []).append(row | {"seed": seed, "seconds": seconds, "steps": steps})
        print(
            f"{NAMES[name]} seed {seed}: positive by B {row['positive_b']:.2f}, KL {row['kl']:.1f}"
        )
    return rows


# --- the results ----------------------------------------------------------------------------------

COLUMNS = (
    ("positive by A", "positive_a", "{:.2f}"), ("by B", "positive_b", "{:.2f}"),
    ("by n-grams", "positive_ngrams", "{:.2f}"), ("KL, nats", "kl", "{:.1f}"),
    ("perplexity under the base", "perplexity", "{:.1f}"), ("distinct-1", "distinct_1", "{:.3f}"),
    ("distinct-2", "distinct_2", "{:.3f}"), ("tokens", "tokens", "{:.1f}"),
)  # fmt: skip


def table(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Markdown: a line per engine, the mean over its seeds and half their range."""

    def cell(values: Sequence[float], form: str) -> str:
        mean = form.format(statistics.mean(values))
        half = f" ± {form.format((max(values) - min(values)) / 2)}"
        return mean + half * (len(values) > 1)

    lines = [
        [NAMES[name], str(len(own)), *(cell([row[key] for row in own], f) for _, key, f in COLUMNS)]
        for name, own in rows.items()
    ]
    return markdown(["policy", "seeds", *(title for title, _, _ in COLUMNS)], lines)


KEPT = ("step", "reward", "kl", "validation/reward", "validation/kl", "entropy")


def curves(config: IMDBConfig, folder: Path) -> dict[str, list[dict[str, Any]]]:
    found = {}
    for name, seed in runs_of(config):
        rows = read_jsonl(folder / f"{name}-{seed}" / "metrics.jsonl")
        found[f"{name}-{seed}"] = [
            {key: round(row[key], 4) for key in KEPT if key in row}
            for row in rows if "validation/reward" in row
        ]  # fmt: skip
    return found


def recordings(config: IMDBConfig, judges: Judges, rows: Mapping[str, Any]) -> dict[str, Any]:
    folder = judges.folder
    pretraining = read_jsonl(folder / "pretraining" / "metrics.jsonl")
    return {
        "rows": rows,
        "curves": curves(config, folder),
        "language_model": once(
            folder / "language_model.json", lambda: language_model_numbers(judges)
        ),
        "pretraining": [
            {key: round(row[key], 4) for key in ("step", "loss", "held_out_loss") if key in row}
            for row in pretraining
            if "held_out_loss" in row or row["step"] % 100 == 0
        ],
        "classifiers": {
            name: json.loads((folder / f"classifier_{name}" / "report.json").read_text("utf-8"))
            for name in ("a", "b")
        },
        "seconds": {
            path.parent.name: json.loads(path.read_text("utf-8"))
            for path in sorted(folder.glob("*/seconds.json"))
        },
    }


def main(config: IMDBConfig) -> Path:
    folder, begin = config.out, time.perf_counter()
    open_device(config.device)  # one that is not there is named now, not in the first stage
    prepare(config, folder / "data")
    train_language_model(config, folder, folder / "data" / "texts.jsonl")
    write_prompts(folder / "data", load_tokenizer(str(folder / "reviews.tiktoken")))
    train_classifiers(config, folder)
    judges = Judges(config, folder)
    write_pairs(judges, folder / "data" / "pairs.jsonl", PROMPTS // 8)
    steer(config, folder)
    rows = measure_all(config, judges, folder)
    found = recordings(config, judges, rows)
    write_json(folder / "recordings.json", found)
    text = "\n".join(table(rows)) + "\n"
    write_text(folder / "table.md", text)
    print(text)
    numbers = found["language_model"]
    print(f"language model: {numbers['bits_per_byte']:.3f} bits per byte on unseen reviews")
    print(f"wrote {display_path(folder)} in {time.perf_counter() - begin:.0f} s")
    return folder


if __name__ == "__main__":
    run_command(main, IMDBConfig)
