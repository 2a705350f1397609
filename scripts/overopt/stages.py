"""What a job does: train a start, sample pairs and a bank, train a reward model, score the bank.

Every stage is a function (folder, settings, root, **arguments) that fills `folder`. What it reads
lies in other jobs' folders under `root`. `scripts/overopt/runs.py` has the stage that optimises.
"""

from __future__ import annotations

from pathlib import Path

import torch
from studies.recipes import LONGEST

from data import reviews
from data.collate import ResponseBatch, join_responses
from data.records import PromptRecord
from gpt.checkpoint import load_gpt, save_gpt
from gpt.corpus import open_corpus
from gpt.generate import SamplingParams
from gpt.log_probs import score_in_micro_batches
from gpt.model import GPT, GPTConfig
from gpt.pretraining import PretrainingConfig
from gpt.pretraining import train as pretrain
from gpt.tokenizer import Tokenizer, load_tokenizer
from harness.files import append_jsonl, read_jsonl, write_json
from harness.metric_log import MetricLog
from harness.paths import MODEL_FILE
from harness.seeds import make_generator
from overopt.settings import SHAPES, Settings
from reward_model.accuracy_report import preference_report, score_pairs
from reward_model.pairs import TokenPair, as_pair, collate_pairs, pair_as_text
from reward_model.reward_model_training import RewardModelConfig, train
from reward_model.scalar_head import RewardModel, load_reward_model, save_reward_model
from reward_model.world_pairs import world_pairs
from rl.batches.rollout import sample_rollout
from rl.equations.best_of_n import best_of_n_kl, best_of_n_mean

CONTEXT = 128
PAIRS, HELD_OUT = "pairs.jsonl", "held_out_pairs.jsonl"


def train_base(folder: Path, settings: Settings, root: Path, *, start: int, size: str) -> None:
    """A base model of one size; `gpt.pretraining --preset study --seed START` trains the policy's."""
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
    rows = pretrain(config, model, corpus, log)
    save_gpt(folder / MODEL_FILE, model, tokenizer)
    write_json(folder / "report.json", {"held_out_loss": rows[-1]["held_out_loss"]})


def make_pairs(
    folder: Path, settings: Settings, root: Path, *, start: int, count: int, K: int, wide: float
) -> None:
    """Comparisons of the start's own answers, labelled by the world's noisy annotator."""
    policy, tokenizer = load_gpt(root / base_name(start, settings.policy))
    config = RewardModelConfig(seed=start, max_response_tokens=LONGEST["reviews"])
    pairs = world_pairs(policy, tokenizer, config, "train", count, K, wide)
    held_out = world_pairs(
        policy, tokenizer, config, "validation", settings.held_out_pairs, 2
    )  # at temperature 1, whatever the others were drawn at
    for name, kept in ((PAIRS, pairs), (HELD_OUT, held_out)):
        append_jsonl(folder / name, (pair_as_text(pair, tokenizer) for pair in kept))


def read_pairs(
    folder: Path, tokenizer: Tokenizer, count: int | None = None
) -> tuple[list[TokenPair], list[TokenPair]]:
    """The first `count` pairs, so that more labels contain fewer, and the held-out ones."""
    pairs, held_out = (read_jsonl(folder / name) for name in (PAIRS, HELD_OUT))
    return [as_pair(r, tokenizer) for r in pairs[:count]], [as_pair(r, tokenizer) for r in held_out]


def train_reward_model(
    folder: Path,
    settings: Settings,
    root: Path,
    *,
    start: int,
    size: str,
    labels: int,
    pairs: str,
    member: int = 0,
) -> None:
    """A reward model of one size on the first `labels` pairs; members differ in their seed alone."""
    trunk, tokenizer = load_gpt(root / base_name(start, size))
    compared, held_out = read_pairs(root / pairs, tokenizer, labels)
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
    chosen, rejected, batch = score_pairs(model, held_out, tokenizer.eos_id)
    report = preference_report(chosen, rejected, batch.lengths, held_out, scale=float(model.std))
    write_json(folder / "report.json", report.numbers | {"weights": weights_of(model)})
    for name, kept in ((PAIRS, compared), (HELD_OUT, held_out)):  # what is replayed in iterations
        append_jsonl(folder / name, (pair_as_text(pair, tokenizer) for pair in kept))


def weights_of(model: RewardModel) -> int:
    """How many weights a reward model has without its tables of tokens and positions."""
    tables = (model.gpt.wte, model.gpt.wpe)
    count = sum(weight.numel() for weight in model.parameters())
    return count - sum(weight.numel() for table in tables for weight in table.parameters())


# --- best-of-n from one bank of answers -----------------------------------------------------------


def make_bank(folder: Path, settings: Settings, root: Path, *, start: int) -> None:
    """Many answers of the start to a few test prompts, with their gold rewards."""
    policy, tokenizer = load_gpt(root / base_name(start, settings.policy))
    params = SamplingParams(max_new_tokens=LONGEST["reviews"])
    generator = make_generator(start, "bank")
    answers, gold = [], []
    for number, record in enumerate(bank_prompts(settings)):
        rollout = sample_rollout(
            policy, tokenizer, [record], params, settings.bank_answers, generator
        )
        batch = rollout.sequences
        answers.append((batch.response_tokens.short(), batch.response_mask, batch.has_eos))
        judged = zip(rollout.responses, rollout.has_eos.tolist(), strict=True)
        gold.append([reviews.gold_reward(record, text, ended) for text, ended in judged])
        print(f"bank: prompt {number + 1} of {settings.bank_prompts}", flush=True)
    torch.save({"answers": answers, "gold": torch.tensor(gold)}, folder / "bank.pt")


def bank_prompts(settings: Settings) -> list[PromptRecord]:
    """The last test prompts: those that runs are measured on are the first."""
    return reviews.prompts("test")[-settings.bank_prompts :]


@torch.no_grad()
def score_bank(folder: Path, settings: Settings, root: Path, *, start: int, model: str) -> None:
    """Best-of-n by one reward model: gold and proxy of every prompt at every n."""
    reward_model, tokenizer = load_reward_model(root / model)
    bank = torch.load(root / f"start-{start}" / "bank" / "bank.pt")
    scores = torch.stack(
        [
            score_in_micro_batches(reward_model, rows, 128)
            for rows in answers_to(bank_prompts(settings), bank["answers"], tokenizer)
        ]
    )  # (P, N)
    sizes = settings.best_of
    result = {
        "n": torch.tensor(sizes),
        "kl": torch.tensor([best_of_n_kl(n) for n in sizes]),
        "gold": torch.stack([best_of_n_mean(scores, bank["gold"], n) for n in sizes]),  # (n, P)
        "proxy": torch.stack([best_of_n_mean(scores, scores, n) for n in sizes]),
        "scores": scores,
    }
    torch.save(result, folder / "best_of_n.pt")


def answers_to(
    prompts: list[PromptRecord],
    answers: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
    tokenizer: Tokenizer,
) -> list[ResponseBatch]:
    """The bank's rows as a reward model reads them, a batch per prompt."""
    batches = []
    for record, (tokens, mask, ended) in zip(prompts, answers, strict=True):
        encoded = [tokenizer.encode(record.prompt)] * len(tokens)
        batches.append(join_responses(encoded, tokens.long(), mask, ended))
    return batches


def base_name(start: int, size: str) -> str:
    return f"start-{start}/base-{size}"
