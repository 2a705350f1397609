"""The numbers that every engine logs under the same keys (docs/metrics.md explains each)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from data.collate import ResponseBatch
from gpt.log_probs import TokenScores
from harness.device import on_device
from harness.ranks.collectives import all_reduce_sum, gather
from harness.tensors import masked_sum
from rl.batches.rollout import Rollout, Update
from rl.equations.kl import k1, k3, rho_minus_log
from rl.equations.losses import clip_acted, likelihood_ratio


def wait_for_device() -> None:
    """Wait until the GPU that this process uses, if any, has finished its work."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()


class Stopwatch:
    """Seconds spent per named phase of a step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the enclosed block to `name`."""
        begin = time.perf_counter()
        try:
            yield
        finally:  # a loop that is left early, too
            wait_for_device()
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin

    def metrics(self, tokens: int) -> dict[str, float]:
        """seconds/NAME per phase and the sampled tokens per second of the whole step."""
        total = sum(self.seconds.values())
        return {f"seconds/{name}": value for name, value in self.seconds.items()} | {
            "tokens_per_second": tokens / max(total, 1e-9)
        }


def sequence_kl(log_probs: Tensor, ref_log_probs: Tensor, mask: Tensor) -> Tensor:
    """The KL per response in nats, a scalar: the mean over responses of k1 summed over their tokens."""
    return masked_sum(k1(log_probs, ref_log_probs), mask).mean()


@torch.no_grad()
def rollout_metrics(
    rollout: Rollout, rewards: Tensor, old_log_probs: Tensor, ref_log_probs: Tensor | None
) -> dict[str, float]:
    """Rewards, lengths and the KL of the sampling policy from the reference, before the update."""
    metrics: dict[str, Tensor | float] = {
        "reward": rewards.mean(),
        "reward_std": rewards.std() if len(rewards) > 1 else 0.0,
        "response_length": rollout.lengths.float().mean(),
        "eos_rate": rollout.has_eos.float().mean(),
        "distinct_responses": len(set(rollout.responses)) / len(rollout),
    }
    if rollout.group_size > 1:
        groups = rewards.view(-1, rollout.group_size)
        spread = groups.amax(1) > groups.amin(1)
        metrics["zero_spread_groups"] = 1 - spread.float().mean().double()
    if ref_log_probs is not None:
        mask = rollout.response_mask
        metrics["kl"] = kl = sequence_kl(old_log_probs, ref_log_probs, mask)
        metrics["kl_per_token"] = kl / rollout.lengths.float().mean().to(kl.device)
        metrics["kl_k3"] = masked_sum(k3(old_log_probs, ref_log_probs), mask).mean()
    (floats,) = on_cpu([*metrics.values()])
    return dict(zip(metrics, floats, strict=True)) | rollout.reward_metrics


@torch.no_grad()
def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> dict[str, float]:
    """1 - Var(returns - values) / Var(returns) over valid tokens; 0 is what a constant would score.

    Left out where all returns are equal.
    """
    valid, errors = returns[mask], (returns - values)[mask]
    if len(valid) < 2 or float(valid.var()) == 0:
        return {}
    return {"explained_variance": 1 - float(errors.var() / valid.var())}


Ratio = Callable[[Tensor, Tensor, Tensor], Tensor]


def token_ratio(log_probs: Tensor, old_log_probs: Tensor, mask: Tensor) -> Tensor:
    """The ratio of each token, (n, T); the mask is ignored."""
    return likelihood_ratio(log_probs, old_log_probs)


# (log_probs, old_log_probs, advantages, mask), (n, T) each -> where the clip acts, (n, T) or (n, 1) bool
ClipMask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def clip_mask(low: float, high: float | None = None, ratio: Ratio = token_ratio) -> ClipMask:
    """Where the min of a surrogate takes the clipped term; `high` is `low` unless it is given."""
    high = low if high is None else high
    return lambda new, old, A, mask: clip_acted(ratio(new, old, mask), A, low, high)


