"""The whole story on one laptop: pre-train a GPT-2, learn a reward model from noisy preferences,
improve the policy with GRPO, and compare with what the same preferences give without RL.

    python scripts/demo.py                    one pipeline, 5 to 12 minutes on 2 CPU cores
    python scripts/demo.py --budget small     from a base model kept in the repository: 1.5 to 4 minutes
    python scripts/demo.py --seeds 3          three whole pipelines, mean and spread

Interrupted, the same command goes on where it was.
The stages run with the defaults of their scripts. So these three commands train the same models:

    python -m gpt.pretraining
    python -m reward_model.reward_model_training
    python -m rl.grpo_engine

Everything is generated: no download, no GPU. Prompts of the test split occur in no stage. The gold
reward, which only a generated world knows, is measured and never trained on.
"""

from __future__ import annotations

import harness  # isort: skip  # noqa: F401  (before PyTorch is loaded)

import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import saved_models
import torch
from playground import models_of, write_playground

from data.collate import collate_responses
from data.files.read import read_preferences
from data.records import PromptRecord
from data.worlds import reviews
from gpt import finetuning, pretraining
from gpt.checkpoint import load_gpt, save_gpt
from gpt.corpus import encode_record
from gpt.finetuning import FinetuningConfig, preferred_answers
from gpt.generate import SamplingParams
from gpt.model import GPT
from gpt.pretraining import PretrainingConfig
from gpt.ranks import score_in_micro_batches
from gpt.recipes import config_of
from gpt.tokenizer import Tokenizer
from harness.command_line import run_command
from harness.console import printable
from harness.device import open_device
from harness.files import display_path, read_json, read_jsonl, save_figure, write_json
from harness.flags import AtLeastOne, AtLeastTwo, check_ranges
from harness.metric_log import MetricLog
from harness.paths import MODEL_FILE, REPORT, REPOSITORY, RUNS
from harness.run_folder import finish_run, open_stages, run_missing
from report.page import running_mean, write_page
from report.style import COLOURS, styled
from reward_model import reward_model_training
from reward_model.reward_model_training import RewardModelConfig
from reward_model.scalar_head import RewardModel, load_reward_model
from rl import grpo_engine
from rl.grpo_engine import GRPOConfig
from rl.rewards.model import RewardModelReward
from rl.rewards.reward import RuleReward
from rl.run.evaluation import (
    Comparison,
    Conditions,
    Evaluation,
    evaluate,
    format_table,
    win_rate,
)
from studies.best_of import best_of_n
from studies.pages import summary as summary_of_seeds

# What --budget small asks for instead of the presets, which are the recipe of the full one.
SMALL: dict[str, dict[str, Any]] = {
    "reward_model": {"pairs": 43_200, "held_out_pairs": 300},
    "grpo": {"steps": 30, "lr": 4e-4, "eval_prompts": 64},
}
TOO_SMALL = (
    "--budget small is too small for the reward model to learn which item a review must be about, "
    "and to compare algorithms or settings."
)
BEST_OF = 8
Table = Mapping[str, Mapping[str, float | None]]


@dataclass(frozen=True)
class DemoConfig:
    """Pre-training, reward model, GRPO and the comparison, from nothing."""

    budget: Literal["full", "small"] = "full"
    """small: starts from the base model that is kept in the repository, and trains less after it."""
    seed: int = 0
    """Seed of the whole pipeline (the first one, with --seeds)."""
    seeds: AtLeastOne = 1
    """Number of whole pipelines, with consecutive seeds."""
    test_prompts: AtLeastTwo | None = None
    """Test prompts in the comparison; default: 512, and 128 in the small budget."""
    device: str = "auto"
    """auto (cuda, then mps, then cpu) or a device name."""
    ranks: AtLeastOne | None = None
    """Processes that share the work; default: one per core for small models on a CPU, else one."""
    out: Path = RUNS / "demo"
    """Run folder."""

    goes_on = True  # called again, it does what is left

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True)
class Contestant:
    """One row of the comparison."""

    name: str
    gold: torch.Tensor  # (N,)
    reward: torch.Tensor  # (N,)
    evaluation: Evaluation | None = None  # best-of-n has no policy of its own


