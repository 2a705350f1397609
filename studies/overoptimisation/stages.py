"""What a job does: train a start, sample pairs and a bank, train a reward model, score the bank, optimise.

Every stage is a function (folder, settings, root, **arguments) that fills `folder`. What it reads
lies in other jobs' folders under `root`.
"""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from data.collate import ResponseBatch, join_responses
from data.records import PromptRecord
from data.worlds import reviews
from gpt.checkpoint import load_gpt, save_gpt
from gpt.corpus import open_corpus
from gpt.generate import SamplingParams
from gpt.model import GPT, GPTConfig
from gpt.pretraining import PretrainingConfig
from gpt.pretraining import train as pretrain
from gpt.ranks import score_in_micro_batches
from gpt.recipes import config_of
from gpt.tokenizer import Tokenizer, load_tokenizer
from harness.device import open_device
from harness.files import append_jsonl, read_jsonl, write_json
from harness.metric_log import MetricLog
from harness.paths import MODEL_FILE
from harness.seeds import make_generator
from reward_model.pairs import TokenPair, as_pair, collate_pairs, pair_as_text
from reward_model.reward_model_training import RewardModelConfig, train
from reward_model.scalar_head import RewardModel, load_reward_model, save_reward_model
from reward_model.world_pairs import world_pairs
from rl.batches.rollout import sample_rollout
from rl.equations.best_of_n import best_of_n_kl, best_of_n_mean
from rl.loop import Run
from rl.run.engine import models_of_run
from rl.run.evaluation import Conditions, Evaluation, evaluate
from rl.run.task import Task, open_task
from studies.bootstrap import Array
from studies.overoptimisation.plan import SHAPES, Settings, base_name

CONTEXT, LONGEST = 128, 48  # tokens; of an answer
PAIRS, HELD_OUT = "pairs.jsonl", "held_out_pairs.jsonl"
Points = dict[str, Array]
TERMS = ("sent", "topic", "polite", "form", "qual")
KEPT_TEXTS = 6


def train_base(folder: Path, settings: Settings, root: Path, *, start: int, size: str) -> None:
    """A base model of one size; `gpt.pretraining --seed START` trains the policy's."""
    tokenizer = load_tokenizer("glassbox")
    layers, heads, width = SHAPES[size]
    model = GPT(GPTConfig(tokenizer.n_vocab, CONTEXT, layers, heads, width))
    model.initialize(make_generator(start, "weights"))
    steps = settings.pretraining_steps
    config = PretrainingConfig(data="reviews", steps=steps, seed=start)
    corpus = open_corpus(
        "reviews", tokenizer, batch_size=config.batch_size, context=CONTEXT, seed=start
    )
    log = MetricLog(steps, show=("loss", "held_out_loss"), every=config.eval_every, title="base")
    pretrain(config, model, corpus, log)
    save_gpt(folder / MODEL_FILE, model, tokenizer)


def make_pairs(
    folder: Path, settings: Settings, root: Path, *, start: int, count: int, wide: float
) -> None:
    """Comparisons of the start's own answers, labelled by the world's noisy annotator."""
    policy, tokenizer = load_gpt(root / base_name(start, settings.policy))
    config = RewardModelConfig(seed=start, max_response_tokens=LONGEST)
    K = settings.responses_per_prompt
    pairs = world_pairs(policy, tokenizer, config, "train", count, K, wide)
    held_out = world_pairs(
        policy, tokenizer, config, "validation", settings.held_out_pairs, 2
    )  # at temperature 1, whatever the others were drawn at
    keep_pairs(folder, tokenizer, pairs, held_out)


def keep_pairs(
    folder: Path, tokenizer: Tokenizer, pairs: Sequence[TokenPair], held_out: Sequence[TokenPair]
) -> None:
    for name, kept in ((PAIRS, pairs), (HELD_OUT, held_out)):
        append_jsonl(folder / name, (pair_as_text(pair, tokenizer) for pair in kept))


