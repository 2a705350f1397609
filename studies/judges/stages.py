"""What a job does: sample pairs, learn a reward model and a judge from them, score them, train a policy.

Every stage is a function (folder, settings, root, **arguments) that fills `folder`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from data.records import SPLIT_KEY, PromptRecord, split_of
from data.worlds import reviews
from gpt.checkpoint import load_gpt, save_gpt
from gpt.finetuning import FinetuningConfig
from gpt.finetuning import main as finetune
from gpt.generate import SamplingParams
from gpt.recipes import config_of
from harness.device import open_device
from harness.files import read_jsonl, write_json
from harness.paths import MODEL_FILE, REPOSITORY
from harness.seeds import make_generator
from reward_model.accuracy_report import score_pairs, wins
from reward_model.pairs import as_pair
from reward_model.questions import write_rows
from reward_model.scalar_head import load_reward_model
from rl.batches.rollout import sample_rollout
from rl.grpo_engine import GRPOConfig
from rl.run.task import open_task
from studies.overoptimisation.plan import Settings, base_name
from studies.overoptimisation.stages import (
    HELD_OUT,
    LONGEST,
    PAIRS,
    make_pairs,
    optimise,
    train_reward_model,
)

EXAMPLES = REPOSITORY / "docs/examples"
KEPT = REPOSITORY / "notebooks/course/kept/base.safetensors"  # scripts/saved_models.py
BEST_OF, FARTHEST = 8, 10.0  # answers; nats
REWARDS = {  # what --reward says
    "gold": "gold", "Bradley-Terry": "model",
    "judge of one": "docs/examples/judge_reward.py:good",
    "rubric": "docs/examples/rubric_reward.py:review",
}  # fmt: skip
USUAL = Settings(
    labels=(480,), responses_per_prompt=2, reward_lr=1e-3, fewest_reward_steps=120, held_out_pairs=200,
    lr=8e-4, prompts=64, measure_every=2, most_steps=40,
)  # fmt: skip
TOYS = replace(
    USUAL, labels=(24,), held_out_pairs=12, fewest_reward_steps=2, prompts_per_step=2, group_size=4,
    most_steps=2, measure_every=1, prompts=4,
)  # fmt: skip
JUDGE = dict(epochs=2, lr=1e-3, batch_size=16)  # of the fine-tuning: as often as the model


def example(name: str) -> Any:
    """A module of docs/examples; they import each other as files that lie side by side."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    return importlib.import_module(name)


def questions(rows: Sequence[Mapping[str, Any]], of_two: bool) -> list[dict[str, str]]:
    """What a judge is asked about pairs, and the word that is right: of two answers both ways round."""
    train = next(key for key in map(str, range(100)) if split_of(key) == "train")
    forms, found = example("judge_reward"), []
    for row in rows:
        for word, one, two in (("A", "chosen", "rejected"), ("B", "rejected", "chosen")):
            text = forms.ONE_PLAIN.format(question=row["prompt"], response=row[one])
            word = word if of_two else {"A": "Yes", "B": "No"}[word]
            if of_two:
                text = forms.PLAIN.format(question=row["prompt"], one=row[one], two=row[two])
            found.append({"prompt": text, "response": word, SPLIT_KEY: train})
    return found


def learn(folder: Path, settings: Settings, root: Path, *, start: int) -> None:
    """The pairs, the Bradley-Terry model and the judge of one seed, and how they order pairs."""
    size, labels, pairs = settings.policy, settings.labels[0], f"start-{start}/pairs"
    base = folder / base_name(start, size)
    places = [folder / f"start-{start}" / name for name in ("pairs", "model")]
    for place in (base, *places):
        place.mkdir(parents=True, exist_ok=True)
    save_gpt(base / MODEL_FILE, *load_gpt(KEPT))
    make_pairs(places[0], settings, folder, start=start, count=labels, wide=1.0)
    train_reward_model(
        places[1], settings, folder, start=start, size=size, labels=labels, pairs=pairs
    )
    for name in ("one", "two"):
        train_judge(folder, settings, name, start=start)
    score(folder, settings, start=start)


def train_judge(folder: Path, settings: Settings, name: str, *, start: int) -> None:
    """The base model fine-tuned to say whether one answer is good, or the letter of the better of two."""
    rows, pairs = folder / f"{name}.jsonl", read_jsonl(folder / f"start-{start}/pairs" / PAIRS)
    write_rows(rows, questions(pairs, name == "two"))
    config = config_of(
        FinetuningConfig, data=str(rows), out=folder / f"judge-{name}", seed=start, device="cpu", ranks=1,
        model=str(folder / base_name(start, settings.policy)), **JUDGE,
    )  # fmt: skip
    finetune(config)


def rewarded(learned: Path, start: int, settings: Settings, reward: str) -> dict[str, Any]:
    """The flags of a reward; what the judge's file reads is in the environment."""
    os.environ["JUDGE"] = str(learned / "judge-one")
    models = (str(learned / f"start-{start}/model"),) if reward == "Bradley-Terry" else ()
    where, colon, function = REWARDS[reward].partition(":")
    return dict(reward=f"{REPOSITORY / where}:{function}" if colon else where, reward_model=models)