def heading(text: str) -> None:
    print(f"\n== {text} ==", flush=True)


def said_of_pretraining(folder: Path) -> str:
    """What the first stage has done, in a sentence."""
    loss = pretraining.held_out_losses(read_jsonl(folder / "metrics.jsonl"))[-1]
    return (
        f"It writes reviews as the people of this world do, kind and rude ones alike: of new texts it "
        f"finds the next token as hard to guess as one of {math.exp(loss):.1f}."
    )


def said_of_judge(folder: Path) -> str:
    """What the reward model has learned, in a sentence."""
    found = read_json(folder / "report.json")
    return (
        f"It now says which of two answers is better, and agrees with the true worth (gold) in "
        f"{found['gold_accuracy']:.0%} of new pairs, though its teachers named the worse answer in "
        f"{1 - found['label_ceiling']:.0%}. Guessing gets 50%."
    )


def said_of_grpo(folder: Path) -> str:
    """What GRPO has changed, in a sentence."""
    rows = [row for row in read_jsonl(folder / "metrics.jsonl") if "validation/gold" in row]
    first, last = rows[0], rows[-1]
    reward, gold = last["validation/reward"], last["validation/gold"]
    return (
        f"The policy was paid by the reward model alone: it scores {reward:.1f} standard deviations above "
        f"the base model's answers. Gold, which nobody paid for, was {first['validation/gold']:.2f} at "
        f"step {first['step']} and is {gold:.2f} now."
    )


def fine_tune(model: GPT, tokenizer: Tokenizer, pairs: Path, config: FinetuningConfig) -> None:
    """The baseline that spends the same preferences without RL: imitate each prompt's best answer.

    The best is the one that won most of its comparisons.
    """
    answers = preferred_answers(read_preferences(pairs).records)
    examples = [encode_record(answer, tokenizer) for answer in answers]
    steps = config.epochs * len(examples) // config.batch_size
    log = MetricLog(steps, show=("loss",), every=100, title="fine-tuning")
    finetuning.train(config, model, examples, [], log, eos_id=tokenizer.eos_id)


def contestants(
    folder: Path, prompts: Sequence[PromptRecord], seed: int, device: torch.device
) -> list[Contestant]:
    """Base, best-of-n, fine-tuned and GRPO on the same prompts, with the same random numbers."""
    base, tokenizer = load_gpt(folder / "pretraining", device)
    policy, _ = load_gpt(folder / "grpo", device)
    tuned, _ = load_gpt(folder / "finetuning", device)
    reward_model, _ = load_reward_model(folder / "reward_model", device)
    reward, gold = RewardModelReward(reward_model), RuleReward(reviews.gold_reward, "gold reward")
    params = SamplingParams(max_new_tokens=GRPOConfig().max_new_tokens)
    conditions = Conditions(seed=seed)

    def row(name: str, model: GPT) -> Contestant:
        result = evaluate(
            model, tokenizer, prompts, params, reward,
            reference=base, gold=gold, conditions=conditions,
        )  # fmt: skip
        assert result.gold is not None and result.reward is not None
        return Contestant(name, result.gold, result.reward, result)

    best_reward, best_gold = best_of_n(
        base, tokenizer, prompts, params, reward, BEST_OF, gold=gold, conditions=conditions
    )
    return [
        row("base model", base),
        Contestant(f"best of {BEST_OF} by reward model", best_gold, best_reward),
        row("fine-tuned on preferred answers", tuned),
        row("GRPO", policy),
    ]


def numbers(rows: Sequence[Contestant]) -> dict[str, dict[str, float | None]]:
    """One dict per contestant; the win rate is over the base model, ties half."""
    table = {}
    for row in rows:
        summary = row.evaluation.summary() if row.evaluation else {}
        table[row.name] = {
            "gold": float(row.gold.mean()),
            "gold_95": 1.96 * float(row.gold.std()) / len(row.gold) ** 0.5,
            "win_rate": win_rate(row.gold, rows[0].gold),
            "reward": float(row.reward.mean()),
            "kl": summary.get("kl"),
            "response_length": summary.get("response_length"),
            "eos_rate": summary.get("eos_rate"),
        }
    return table


