"""What a policy's answers to the same prompts are worth: length, distance to the start, variety."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from data.records import PromptRecord
from gpt.generate import SamplingParams
from gpt.log_probs import token_log_probs
from gpt.model import GPT
from gpt.ranks import score_in_micro_batches
from gpt.tokenizer import Tokenizer
from harness.device import precision
from harness.seeds import make_generator
from harness.tensors import masked_sum
from rl.batches.rollout import Rollout, sample_rollout, select_rows


@dataclass(frozen=True)
class Bench:
    """The start of every policy, and the prompts that each of them answers."""

    start: GPT
    tokenizer: Tokenizer
    prompts: Sequence[PromptRecord]
    params: SamplingParams
    precision: str = "float32"
    rows: int = 32  # that are sampled or scored together

    def answers(self, policy: GPT, samples: int = 1) -> list[Rollout]:
        """Sampled with the same random numbers for every policy; `samples` rows a prompt."""
        size, generator = max(self.rows // samples, 1), make_generator(0, "evaluation")
        sample = partial(sample_rollout, policy, self.tokenizer)
        with precision(policy.device, self.precision):
            return [
                sample(self.prompts[at : at + size], self.params, samples, generator)
                for at in range(0, len(self.prompts), size)
            ]

    @torch.no_grad()
    def measure(self, policy: GPT, rollouts: Sequence[Rollout]) -> dict[str, Any]:
        """The answers, whether each has ended and its tokens, and of all together: KL, perplexity, variety.

        `kl` is the mean of log pi - log pi_start of an answer's sampled tokens, nats; `perplexity` is that
        of the start. Both models score in the same way: the sampler's own log-probs round otherwise.
        """
        texts = [text for rollout in rollouts for text in rollout.responses]
        kl = of_start = 0.0
        for rollout in rollouts:
            own, expected = (self.log_probs(model, rollout) for model in (policy, self.start))
            kl += float(masked_sum(own - expected, rollout.response_mask).sum())
            of_start += float(expected.sum())
        return {
            "kl": kl / len(texts),
            "perplexity": math.exp(-of_start / sum(rollout.tokens for rollout in rollouts)),
            "distinct_2": distinct(texts, 2),
            "tokens": [int(n) for rollout in rollouts for n in rollout.lengths],
            "ended": [bool(e) for rollout in rollouts for e in rollout.has_eos],
            "answers": texts,
        }

    def log_probs(self, model: GPT, rollout: Rollout) -> Tensor:
        """Of the sampled tokens, (N, T), 0 at padding."""
        score = partial(token_log_probs, model, temperature=self.params.temperature)
        with precision(model.device, self.precision):
            return score_in_micro_batches(score, rollout.sequences, self.rows)


def one_each(rollout: Rollout, liked: Tensor) -> Rollout:
    """Of the answers to each prompt the one that is liked best, the first of equals; `liked` is (N,)."""
    best = liked.view(-1, rollout.group_size).argmax(1)
    return select_rows(rollout, rollout.group_size * torch.arange(len(best)) + best.cpu())


def distinct(texts: Sequence[str], n: int) -> float:
    """Different n-grams of words over all n-grams, in all texts together (Li et al. 2016)."""
    grams: Counter[tuple[str, ...]] = Counter()
    for text in texts:
        words_of = text.split()
        grams.update(tuple(words_of[i : i + n]) for i in range(len(words_of) - n + 1))
    return len(grams) / max(grams.total(), 1)


def kl_of_best(n: int) -> float:
    """What best of n is away from its model at most, nats (Stiennon et al. 2020, arXiv:2009.01325, G.3)."""
    return math.log(n) - 1 + 1 / n