def train_policy(folder: Path, settings: Settings, root: Path, *, start: int, reward: str) -> None:
    """GRPO without a penalty until 10 nats, measured on test prompts."""
    learned = root / f"learned-{start}"
    given = rewarded(learned, start, settings, reward)
    flags = dict(
        reward=given["reward"], kl_coef=0.0, stop_kl=FARTHEST, lr=settings.lr, steps=settings.most_steps,
        prompts_per_step=settings.prompts_per_step, group_size=settings.group_size,
    )  # fmt: skip
    optimise(
        folder, settings, learned, module="rl.grpo_engine", policy=base_name(start, settings.policy),
        reward_models=given["reward_model"], flags=flags, seed=start, until_turned=False,
    )  # fmt: skip


def same_place(both: torch.Tensor) -> float:
    """The share of pairs (N, 2) of which the judge says the same letter in both orders."""
    return float((both[:, 0] * both[:, 1] < 0).double().mean())


def as_gold(differences: torch.Tensor, gold: torch.Tensor) -> list[float]:
    """1 where a pair is ordered as gold orders it, 1/2 for a tie, NaN where gold has one; (N,) each."""
    right = wins(differences.double() * gold.sign())
    return [
        float("nan") if g == 0 else r for r, g in zip(right.tolist(), gold.tolist(), strict=True)
    ]


def score(folder: Path, settings: Settings, *, start: int) -> None:
    """How each orders the held-out pairs, and gold of the best of 8 by each."""
    rows = read_jsonl(folder / f"start-{start}/pairs" / HELD_OUT)
    gold = torch.tensor([row["gold_chosen"] - row["gold_rejected"] for row in rows])
    model, tokenizer = load_reward_model(folder / f"start-{start}/model")
    pairs = [as_pair(row, tokenizer) for row in rows]
    chosen, rejected, _ = score_pairs(model, pairs, tokenizer.eos_id)
    tasks = {name: task_of(folder, start, settings, name) for name in REWARDS}  # sets the judge
    asked = [(row["prompt"], row["chosen"], row["rejected"]) for row in rows]
    both = example("judge_reward").opened(str(folder / "judge-two")).compare(asked)
    good = example("judge_reward").good
    sides = [[kept(row, side) for row in rows] for side in ("chosen", "rejected")]
    rubric = torch.tensor(sides[0]) - torch.tensor(sides[1])
    said = [[good(*written(row, side)) for row in rows] for side in ("chosen", "rejected")]
    one = torch.tensor(said[0]) - torch.tensor(said[1])
    longer = torch.tensor([float(len(row["chosen"]) - len(row["rejected"])) for row in rows])
    orders = {"Bradley-Terry": chosen - rejected, "rubric": rubric}
    orders |= {"judge of one": one, "judge of two": both.mean(1)}
    orders |= {"first alone": both[:, 0], "annotator": torch.ones(len(rows)), "longer": longer}
    found: dict[str, Any] = {name: as_gold(each, gold) for name, each in orders.items()}
    prompts = reviews.prompts("test")[: settings.prompts]
    policy, params = load_gpt(KEPT)[0], SamplingParams(max_new_tokens=LONGEST)
    bank = sample_rollout(
        policy, tokenizer, prompts, params, BEST_OF, make_generator(start, "best of n")
    )
    worth = {name: task.reward_fn(bank).view(-1, BEST_OF) for name, task in tasks.items()}
    best = {name: each.argmax(1, keepdim=True) for name, each in worth.items()}
    chosen_gold = {name: worth["gold"].gather(1, row)[:, 0] for name, row in best.items()}
    write_json(folder / "scores.json", {
        "right": found, "same_place": same_place(both), "ties": float((rubric == 0).double().mean()),
        "best_of": {name: row.tolist() for name, row in chosen_gold.items()},
    })  # fmt: skip


def written(row: Mapping[str, Any], side: str) -> tuple[str, str, PromptRecord]:
    """One side of a pair, as a reward reads it."""
    record = reviews.read_prompt(row["prompt"])
    assert record is not None
    return row["prompt"], row[side], record


def kept(row: Mapping[str, Any], side: str) -> float:
    """What the rubric gives to one side of a pair."""
    return float(example("rubric_reward").review(*written(row, side), row[f"{side}_ended"]))


def task_of(learned: Path, start: int, settings: Settings, reward: str) -> Any:
    """A reward, opened as GRPO opens it."""
    config = config_of(
        GRPOConfig, data="reviews", model=str(learned / base_name(start, settings.policy)), device="cpu",
        ranks=1, **rewarded(learned, start, settings, reward),
    )  # fmt: skip
    return open_task(config, open_device("cpu"))


def ask_chat(folder: Path, settings: Settings, root: Path, *, chat: str, count: int) -> None:
    """How a published chat model orders held-out pairs."""
    rows = read_jsonl(root / "learned-0/start-0/pairs" / HELD_OUT)[:count]
    gold = torch.tensor([row["gold_chosen"] - row["gold_rejected"] for row in rows])
    asked = [(row["prompt"], row["chosen"], row["rejected"]) for row in rows]
    os.environ["RUBRIC"] = "It is friendly, speaks well of the product, and says nothing twice."
    both = example("judge_reward").Judge(chat).compare(asked)
    longer = torch.tensor([float(len(one) - len(two)) for _, one, two in asked])
    orders = {"chat": both.mean(1), "first alone": both[:, 0], "longer": longer}
    found = {name: as_gold(each, gold) for name, each in orders.items()}
    write_json(folder / "scores.json", {"right": found, "same_place": same_place(both)})


STAGES: dict[str, Callable[..., None]] = {
    "learned": learn,
    "policy": train_policy,
    "chat": ask_chat,
}