def print_table(table: Table) -> None:
    keys = ("gold", "gold_95", "win_rate", "reward", "kl", "response_length", "eos_rate")
    columns = ("", "gold", "+- 95%", "beats base", "judge's score", "KL (nats)", "tokens", "ended")
    print(format_table(columns, [[name, *(row[k] for k in keys)] for name, row in table.items()]))


def item_accuracy(model: RewardModel, tokenizer: Tokenizer, answers: Evaluation) -> dict[str, Any]:
    """How often the reward model sees that an answer is about another item.

    Of each answer that names its prompt's item, and no other, it scores a copy that names the next
    item instead. The two differ in nothing else. A tie counts as wrong.
    """
    prompts: list[list[int]] = []
    right: list[list[int]] = []
    wrong: list[list[int]] = []
    for record, text in zip(answers.records, answers.responses, strict=True):
        item = record.meta["item"]
        if set(re.findall(r"\w+", text)) & set(reviews.ITEMS) == {item}:
            other = reviews.ITEMS[(reviews.ITEMS.index(item) + 1) % len(reviews.ITEMS)]
            prompts.append(tokenizer.encode_prompt(record.prompt))
            for texts, named in ((right, item), (wrong, other)):
                tokens = tokenizer.encode(re.sub(rf"\b{item}\b", named, text))
                texts.append([*tokens, tokenizer.eos_id])
    if not prompts:
        return {"pairs": 0, "accuracy": None}
    batch = collate_responses(prompts * 2, right + wrong, tokenizer.eos_id).to(model.device)
    better, worse = score_in_micro_batches(model, batch, 64).chunk(2)
    return {"pairs": len(prompts), "accuracy": float((better > worse).float().mean())}


def plot(folder: Path, table: Table, path: Path) -> None:
    """The learned reward by step, gold by distance, and the comparison."""
    from matplotlib.figure import Figure

    rows = read_jsonl(folder / "grpo" / "metrics.jsonl")
    validated = [row for row in rows if "validation/gold" in row]
    steps = [row["step"] for row in rows]
    rewards = [row["reward"] for row in rows]
    gold = [row["validation/gold"] for row in validated]
    far = [row["validation/kl"] for row in validated]
    proxy, meant = COLOURS["proxy"], COLOURS["gold"]
    with styled():
        figure = Figure(figsize=(10, 6.4))
        grid = figure.add_gridspec(2)
        above, below = figure.add_subfigure(grid[0]), figure.add_subfigure(grid[1])
        left, right = above.subplots(1, 2)
        left.plot(steps, rewards, color=proxy, alpha=0.3, linewidth=1)
        left.plot(steps, running_mean(rewards), color=proxy)
        left.set(xlabel="GRPO step", ylabel="reward model's score (SD)")
        left.set_title(f"The learned reward goes from {rewards[0]:.1f} to {rewards[-1]:.1f}")
        right.plot(far, gold, color=meant, marker="o")
        right.set(xlabel="KL from the base model (nats per response)", ylim=(0, 1))
        right.set_ylabel("gold reward, validation")
        right.set_title(f"Gold goes from {gold[0]:.2f} to {gold[-1]:.2f} over {far[-1]:.1f} nats")
        names = list(table)[::-1]
        colours = [COLOURS["policy" if name == "GRPO" else "reference"] for name in names]
        golds, errors = ([table[name][key] or 0 for name in names] for key in ("gold", "gold_95"))
        bars = below.subplots()
        bars.barh(names, golds, xerr=errors, color=colours, capsize=3)
        bars.set(xlabel="gold reward, unseen test prompts (black: 95% interval)", xlim=(0, 1))
        best = names[golds.index(max(golds))]
        bars.set_title(f"{best} has the most gold of the {len(names)}")
        save_figure(figure, path)


