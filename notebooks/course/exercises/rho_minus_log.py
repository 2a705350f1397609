"""The penalty whose average over samples of the old policy is KL(old, new)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course.exercises import Case, Exercise, Mistake, random_log_probs
from rl.equations import kl as library


def rho_minus_log(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    log_rho = log_probs - old_log_probs
    return log_rho.exp() - 1 - log_rho


def batch(generator: torch.Generator) -> Mapping[str, Any]:
    old = random_log_probs(generator, 3, 4)
    return {
        "log_probs": old + 0.7 * torch.randn(3, 4, generator=generator),
        "old_log_probs": old,
    }


EXERCISE = Exercise(
    statement=(
        "Compute rho - 1 - log rho per token, (N, T), with rho = pi / pi_old, from log-probs (N, T)."
    ),
    solution=rho_minus_log,
    library=library.rho_minus_log,
    cases=(
        Case(
            "a token twice as likely, one half as likely, one that has not moved",
            {
                "log_probs": torch.tensor([[0.4, 0.2, 0.3]]).log(),
                "old_log_probs": torch.tensor([[0.2, 0.4, 0.3]]).log(),
            },
            [[0.306853, 0.193147, 0.0]],
        ),
    ),
    random=batch,
    gradient="log_probs",
    mistakes=(
        Mistake(
            "k3",
            "this is k3, 1/rho - 1 + log rho. It fits samples of the policy in training; under "
            "samples of the old one it estimates no KL.",
            lambda new, old: (old - new).exp() - 1 - (old - new),
        ),
        Mistake(
            "log_ratio_alone",
            "this is log rho alone, which may be negative: add rho - 1 and turn the sign of the "
            "logarithm.",
            lambda new, old: new - old,
        ),
        Mistake(
            "one_not_subtracted",
            "the 1 is missing: at rho = 1 the penalty must be 0.",
            lambda new, old: (new - old).exp() - (new - old),
        ),
        Mistake(
            "sign_of_the_logarithm",
            "you add the logarithm. It is subtracted: only then is rho = 1 the minimum.",
            lambda new, old: (new - old).exp() - 1 + (new - old),
        ),
        Mistake(
            "half_square",
            "this is log(rho)^2 / 2: the same near rho = 1, but not further out.",
            lambda new, old: (new - old) ** 2 / 2,
        ),
    ),
)
