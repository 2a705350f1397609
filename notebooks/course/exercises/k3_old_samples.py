"""k3 for samples of an older policy: the importance ratio, differentiated as well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course.exercises import Case, Exercise, Mistake, random_log_probs
from rl.equations.kl import k3_importance


def k3_old_samples(log_probs: Tensor, old_log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    ratio = (log_probs - old_log_probs).exp()
    delta = ref_log_probs - log_probs
    return ratio * (delta.exp() - delta - 1)


def k3(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    delta = ref_log_probs - log_probs
    return delta.exp() - delta - 1


def batch(generator: torch.Generator) -> Mapping[str, Any]:
    old = random_log_probs(generator, 3, 4)
    return {
        "log_probs": old + 0.4 * torch.randn(3, 4, generator=generator),
        "old_log_probs": old,
        "ref_log_probs": old + 0.6 * torch.randn(3, 4, generator=generator),
    }


EXERCISE = Exercise(
    statement=(
        "Compute rho k3 per token, (N, T), with rho = pi / pi_old, delta = log pi_ref - log pi and "
        "k3 = exp(delta) - delta - 1. All three arguments are (N, T) log-probs of the sampled "
        "tokens."
    ),
    solution=k3_old_samples,
    library=k3_importance,
    cases=(
        Case(
            "probability 0.5, sampled at 0.25, reference 0.25",
            {
                "log_probs": torch.tensor([[0.5]]).log(),
                "old_log_probs": torch.tensor([[0.25]]).log(),
                "ref_log_probs": torch.tensor([[0.25]]).log(),
            },
            [[0.386294]],
        ),
        Case(
            "policy and reference agree",
            {
                "log_probs": torch.tensor([[-1.0]]),
                "old_log_probs": torch.tensor([[-2.0]]),
                "ref_log_probs": torch.tensor([[-1.0]]),
            },
            [[0.0]],
        ),
    ),
    random=batch,
    gradient="log_probs",
    mistakes=(
        Mistake(
            "ratio_is_a_constant",
            "the numbers are right, but the ratio is detached. Its gradient is the part that says "
            "which tokens should be drawn less often.",
            lambda lp, old, ref: (lp - old).exp().detach() * k3(lp, ref),
        ),
        Mistake(
            "no_ratio",
            "this is plain k3, for samples of the policy itself. These come from an older one: "
            "multiply by pi / pi_old.",
            lambda lp, old, ref: k3(lp, ref),
        ),
        Mistake(
            "ratio_upside_down",
            "your ratio is pi_old / pi. It is the policy in training over the one that sampled.",
            lambda lp, old, ref: (old - lp).exp() * k3(lp, ref),
        ),
        Mistake(
            "delta_turned",
            "your delta has the wrong sign: it is log pi_ref - log pi. With the other one this "
            "estimates a chi-square, not a KL.",
            lambda lp, old, ref: (lp - old).exp() * k3(ref, lp),
        ),
        Mistake(
            "k1_for_k3",
            "this is rho k1: right on average too, but it may be negative and scatters more.",
            lambda lp, old, ref: (lp - old).exp() * (lp - ref),
        ),
    ),
)