def train_stages(config: DemoConfig, seed: int, folder: Path) -> dict[str, float]:
    """What is left of pre-training, reward model, GRPO and the fine-tuned baseline; seconds of each."""
    small = SMALL if config.budget == "small" else {}
    common: dict[str, Any] = {"seed": seed, "device": config.device}
    base, judge = folder / "pretraining", folder / "reward_model"
    marks = [time.perf_counter()]

    if config.budget == "small":
        heading("1. a GPT-2 that is pre-trained already: the one kept in the repository")
        if not (base / MODEL_FILE).exists():
            save_gpt(base / MODEL_FILE, *saved_models.base())
        print(f"{display_path(saved_models.FILES['base'])}, the base model of a full demo")
    else:
        heading("1. pre-training a GPT-2 on the world's reviews")
        run_missing(
            pretraining.main,
            config_of(PretrainingConfig, out=base, **common),
        )
        print(said_of_pretraining(base))
    marks.append(time.perf_counter())

    heading("2. a reward model from noisy preference pairs")
    settings = common | small.get("reward_model", {}) | {"model": str(base), "out": judge}
    run_missing(
        reward_model_training.main,
        config_of(RewardModelConfig, **settings),
    )
    print(said_of_judge(judge))
    marks.append(time.perf_counter())

    heading("3. GRPO against the reward model")
    settings = common | small.get("grpo", {}) | {"model": str(base), "test_prompts": 0}
    settings |= {"reward_model": (str(judge),), "out": folder / "grpo"}
    run_missing(grpo_engine.main, config_of(GRPOConfig, **settings))
    print(said_of_grpo(folder / "grpo"))
    marks.append(time.perf_counter())

    heading("4. the same preferences without RL: fine-tuning on the preferred answers")
    tuned, pairs = folder / "finetuning" / MODEL_FILE, judge / "pairs.jsonl"
    made = [base / MODEL_FILE, pairs]  # a stage may have been made again
    if tuned.exists() and all(tuned.stat().st_mtime >= path.stat().st_mtime for path in made):
        print(f"{display_path(tuned)} is there")
    else:
        model, tokenizer = load_gpt(base, open_device(config.device))
        fine_tune(model, tokenizer, pairs, FinetuningConfig(seed=seed))
        save_gpt(tuned, model, tokenizer)
    print("It imitates the answers that won most comparisons: what the same data give without RL.")
    marks.append(time.perf_counter())

    stages = ("pre-training", "reward model", "GRPO", "fine-tuning")
    return {name: marks[i + 1] - marks[i] for i, name in enumerate(stages)}


def said_of_comparison(test: Table, new_items: Table) -> str:
    """The two tables in sentences."""
    start, end = test["base model"]["gold"], test["GRPO"]["gold"]
    best, new = test[f"best of {BEST_OF} by reward model"]["gold"], new_items["GRPO"]["gold"]
    assert start is not None and end is not None and best is not None and new is not None
    return (
        f"\nAn answer of the base model is worth {start:.2f} of 1, one after GRPO {end:.2f}, and {new:.2f} "
        f"on items that are new to it.\nWithout training the policy, the reward model's favourite of "
        f"{BEST_OF} answers is worth {best:.2f}."
    )


def said_of_items(checks: Mapping[str, Mapping[str, Any]]) -> str:
    """Whether the reward model reads what a review is about, in a sentence."""
    test, new = checks["test"], checks["held_out_items"]
    if not test["pairs"] or not new["pairs"]:
        return "GRPO's answers name no right item, so nobody can say whether the reward model reads it."
    return (
        f"Does the reward model read what a review is about? It scores a copy about another item lower\n"
        f"in {test['accuracy']:.0%} of {test['pairs']} answers, and in {new['accuracy']:.0%} of "
        f"{new['pairs']} where the item is new to it (guessing: 50%)."
    )