def no_clip(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """The mask of a loss without a clip: False everywhere."""
    return torch.zeros_like(mask)


class UpdateMeter:
    """Token-weighted means over all micro-batches of one step's updates."""

    def __init__(self, clip_mask: ClipMask = no_clip) -> None:
        self.clip_mask = clip_mask
        self.tokens = self.updates = 0
        # What each micro-batch adds up over its tokens, each update's losses and norms, by name.
        self.sums: dict[str, list[Tensor]] = {}
        self.parts: dict[str, list[Tensor | float]] = {"loss": []}
        self.norms: dict[str, list[Tensor | float]] = {"grad_norm": []}
        self.deviations: list[Tensor] = []  # max |ratio - 1| of each micro-batch before any update
        self.minibatch_kl: list[Tensor] = []
        self.minibatch_tokens = 0

    @torch.no_grad()
    def add_tokens(
        self,
        scores: TokenScores,
        old_log_probs: Tensor,  # (n, T)
        advantages: Tensor,  # (n, T) or (n, 1)
        batch: ResponseBatch,
        **extra: Tensor,  # (n, T) each
    ) -> None:
        """Record one micro-batch, without asking the device; `extra`: an engine's own numbers."""
        mask = batch.response_mask
        clipped = self.clip_mask(scores.log_probs, old_log_probs, advantages, mask).expand_as(mask)
        ratio = batch.of_valid(likelihood_ratio(scores.log_probs, old_log_probs))
        kl = batch.of_valid(rho_minus_log(scores.log_probs, old_log_probs))  # KL(old || new)
        positive = (advantages > 0).expand_as(mask)
        measured = {
            "clip_high_fraction": batch.of_valid(clipped & positive),
            "clip_low_fraction": batch.of_valid(clipped & ~positive),
            "entropy": batch.of_valid(scores.entropy),
            "approx_kl": kl,
            **{name: batch.of_valid(values.detach()) for name, values in extra.items()},
        }
        for name, values in measured.items():
            self.sums.setdefault(name, []).append(values.sum().to(kl.dtype))
        self.minibatch_kl.append(kl.sum())
        self.minibatch_tokens += len(ratio)
        self.tokens += len(ratio)
        if not self.updates and len(ratio):  # before it the policy is the old policy
            self.deviations.append((ratio - 1).abs().max())

    def add_update(
        self,
        loss: Tensor,
        norm: Tensor,
        critic_grad_norm: Tensor | float | None = None,
        **parts: float,
    ) -> None:
        """Record one optimizer step: its loss, what that is made of, the norms from before the clip.

        Loss and `parts` are of this rank's rows, and add up; the norms are the same on every rank.
        """
        self.parts["loss"].append(loss)
        for name, value in parts.items():
            self.parts.setdefault(name, []).append(value)
        self.norms["grad_norm"].append(norm)
        if critic_grad_norm is not None:
            self.norms.setdefault("critic_grad_norm", []).append(critic_grad_norm)
        self.updates += 1
        self.minibatch_kl, self.minibatch_tokens = [], 0

    @property
    def approx_kl(self) -> float:
        """KL(old || new) per token over all ranks' micro-batches since the last optimizer step."""
        kl = sum(*on_cpu(self.minibatch_kl))
        both = all_reduce_sum({"kl": kl, "tokens": self.minibatch_tokens})
        return both["kl"] / max(both["tokens"], 1)

    def moved_beyond(self, limit: float | None) -> bool:
        """Whether `approx_kl` is above `limit`; without a limit never, and a NaN is above any."""
        return limit is not None and exceeds(self.approx_kl, limit)

    def metrics(self) -> dict[str, float]:
        """The step's means; ratio_error_at_start is max |ratio - 1| before the first update."""
        measured = self.sums | self.parts | self.norms
        deviations, *numbers = on_cpu(self.deviations, *measured.values())
        sums = dict(zip(measured, map(sum, numbers), strict=True))
        norms = {name: sums.pop(name) for name in self.norms}  # the same on every rank
        sums = all_reduce_sum(sums | {"tokens": self.tokens})
        tokens, updates = max(sums.pop("tokens"), 1), max(self.updates, 1)
        means = {name: sums[name] / (updates if name in self.parts else tokens) for name in sums}
        return means | {
            **{name: norm / updates for name, norm in norms.items()},
            "ratio_error_at_start": largest(gather(largest([0.0, *deviations]))),
        }


@dataclass(frozen=True)
class StepBatch:
    """The rollout that a step was trained on, for the token log."""

    rollout: Rollout
    rewards: Tensor  # (N,)
    update: Update
    clip_mask: ClipMask


def on_cpu(*groups: Sequence[Tensor | float]) -> list[list[float]]:
    """Each group's numbers, tensors () among them, as floats; the device is waited for once."""
    tensors = [x.detach() for group in groups for x in group if isinstance(x, Tensor)]
    read: Iterator[float] = iter(())
    if tensors:
        widest = max((tensor.dtype for tensor in tensors), key=lambda dtype: dtype.itemsize)
        # Towards the GPU if there is one: a copy from it that is not waited for may be read too early.
        home = max((tensor.device for tensor in tensors), key=lambda device: device.type != "cpu")
        read = iter(torch.stack([on_device(x, home).to(widest) for x in tensors]).tolist())
    return [[next(read) if isinstance(x, Tensor) else float(x) for x in group] for group in groups]


def largest(deviations: Sequence[float]) -> float:
    """The largest of some numbers; one that is NaN is larger than any."""
    return max(deviations, key=lambda value: math.inf if math.isnan(value) else value)


def exceeds(kl: float, limit: float) -> bool:
    """Whether kl > limit; a KL that is NaN counts as above every limit."""
    return math.isnan(kl) or kl > limit
