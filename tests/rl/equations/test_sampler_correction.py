"""What corrects for another sampler: worked numbers, and every answer of small worlds listed."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import pytest
import torch
from torch import Tensor

from rl.equations.losses import clipped_surrogate
from rl.equations.sampler_correction import (
    CORRECTIONS,
    Correction,
    Name,
    binary_kl,
    binary_tv,
    dppo,
    dppo_left_out,
    effective_share,
    sampler_weights,
)

OVER_MU = torch.tensor([[0.4, 1.5, 3.0, 9], [0.6, 1.9, 9, 9]], dtype=torch.float64)  # pi_old / mu
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]).bool()
OLD = torch.full((2, 4), -2.0, dtype=torch.float64)
WEIGHTED = [name for name, row in CORRECTIONS.items() if row.of is not None]


def test_the_names_of_the_flag_are_the_rows_of_the_table():
    assert list(CORRECTIONS) == list(get_args(Name))


# Worked numbers


@pytest.mark.parametrize(
    ("of", "limit", "floor", "cap", "first", "second"),
    [
        ("token", "all", 0.5, 2.0, [0.4, 1.5, 3], [0.6, 1.9]),
        ("token", "truncate", 0.5, 2.0, [0.4, 1.5, 2], [0.6, 1.9]),
        ("token", "mask", 0.5, 2.0, [0, 1.5, 0], [0.6, 1.9]),
        ("sequence", "all", 0.5, 2.0, [1.8] * 3, [1.14] * 2),  # the products
        ("sequence", "truncate", 0.5, 1.7, [1.7] * 3, [1.14] * 2),
        ("sequence", "mask", 0.5, 1.7, [0] * 3, [1.14] * 2),
        ("sequence", "mask", 1.9, 9.0, [0] * 3, [0] * 2),
        ("geometric", "all", 0.5, 2.0, [1.21644] * 3, [1.067708] * 2),  # the geometric means
        ("geometric", "truncate", 0.5, 1.2, [1.2] * 3, [1.067708] * 2),
        ("geometric", "mask", 0.5, 1.2, [0] * 3, [1.067708] * 2),
        ("geometric", "mask", 1.1, 1.3, [1.21644] * 3, [0] * 2),
    ],
)
def test_weights(of, limit, floor, cap, first, second):
    """Padding weighs 0."""
    found = sampler_weights(OLD, OLD - OVER_MU.log(), MASK, of, limit, floor, cap)
    expected = torch.tensor([[*first, 0], [*second, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", WEIGHTED)
def test_where_mu_is_the_old_policy_every_weight_is_one_to_the_last_bit(name):
    old = -torch.rand(5, 7, generator=torch.Generator().manual_seed(0)) * 9
    mask, row = torch.arange(7) < torch.tensor([[7], [5], [1], [3], [0]]), CORRECTIONS[name]
    found = sampler_weights(old, old.clone(), mask, row.of, row.limit, 0.5, 2.0)
    assert torch.equal(found, mask.float())


def test_effective_share():
    """(1 + 2 + 3)^2 / (3 * 14); equal weights count whatever they are."""
    assert effective_share(torch.tensor([1.0, 2, 3])).item() == pytest.approx(36 / 42)
    assert effective_share(torch.full((5,), 0.3)).item() == pytest.approx(1)
    assert effective_share(torch.tensor([1.0, 0, 0, 0])).item() == pytest.approx(0.25)


def test_binary_divergences():
    """mu 0.5 against pi 0.8 and back, and a rare token whose ratio of 10 is a small step."""
    pi, mu = torch.tensor([[0.8, 0.5, 0.01]]).log(), torch.tensor([[0.5, 0.8, 0.001]]).log()
    assert binary_tv(pi, mu)[0].tolist() == pytest.approx([0.3, 0.3, 0.009], abs=1e-6)
    by_hand = [
        0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(0.5 / 0.2),
        0.8 * math.log(0.8 / 0.5) + 0.2 * math.log(0.2 / 0.5),
        0.001 * math.log(0.1) + 0.999 * math.log(0.999 / 0.99),
    ]
    assert by_hand[:2] == pytest.approx([0.223144, 0.192745], abs=1e-6)
    assert binary_kl(pi, mu)[0].tolist() == pytest.approx(by_hand, abs=1e-6)
    certain = binary_kl(torch.zeros(1, 1), torch.tensor([[-0.1]]))  # pi = 1
    assert certain.isfinite().all()


def test_dppo():
    """By hand, A = 1 and -1: kept where it moves back or not too far; the ratio is bounded by 20."""
    pi = torch.tensor([[0.8, 0.5, 0.5], [0.8, 0.2, 0.5]], dtype=torch.float64)
    mu = torch.tensor([[0.5, 0.8, 0.02], [0.5, 0.5, 0.5]], dtype=torch.float64)
    advantages = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    left_out = [[True, False, True], [False, True, False]]
    log_probs = pi.log().requires_grad_()
    given = (mu.log(), advantages, "tv", 0.2)
    assert dppo_left_out(log_probs, *given).tolist() == left_out
    loss = dppo(log_probs, *given)
    (gradient,) = torch.autograd.grad(loss.sum(), log_probs)
    torch.testing.assert_close(
        gradient, torch.tensor([[0, -0.625, 0], [1.6, 0, 1.0]], dtype=torch.float64)
    )
    assert loss[0, 1].item() == pytest.approx(-0.625 * math.log(0.5))
    (bounded,) = torch.autograd.grad(
        dppo(log_probs, mu.log(), advantages, "tv", 1.0).sum(), log_probs
    )
    assert bounded[0, 2].item() == pytest.approx(-20)
    border = binary_kl(log_probs, mu.log())[0, 0].item()  # 0.223, which is kept itself
    for delta, kept in ((0.25, True), (border, True), (0.2, False)):
        found = dppo_left_out(log_probs, mu.log(), advantages, "kl", delta)
        assert bool(found[0, 0]) is not kept


# Every answer listed

LETTERS, LENGTH, WORLDS = 4, 6, 8
NOISE = {"little": 0.205, "much": 0.5, "most": 1.0}  # in the logits: KL 0.07, 0.43 and 1.6
DELTA = {"tv": 0.2, "kl": 0.05}
FULL = Correction("all of the sequence's ratio", "sequence", "all")


@dataclass(frozen=True)
class World:
    """A random bigram language, pi, whose answers have random rewards; mu's logits are pi's plus noise.

    All 4,096 answers of six letters are listed, so a correction's gradient is a sum over them.
    """

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


@pytest.mark.parametrize("seed", range(WORLDS))
def test_the_whole_ratio_of_a_response_is_unbiased(seed):
    """E_mu[pi(y) / mu(y) A grad log pi(y)] is the gradient under pi, to 1e-12."""
    for noise in NOISE.values():
        world = World(seed, noise)
        chance = world.log_probs(world.drawn[1]).sum(1).exp()
        found = chance @ world.gradients(FULL)
        torch.testing.assert_close(found, world.truth(), atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", CORRECTIONS)
def test_no_row_of_the_table_is_unbiased(name):
    """Each one's bias is 1% of the gradient or more, in every world; without noise it is 0."""
    row = CORRECTIONS[name]
    for seed in range(3):
        assert World(seed, NOISE["much"]).measured(row)["bias"] > 0.01
        assert World(seed, 0.0).measured(row)["bias"] < 1e-12


def test_what_keeps_a_row_from_being_unbiased():
    """The bounds, and the tokens before: without bounds, or on answers of one token, there is none."""
    wide = dict(floor=0.0, cap=math.inf)
    for seed in range(3):
        short, long = (World(seed, NOISE["much"], length) for length in (1, 6))
        for name in ("sequence_tis", "sequence_mask"):
            assert long.measured(CORRECTIONS[name], **wide)["bias"] < 1e-12
        for name in ("token_tis", "masked", "geometric_tis", "geometric_mask"):
            assert short.measured(CORRECTIONS[name], **wide)["bias"] < 1e-12
            assert long.measured(CORRECTIONS[name], **wide)["bias"] > 0.1
        assert short.measured(CORRECTIONS["decoupled"])["bias"] < 1e-12
        assert short.measured(CORRECTIONS["none"])["bias"] > 0.1