def compare_stages(config: DemoConfig, seed: int, folder: Path) -> dict[str, Any]:
    """The comparison on unseen prompts: printed, drawn, and returned."""
    heading("5. the comparison on unseen prompts")
    device = open_device(config.device)
    count = config.test_prompts or {"full": 512, "small": 128}[config.budget]
    prompts, unseen_items = (reviews.prompts(split)[:count] for split in ("test", "held_out"))
    print(
        f"{len(prompts)} test prompts, in no training stage (gold reward from 0 to 1)", flush=True
    )
    rows = contestants(folder, prompts, seed, device)
    table = numbers(rows)
    print_table(table)
    unseen = f"items that reward model and GRPO never saw ({len(unseen_items)} prompts)"
    print(f"\n{unseen}", flush=True)
    unseen_rows = contestants(folder, unseen_items, seed, device)
    held_out = numbers(unseen_rows)
    print_table(held_out)
    plot(folder, table, folder / "demo.png")
    reward_model, tokenizer = load_reward_model(folder / "reward_model", device)
    checks = {}
    for name, each in (("test", rows), ("held_out_items", unseen_rows)):
        answers = each[-1].evaluation
        assert answers is not None
        checks[name] = item_accuracy(reward_model, tokenizer, answers)
    print(said_of_comparison(table, held_out))
    print(said_of_items(checks))
    before, after = rows[0].evaluation, rows[-1].evaluation
    assert before is not None and after is not None
    comparison = Comparison(before, after, "gold reward", "GRPO")
    others = {row.name: table[row.name] for row in rows[1:-1]}
    note = {"note": TOO_SMALL} if config.budget == "small" else {}
    write_json(folder / "grpo" / "report.json", comparison.numbers | others | note)
    write_page(folder / "grpo")
    shown = comparison.sample_rows(3)  # the first, not chosen
    for place, row in enumerate(shown):
        print(f"\nprompt: {printable(row['prompt'])}")
        print(f"  before ({rows[0].gold[place]:.2f}): {printable(row['before'])}")
        print(f"  after  ({rows[-1].gold[place]:.2f}): {printable(row['response'])}")
    return {
        "seed": seed,
        "prompts": {"test": len(prompts), "held_out_items": len(unseen_items)},
        "test": table,
        "held_out_items": held_out,
        "item_check": checks,
        "samples": shown,
    }


def pipeline(config: DemoConfig, seed: int, folder: Path) -> dict[str, Any]:
    """One whole pipeline; returns what results.json holds."""
    seconds = train_stages(config, seed, folder)
    begin = time.perf_counter()
    results = compare_stages(config, seed, folder)
    seconds["comparison"] = time.perf_counter() - begin
    total = sum(seconds.values())
    write_json(folder / "results.json", results | {"seconds": seconds | {"total": total}})
    print(f"\n{total:.0f} s: " + ", ".join(f"{k} {v:.0f}" for k, v in seconds.items()))
    page = folder / "playground.html"
    write_playground(page, REPOSITORY.as_uri(), models=models_of(folder))
    print(f"figure  {display_path(folder / 'demo.png')}")
    print(f"numbers {display_path(folder / 'results.json')}")
    print(f"report  {display_path(folder / 'grpo' / REPORT)} (open it in a browser)")
    print(f"play    {display_path(page)} (both models answer in your browser)")
    if config.budget == "small":
        print(TOO_SMALL)
    # After `make demo` .venv is not activated. display_path would follow its link to the system's.
    used, here = Path(sys.executable), Path.cwd()
    python = used.relative_to(here) if used.is_relative_to(here) else "python"
    print(f"talk    {python} -m rl.talk {display_path(folder / 'grpo')}")
    return results | {"seconds": seconds | {"total": total}}


def main(config: DemoConfig) -> None:
    """Run the pipelines."""
    open_device(config.device)  # refuses a device that is not there before a run is moved aside
    folder = open_stages(config.out, config, last="results.json")
    seeds = range(config.seed, config.seed + config.seeds)
    if config.seeds == 1:
        pipeline(config, config.seed, folder)
        finish_run(folder)
        return
    results = []
    for seed in seeds:
        place = folder / f"seed{seed}"
        done = (place / "results.json").exists()
        results += [read_json(place / "results.json") if done else pipeline(config, seed, place)]
    write_json(folder / "results.json", results)
    heading("means (lowest to highest)")
    print("\n".join(summary_of_seeds(results)))
    finish_run(folder)


if __name__ == "__main__":
    run_command(main, DemoConfig)
