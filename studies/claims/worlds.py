"""Where every run starts, and what is measured of a policy: sums, whose answers are checked exactly.

A start is pre-trained for half a minute on documents of which a given share shows its worked steps; the
rest of what data/worlds/sums.py writes stays as it is. Each seed has a start of its own.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from data.collate import ResponseBatch, collate_responses
from data.records import PromptRecord, ResponseRecord
from data.worlds import sums
from gpt import pretraining
from gpt.checkpoint import load_gpt, save_gpt
from gpt.corpus import encode_record
from gpt.generate import SamplingParams
from gpt.log_probs import token_scores
from gpt.model import GPT, GPTConfig
from gpt.teacher import reverse_kl
from gpt.tokenizer import Tokenizer, load_tokenizer
from harness.metric_log import MetricLog
from harness.paths import MODEL_FILE
from harness.seeds import derive_seed, make_generator
from rl.batches.rollout import Rollout, sample_rollout
from rl.equations.best_of_n import pass_at_k
from rl.rewards.verifiable import VerifiableReward

SHARE = 30  # percent of the documents that show their steps; that of data/worlds/sums.py
NEW_TOKENS = 32
PROMPTS, EACH, SCORED = 64, 32, 4  # of a measurement: test prompts, answers to each, those scored
SHAPE: dict[str, int] = dict(context=64, n_layer=2, n_head=2, n_embd=64)
PRETRAINING: dict[str, Any] = dict(steps=1500, batch_size=32, lr=4e-3, warmup_steps=50)
REWARD = VerifiableReward(sums.exact_match, "exact match")


class Documents:
    """Endless documents of the sums, of which `share` percent show their steps: a corpus."""

    description = "sums"

    def __init__(self, tokenizer: Tokenizer, rows: int, share: float, seed: int) -> None:
        self.tokenizer, self.rows, self.share, self.seed = tokenizer, rows, share, seed
        first = [self.batch(index) for index in range(16)]
        self.tokens_per_batch = sum(int(batch.response_mask.sum()) for batch in first) / 16

    def batch(self, index: int) -> ResponseBatch:
        """A function of its number and the seed."""
        seed = derive_seed(self.seed, f"documents {index}")
        rng = random.Random(seed)
        rows = []
        for record in sums.prompts("train", self.rows, seed):
            text = styled(record, rng, steps=rng.random() < self.share / 100)
            rows.append(encode_record(ResponseRecord(record.prompt, text), self.tokenizer))
        prompts, responses = zip(*rows, strict=True)
        return collate_responses(prompts, responses, self.tokenizer.eos_id)

    def held_out_batches(self) -> list[ResponseBatch]:
        """None: a start is judged by its answers."""
        return []


def styled(record: PromptRecord, rng: random.Random, *, steps: bool) -> str:
    """An answer of the world's writers, errors included: one with worked steps, or a direct one."""
    while True:
        text = sums.sample_response(record, rng)
        if sums.uses_steps(text) is steps:
            return text


def start_name(share: int, seed: int) -> str:
    return f"start-{share}-{seed}"


def make_start(folder: Path, share: int, seed: int) -> dict[str, Any]:
    """Pre-train from random weights into `folder`."""
    tokenizer = load_tokenizer("glassbox")
    model = GPT(GPTConfig(tokenizer.n_vocab, **SHAPE)).initialize(make_generator(seed, "weights"))
    config = pretraining.PretrainingConfig(data="sums", seed=seed, eval_every=10**6, **PRETRAINING)
    corpus = Documents(tokenizer, config.batch_size, share, seed)
    pretraining.train(config, model, corpus, MetricLog(0))
    save_gpt(folder / MODEL_FILE, model, tokenizer)
    return measured(model, tokenizer)


def open_start(root: Path, share: int, seed: int) -> tuple[GPT, Tokenizer]:
    return load_gpt(root / start_name(share, seed), torch.device("cpu"))


def sampled(policy: GPT, tokenizer: Tokenizer, prompts: int = PROMPTS, each: int = EACH) -> Rollout:
    """Answers to the first test prompts; the random numbers are the same for every policy."""
    records, params = sums.prompts("test", prompts), SamplingParams(max_new_tokens=NEW_TOKENS)
    return sample_rollout(policy, tokenizer, records, params, each, make_generator(0, "claims"))


@torch.no_grad()
def measured(
    policy: GPT, tokenizer: Tokenizer, start: tuple[GPT, ResponseBatch] | None = None
) -> dict[str, float | None]:
    """What is kept of a policy; with the start and answers of it, both KLs in nats an answer.

    Accuracy is pass@1; pass@k is unbiased (Chen et al. 2021), of EACH answers to each of PROMPTS prompts.
    """
    rollout = sampled(policy, tokenizer)
    right, lengths = REWARD.correct(rollout), rollout.lengths.float()
    part = some(rollout)
    entropy = token_scores(policy, part).entropy.sum() / part.response_mask.sum()
    numbers: dict[str, float | None] = {
        "accuracy": float(right.float().mean()),
        "steps": sum(map(sums.uses_steps, rollout.responses)) / len(rollout),
        "length": float(lengths.mean()),
        "entropy": float(entropy),  # nats a token
    }
    numbers |= {f"pass@{k}": pass_at_k(right.view(-1, EACH), k) for k in (8, EACH)}
    for name, rows in (("length_right", right), ("length_wrong", ~right)):
        numbers[name] = float(lengths[rows].mean()) if rows.any() else None
    if start is not None:
        model, before = start
        numbers["kl"] = float(reverse_kl(policy, model, part).full.mean())
        numbers["kl_back"] = float(reverse_kl(model, policy, before).full.mean())
    return numbers


def some(rollout: Rollout) -> ResponseBatch:
    """The first SCORED answers to each prompt: enough where a whole distribution is compared."""
    within = torch.arange(len(rollout)) % EACH < SCORED
    return rollout.sequences.rows(within.nonzero()[:, 0])
