"""nano/async_grpo.py has no engine: without a lag it is nano/grpo.py, and with one it is the equations."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import pytest
import torch
from test_equal_to_engines import PROMPTS, two_models, varied

from nano import async_grpo, grpo
from nano import gpt as nano_gpt
from rl.equations.advantages import group_advantages
from rl.equations.kl import k3
from rl.equations.losses import clipped_surrogate, sequence_mean

STEPS, LAG, CAP, KL = 4, 3, 1.2, 0.3


def run(module: ModuleType, policy: Any, **options: Any) -> list[dict[str, float]]:
    flags = dict(steps=STEPS, prompts_per_step=4, group_size=4, lr=3e-3, kl_coef=KL, seed=3)
    return module.train(policy, varied, PROMPTS, **flags, **options)


class Watched:
    """Who drew each batch and what, and the policy before each optimizer step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, policy: Any) -> None:
        self.policies: list[Any] = []
        self.batches: list[tuple[Any, ...]] = []
        sample, clip = nano_gpt.sample, torch.nn.utils.clip_grad_norm_

        def drawn(mu: Any, prompts: list[str], *given: Any) -> Any:
            tokens, mask = sample(mu, prompts, *given)
            self.batches.append((copy.deepcopy(mu), prompts, tokens, mask))
            return tokens, mask

        def clipped(*given: Any) -> Any:
            self.policies.append(copy.deepcopy(policy))
            return clip(*given)

        monkeypatch.setattr(nano_gpt, "sample", drawn)
        monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clipped)


def same(model: torch.nn.Module, other: torch.nn.Module) -> bool:
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return all(torch.equal(p, q) for p, q in pairs)


def test_without_a_lag_it_is_grpo_bit_for_bit(monkeypatch):
    """Where both draw from one stream of random numbers: it takes a new one at every step."""
    real, streams = nano_gpt.generator, {}

    def one_stream(seed: int, purpose: str) -> torch.Generator:
        name = purpose.split()[0]
        return streams.setdefault(name, real(seed, name))

    monkeypatch.setattr(nano_gpt, "generator", one_stream)
    (policy, _), (other, _) = two_models(), two_models()
    rows = run(grpo, policy)
    streams.clear()
    assert run(async_grpo, other, lag=0) == rows
    assert same(policy, other) and not same(policy, two_models()[0])


@pytest.mark.parametrize(("lag", "ages"), [(3, [0, 3, 3, 3]), (6, [0, 4, 6, 6])])
def test_the_sampler_is_that_many_updates_old(monkeypatch, lag, ages):
    """Four updates a batch: two epochs of two minibatches."""
    policy, _ = two_models()
    watched = Watched(monkeypatch, policy)
    run(async_grpo, policy, lag=lag)
    drew = [mu for mu, *_ in watched.batches]
    expected = [watched.policies[4 * step - age] for step, age in enumerate(ages)]
    assert all(same(mu, old) for mu, old in zip(drew, expected, strict=True))
    assert not same(drew[-1], watched.policies[4 * (STEPS - 1)])


def test_the_loss_is_that_of_the_equations(monkeypatch):
    """Of every update, with token TIS at its cap and below 1; the advantages carry the weights."""
    policy, _ = two_models()
    reference, watched = copy.deepcopy(policy), Watched(monkeypatch, policy)
    rows = run(async_grpo, policy, lag=LAG, cap=CAP, minibatches=1)
    weights = []
    for step, (mu, prompts, tokens, mask) in enumerate(watched.batches):
        now = watched.policies[2 * step : 2 * step + 2]
        with torch.no_grad():
            drew, ref, old, *_ = (nano_gpt.log_probs(m, tokens) for m in (mu, reference, now[0]))
            news = [nano_gpt.log_probs(model, tokens) for model in now]
        w = torch.where(mask > 0, old - drew, 0.0).exp().clamp(max=CAP)  # (N, T)
        paid = map(varied, prompts, nano_gpt.decode(tokens, mask))
        advantages = w * group_advantages(torch.tensor(list(paid)), 4)
        losses = [
            sequence_mean(
                clipped_surrogate(new, old, advantages, 0.2, 0.2) + KL * k3(new, ref), mask
            )
            for new in news
        ]
        assert rows[step]["loss"] == pytest.approx(float(sum(losses)) / 2, rel=1e-10)
        weights += w[mask > 0].tolist()
    assert max(weights) == CAP and min(weights) < 0.9 and weights.count(CAP) < len(weights) / 2
