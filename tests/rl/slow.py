"""Slow code that shares nothing with the engines: row by row, by loops; and a minibatch for it."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Sequence

import torch
from toys import LETTERS, flat_gradient, randomized

from gpt.model import GPT, GPTConfig
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


# A minibatch of three and of two tokens and an empty row, with garbage in the padding: ratios inside
# and outside of a clip at 0.8 and 1.2.
RATIO = torch.tensor([[1.0, 2.0, 0.7, 9], [0.5, 2.2, 1.1, 9], [9, 9, 9, 9]])
OLD = torch.full((3, 4), -2.0)
NEW = OLD + RATIO.log()
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()


def pessimistic(ratio: float, advantage: float, low: float = 0.8, high: float = 1.2) -> float:
    """-min(ratio A, clip(ratio) A)."""
    return -min(ratio * advantage, min(max(ratio, low), high) * advantage)


def tiny_gpt(seed: int) -> GPT:
    return randomized(GPT(GPTConfig(3, 8, n_layer=1, n_head=1, n_embd=6)).double().eval(), seed)


def after(rewards: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The sum of the rewards of the tokens after t, by loops."""
    table = torch.zeros_like(rewards)
    for i, row in enumerate(mask.tolist()):
        for t in range(sum(row)):
            table[i, t] = sum(float(rewards[i, u]) for u in range(t + 1, sum(row)))
    return table
