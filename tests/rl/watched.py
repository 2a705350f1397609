"""What a run does that its rows do not tell: rollouts, gradients and policies on the way."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import pytest
import torch
from engines import DIVERSE, Engine, small_gpt
from toys import weights

from gpt.model import GPT
from rl import loop
from rl.batches.rollout import Rollout
from rl.rewards.teacher_reward import TeacherReward


def numbers(rows) -> list[dict[str, float]]:
    """What was measured, without the times."""
    return [{key: value for key, value in row.items() if "second" not in key} for row in rows]


class Noted:
    """Keeps every rollout that passes through a reward."""

    def __init__(self, reward) -> None:
        self.reward, self.name = reward, reward.name
        self.rollouts: list[Rollout] = []

    def __call__(self, rollout: Rollout) -> torch.Tensor:
        self.rollouts.append(rollout)
        return self.reward(rollout)


class NotedTeacher(TeacherReward):
    """The same of a teacher's reward."""

    def __init__(self, reward: TeacherReward) -> None:
        options = dict(aggregate=reward.aggregate, reverse_kl=reward.reverse_kl)
        super().__init__(reward.teacher, reward.config, **options)
        self.rollouts: list[Rollout] = []

    def with_metrics(self, rollout: Rollout):
        self.rollouts.append(rollout)
        return super().with_metrics(rollout)


def seen_gradients(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The flat gradient of each optimizer step from now on, as it reaches the clip.

    Where a critic learns too: policy, critic, policy, critic, ...
    """
    seen: list[torch.Tensor] = []
    real = torch.nn.utils.clip_grad_norm_

    def spy(parameters, *args, **options):
        parameters = list(parameters)
        seen.append(torch.cat([p.grad.flatten().clone() for p in parameters if p.grad is not None]))
        return real(parameters, *args, **options)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", spy)
    return seen


class Call(NamedTuple):
    """What a function was given and what it gave back."""

    args: tuple
    result: Any


def calls_of(monkeypatch: pytest.MonkeyPatch, place: Any, name: str) -> list[Call]:
    """Every call of the function `name` of a module from now on."""
    seen: list[Call] = []
    real = getattr(place, name)

    def spy(*args, **options):
        seen.append(Call(args, real(*args, **options)))
        return seen[-1].result

    monkeypatch.setattr(place, name, spy)
    return seen


def flip(monkeypatch: pytest.MonkeyPatch, place: Any, name: str) -> None:
    """From now on the function `name` of a module gives minus what it gave."""
    real = getattr(place, name)
    monkeypatch.setattr(place, name, lambda *args, **options: -real(*args, **options))


class Validations:
    """A validation that keeps a copy of the policy and of the reference."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.policies: list[GPT] = []
        self.references: list[GPT | None] = []

    def __call__(self, policy: GPT, reference: GPT | None, step: int) -> dict[str, float]:
        self.steps.append(step)
        self.policies.append(copy.deepcopy(policy))
        self.references.append(copy.deepcopy(reference))
        return {}


class Updates:
    """The flat gradient of each optimizer step, as it reaches the clip, and the policy before it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, policy: GPT) -> None:
        self.policies: list[GPT] = []
        real = torch.optim.AdamW.step

        def spy(optimizer, *args, **options):
            self.policies.append(copy.deepcopy(policy))
            return real(optimizer, *args, **options)

        monkeypatch.setattr(torch.optim.AdamW, "step", spy)
        self.gradients = seen_gradients(monkeypatch)


def same_update(monkeypatch: pytest.MonkeyPatch, engine: Engine, **options: Any) -> list[list]:
    """Hold that micro-batches change nothing but the order of sums; the metrics of both runs.

    In float64, teacher and critic too: float32's rounding, where a gradient is 0, becomes whole
    steps of Adam. Gradients agree to 1e-9 of their largest component; it leaves some 1e-13.
    """
    gradients = seen_gradients(monkeypatch)
    ends, logs, count = [], [], 0
    for size in (engine.smallest, 64):
        policy = small_gpt().double()
        reward = DIVERSE if engine.rule else None
        rows = engine.run(policy, reward, micro_batch_size=size, **options)
        logs.append(numbers(rows))
        ends.append(weights(policy))
        count = count or len(gradients)
    assert len(gradients) == 2 * count > 2
    assert sum(bool(gradient.any()) for gradient in gradients) > 0.6 * len(gradients)
    for a, b in zip(gradients[:count], gradients[count:], strict=True):
        assert a.dtype == torch.float64
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9 * max(float(b.abs().max()), 1e-3))
    torch.testing.assert_close(*ends, rtol=0, atol=1e-6)
    return logs


HALVES = [[4, 5, 6, 7, 12, 13, 14, 15], [0, 1, 2, 3, 8, 9, 10, 11]]  # of four whole groups


def given_halves(monkeypatch: pytest.MonkeyPatch, passes: int = 1) -> None:
    """The minibatches of a run are HALVES, that many times."""
    halves = [torch.tensor(half) for half in HALVES] * passes
    monkeypatch.setattr(loop, "epoch_minibatches", lambda *args: halves)
