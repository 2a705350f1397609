"""Off-policy corrections without sampling: every answer of a small world is listed.

A world is a random bigram language of 4 letters, whose answers have 6 of them: 4,096 answers, each with
a random reward. mu's logits are pi's plus noise. A correction's gradient is then a sum over the answers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from rl.equations.losses import clipped_surrogate
from rl.equations.sampler_correction import CORRECTIONS, Correction, dppo, sampler_weights

LETTERS, LENGTH, WORLDS = 4, 6, 8
NOISE = {"little": 0.205, "much": 0.5, "most": 1.0}  # in the logits: KL 0.07, 0.43 and 1.6
DELTA = {"tv": 0.2, "kl": 0.05}
FULL = Correction("all of the sequence's ratio", "sequence", "all")


@dataclass(frozen=True)
class World:
    """pi, mu and the rewards of one world; `length` letters an answer."""

    seed: int
    noise: float
    length: int = LENGTH

    @cached_property
    def answers(self) -> Tensor:
        """(N, T) letters."""
        return torch.tensor(list(itertools.product(range(LETTERS), repeat=self.length)))

    @cached_property
    def drawn(self) -> tuple[Tensor, Tensor, Tensor]:
        """pi's logits (5, 4), row 0 for the first letter; mu's; the rewards (N,)."""
        generator = torch.Generator().manual_seed(self.seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        logits = normal(LETTERS + 1, LETTERS)
        return logits, logits + self.noise * normal(LETTERS + 1, LETTERS), normal(len(self.answers))

    def log_probs(self, logits: Tensor) -> Tensor:
        """(N, T)."""
        before = torch.nn.functional.pad(self.answers[:, :-1] + 1, (1, 0))
        rows = logits.log_softmax(-1)[before]
        return rows.gather(-1, self.answers[..., None]).squeeze(-1)

    @cached_property
    def advantages(self) -> Tensor:
        """(N, 1): the reward less its mean under pi."""
        logits, _, rewards = self.drawn
        return (rewards - self.log_probs(logits).sum(1).exp() @ rewards)[:, None]

    @cached_property
    def kl(self) -> float:
        """KL(mu, pi) of an answer, in nats."""
        logits, mu, _ = self.drawn
        gap = self.log_probs(mu).sum(1) - self.log_probs(logits).sum(1)
        return float(self.log_probs(mu).sum(1).exp() @ gap)

    def truth(self) -> Tensor:
        """The gradient of pi's expected reward, (20,)."""
        logits = self.drawn[0].clone().requires_grad_()
        expected = self.log_probs(logits).sum(1).exp() @ self.drawn[2]
        return torch.autograd.grad(expected, logits)[0].flatten()

    def gradients(self, row: Correction, floor: float = 0.5, cap: float = 2.0) -> Tensor:
        """What each answer adds to the ascent by a correction at pi = pi_old, (N, 20)."""
        logits, mu, _ = self.drawn
        leaf = self.log_probs(logits).requires_grad_()
        old, drew = leaf.detach(), self.log_probs(mu)
        mask = torch.ones_like(old, dtype=torch.bool)
        if row.divergence is not None:
            loss = dppo(leaf, drew, self.advantages, row.divergence, DELTA[row.divergence])
        else:
            anchor = drew if row.against == "sampler" else old
            loss = clipped_surrogate(leaf, anchor, self.advantages, 0.2, 0.2)
            if row.of is not None:
                loss = loss * sampler_weights(old, drew, mask, row.of, row.limit, floor, cap)
        (of_tokens,) = torch.autograd.grad(-loss.sum(), leaf)  # (N, T)
        before = torch.nn.functional.pad(self.answers[:, :-1] + 1, (1, 0))
        score = torch.nn.functional.one_hot(self.answers, LETTERS) - logits.softmax(-1)[before]
        found = torch.zeros(len(old), LETTERS + 1, LETTERS, dtype=torch.float64)
        for t in range(self.length):
            found[torch.arange(len(old)), before[:, t]] += of_tokens[:, t, None] * score[:, t]
        return found.flatten(1)

    def measured(self, row: Correction, **bounds: float) -> dict[str, float]:
        """Cosine with the true gradient, bias and variance of one answer's estimate, in |g| and |g|^2."""
        each, truth = self.gradients(row, **bounds), self.truth()
        chance = self.log_probs(self.drawn[1]).sum(1).exp()
        mean = chance @ each
        size = truth.norm()
        return {
            "cosine": float(mean @ truth / (mean.norm() * size)),
            "bias": float((mean - truth).norm() / size),
            "variance": float((chance @ each.square().sum(1) - mean.square().sum()) / size**2),
        }


def exact_rows(count: int = WORLDS) -> Iterator[dict[str, Any]]:
    """Means over the worlds, for each amount of noise and each correction."""
    for noise, size in NOISE.items():
        worlds = [World(seed, size) for seed in range(count)]
        kl = sum(world.kl for world in worlds) / count
        rows: dict[str, Correction] = {**dict(CORRECTIONS.items()), "sequence_all": FULL}
        for name, row in rows.items():
            found = [world.measured(row) for world in worlds]
            means = {key: sum(each[key] for each in found) / count for key in found[0]}
            yield {"noise": noise, "kl": kl, "correction": name, **means}