def train_reward_model(
    folder: Path, settings: Settings, root: Path, *,
    start: int, size: str, labels: int, pairs: str, member: int = 0,
) -> None:  # fmt: skip
    """A reward model on the first `labels` pairs: more hold fewer. Members differ in their seed alone."""
    trunk, tokenizer = load_gpt(root / base_name(start, size))
    rows = read_jsonl(root / pairs / PAIRS)[:labels], read_jsonl(root / pairs / HELD_OUT)
    compared, held_out = ([as_pair(row, tokenizer) for row in each] for each in rows)
    seed = 100 * start + member
    model = RewardModel.from_policy(trunk, "last_token", make_generator(seed, "head"))
    config = RewardModelConfig(
        batch_size=settings.reward_batch, lr=settings.reward_lr, pooling="last_token", seed=seed
    )
    log = MetricLog(settings.reward_steps(labels), show=("loss", "accuracy"), every=50, title="rm")
    train(model, compared, config, log, eos_id=tokenizer.eos_id)
    reference = collate_pairs(compared[:: max(len(compared) // 2000, 1)], tokenizer.eos_id)
    model.normalize_on(reference)
    save_reward_model(folder / MODEL_FILE, model, tokenizer)
    keep_pairs(folder, tokenizer, compared, held_out)  # what is replayed in iterations


# --- best-of-n from one bank of answers -----------------------------------------------------------


def bank_prompts(settings: Settings) -> list[PromptRecord]:
    """The last test prompts: those that runs are measured on are the first."""
    return reviews.prompts("test")[-settings.bank_prompts :]


def make_bank(folder: Path, settings: Settings, root: Path, *, start: int) -> None:
    """Many answers of the start to a few test prompts, with their gold rewards."""
    policy, tokenizer = load_gpt(root / base_name(start, settings.policy))
    params = SamplingParams(max_new_tokens=LONGEST)
    generator = make_generator(start, "bank")
    answers, gold = [], []
    for record in bank_prompts(settings):
        rollout = sample_rollout(
            policy, tokenizer, [record], params, settings.bank_answers, generator
        )
        batch = rollout.sequences
        answers.append((batch.response_tokens.short(), batch.response_mask, batch.has_eos))
        judged = zip(rollout.responses, rollout.has_eos.tolist(), strict=True)
        gold.append([reviews.gold_reward(record, text, ended) for text, ended in judged])
    torch.save({"answers": answers, "gold": torch.tensor(gold)}, folder / "bank.pt")


@torch.no_grad()
def score_bank(folder: Path, settings: Settings, root: Path, *, start: int, model: str) -> None:
    """Best-of-n by one reward model: gold and proxy of every prompt at every n."""
    reward_model, tokenizer = load_reward_model(root / model)
    bank = torch.load(root / f"start-{start}" / "bank" / "bank.pt")

    def batch_of(record: PromptRecord, answers: Sequence[torch.Tensor]) -> ResponseBatch:
        tokens, mask, ended = answers
        prompts = [tokenizer.encode_prompt(record.prompt)] * len(tokens)
        return join_responses(prompts, tokens.long(), mask, ended)

    rows = zip(bank_prompts(settings), bank["answers"], strict=True)
    scores = torch.stack(
        [score_in_micro_batches(reward_model, batch_of(*row), 128) for row in rows]
    )  # (P, N)
    sizes = settings.best_of
    result = {
        "n": torch.tensor(sizes),
        "kl": torch.tensor([best_of_n_kl(n) for n in sizes]),
        "gold": torch.stack([best_of_n_mean(scores, bank["gold"], n) for n in sizes]),  # (n, P)
        "proxy": torch.stack([best_of_n_mean(scores, scores, n) for n in sizes]),
    }
    torch.save(result, folder / "best_of_n.pt")


# --- a policy is optimised ------------------------------------------------------------------------


def has_turned(gold: Sequence[float], fall: float, smooth: int) -> bool:
    """Whether the last mean of `smooth` measurements lies `fall` below the best such mean."""
    means = [statistics.fmean(gold[i : i + smooth]) for i in range(len(gold) - smooth + 1)]
    return bool(means) and max(means) - means[-1] >= fall


class Measuring:
    """Called by an engine as `validate(policy, reference, step)`.

    Test prompts are answered with the same random numbers every time, and every number is kept per
    prompt, so that runs can be paired and resampled.
    """

    def __init__(self, task: Task, prompts: Sequence[PromptRecord], start: GPT, micro: int) -> None:
        self.task, self.prompts, self.start = task, list(prompts), start
        self.params = SamplingParams(max_new_tokens=LONGEST)
        self.conditions = Conditions(micro)
        self.points: list[dict[str, Any]] = []
        self.texts: list[dict[str, Any]] = []

    def __call__(self, policy: GPT, reference: GPT | None, step: int) -> dict[str, float]:
        result = evaluate(
            policy, self.task.tokenizer, self.prompts, self.params, self.task.reward_fn,
            reference=self.start, gold=self.task.gold, conditions=self.conditions,
        )  # fmt: skip
        self.keep(result, step)
        return {f"validation/{name}": value for name, value in result.summary().items()}

    def keep(self, result: Evaluation, step: int) -> None:
        """One measurement, per prompt; the first answers as text."""
        assert result.gold is not None and result.kl is not None and result.reward is not None
        judged = zip(result.records, result.responses, result.has_eos.tolist(), strict=True)
        parts = [reviews.gold_parts(*each) for each in judged]
        terms = torch.tensor([[getattr(part, name) for name in TERMS] for part in parts])  # (P, 5)
        self.points.append(
            {"step": step, "gold": result.gold, "proxy": result.reward}
            | {"kl": result.kl, "length": result.lengths.float(), "eos": result.has_eos.float()}
            | {name: terms[:, i] for i, name in enumerate(TERMS)}
        )
        for i, row in enumerate(result.sample_rows(KEPT_TEXTS)):
            numbers = {"kl": float(result.kl[i])} | dict(zip(TERMS, terms[i].tolist(), strict=True))
            self.texts.append({"step": step} | row | numbers)

    @property
    def gold(self) -> list[float]:
        return [float(point["gold"].mean()) for point in self.points]

    def save(self, folder: Path) -> None:
        """points.pt, every tensor (measurements, prompts) or (measurements,), and texts.json."""
        stacked = {
            name: torch.stack([torch.as_tensor(point[name]) for point in self.points])
            for name in self.points[0]
        }
        torch.save(stacked, folder / "points.pt")
        write_json(folder / "texts.json", self.texts)


def read_points(folder: Path) -> Points:
    """Every measurement of a run: (points, P) per prompt, (points,) for steps."""
    points = torch.load(folder / "points.pt")
    return {name: value.double().numpy() for name, value in points.items()}


def optimise(
    folder: Path, settings: Settings, root: Path, *,
    module: str, policy: str, reward_models: Sequence[str], flags: dict[str, Any], seed: int,
    until_turned: bool = True,
) -> None:  # fmt: skip
    """Train one policy with one engine, measured every few steps, until gold has turned or the end."""
    engine = importlib.import_module(module)
    config = config_of(
        engine.ENGINE.config, **flags, data="reviews",
        model=str(root / policy), reward_model=tuple(str(root / name) for name in reward_models),
        seed=seed, device="cpu", ranks=1, out=folder,
        eval_every=settings.measure_every, save_every=10**6,
    )  # fmt: skip
    task = open_task(config, open_device("cpu"))
    start, parts = models_of_run(engine.ENGINE, config, task)
    prompts = reviews.prompts("test")[: settings.prompts]
    measuring = Measuring(task, prompts, start, config.micro_batch_size)
    measuring(task.policy, None, 0)
    every = 3 * settings.measure_every if until_turned else config.steps
    done = 0
    for end in [*range(every, config.steps, every), config.steps]:  # the engine's loop, resumed
        log = MetricLog(
            end, path=folder / "metrics.jsonl", show=("reward", "validation/gold", "validation/kl"),
            every=settings.measure_every, title=folder.name, start=done,
        )  # fmt: skip
        piece = replace(config, steps=end, resume=done > 0)
        run = Run(
            piece, task.policy, task.tokenizer, task.reward_fn, task.prompts["train"], log,
            validate=measuring, folder=folder, start=start,
        )  # fmt: skip
        rows = engine.train(run, **parts)
        turned = has_turned(measuring.gold, settings.fall, settings.smooth)
        if (until_turned and turned) or rows[-1]["step"] < end:  # or stopped by its own KL
            break
        done = end
    measuring.save(folder)
    (folder / "state.pt").unlink(missing_ok=True)


STAGES: dict[str, Callable[..., None]] = {
    "base": train_base, "pairs": make_pairs, "reward model": train_reward_model,
    "bank": make_bank, "best of n": score_bank, "run": optimise,
}  # fmt: skip
