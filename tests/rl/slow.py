"""Slow code that shares nothing with the engines: row by row, without padding, by loops."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Sequence

import torch
from toys import LETTERS, flat_gradient

from gpt.model import GPT
from rl.batches.rollout import Rollout

# Prompt, response, and a weight for all of the response or one for each token.
Answer = tuple[list[int], list[int], float | list[float]]


def tokens_of(rollout: Rollout, row: int) -> tuple[list[int], list[int]]:
    """Prompt and response of one row, without padding."""
    response = rollout.response_tokens[row][rollout.response_mask[row]].tolist()
    return LETTERS.encode(rollout.records[row].prompt), response


def chosen(
    model: GPT, prompt: list[int], response: list[int], temperature: float = 1.0
) -> list[torch.Tensor]:
    """log-probability of every response token, from an unpadded forward of one row."""
    log_probs = (model(torch.tensor([prompt + response]))[0] / temperature).log_softmax(-1)
    return [log_probs[len(prompt) - 1 + t, token] for t, token in enumerate(response)]


def log_prob(model: GPT, prompt: list[int], response: list[int]) -> torch.Tensor:
    """log pi(y|x) of one unpadded row."""
    return sum(chosen(model, prompt, response))


def weighted_gradient(policy: GPT, answers: Sequence[Answer]) -> torch.Tensor:
    """The flat gradient of -sum_i sum_t w_it log pi(y_it), row by row, unpadded."""
    policy = copy.deepcopy(policy)
    policy.zero_grad(set_to_none=True)
    loss = torch.zeros(())
    for prompt, response, weight in answers:
        terms = chosen(policy, prompt, response) if weight else []
        each = weight if isinstance(weight, list) else [weight] * len(terms)
        loss = loss - sum(w * term for w, term in zip(each, terms, strict=True))
    loss.backward()
    return flat_gradient(policy)


def z_scores(values: list[float], size: int = 4) -> list[float]:
    """(value - mean) / (std + 1e-4) within groups, by `statistics`."""
    scores = []
    for start in range(0, len(values), size):
        group = values[start : start + size]
        mean, spread = statistics.mean(group), statistics.stdev(group) + 1e-4
        scores += [(value - mean) / spread for value in group]
    return scores


def assert_gradient(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-4) -> None:
    """Equal within `tolerance` of the largest component, which is no rounding itself."""
    largest = float(expected.abs().max())
    assert largest > 0.005
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * largest)


def differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    """By more than a hundredth of the largest component."""
    return float((one - other).abs().max()) > 0.01 * float(one.abs().max())
