"""How far a batch has moved the policy: KL(old, new) per response, from samples of the old policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course.exercises import Case, Exercise, Mistake, ragged_mask, random_log_probs
from rl.equations.kl import rho_minus_log
from rl.equations.losses import row_sums


def batch_kl(new_log_probs: Tensor, old_log_probs: Tensor, mask: Tensor) -> Tensor:
    log_rho = new_log_probs - old_log_probs
    return ((log_rho.exp() - 1 - log_rho) * mask).sum(1).mean()


def per_token(new: Tensor, old: Tensor) -> Tensor:
    return (new - old).exp() - 1 - (new - old)


def ragged(generator: torch.Generator) -> Mapping[str, Any]:
    old = random_log_probs(generator, 4, 6)
    return {
        "new_log_probs": old + 0.4 * torch.randn(4, 6, generator=generator),
        "old_log_probs": old,
        "mask": ragged_mask(generator, 4, 6),
    }


EXERCISE = Exercise(
    statement=(
        "Compute the mean over responses of the sum over tokens of rho - 1 - log rho, with rho = "
        "pi_new / pi_old, where mask is True: one number, in nats per response."
    ),
    solution=batch_kl,
    library=lambda new_log_probs, old_log_probs, mask: row_sums(
        rho_minus_log(new_log_probs, old_log_probs), mask
    ).mean(),
    cases=(
        Case(
            "two tokens and one token, each twice as likely as before",
            {
                "new_log_probs": torch.full((2, 2), 0.4).log(),
                "old_log_probs": torch.full((2, 2), 0.2).log(),
                "mask": torch.tensor([[True, True], [True, False]]),
            },
            0.460279,
        ),
    ),
    random=ragged,
    mistakes=(
        Mistake(
            "per_token",
            "this is the mean per *token*, smaller by the mean length. Add up the tokens of a "
            "response first.",
            lambda new, old, mask: (per_token(new, old) * mask).sum() / mask.sum(),
        ),
        Mistake(
            "padding_counted",
            "padding is counted: multiply by the mask before you add up.",
            lambda new, old, mask: per_token(new, old).sum(1).mean(),
        ),
        Mistake(
            "k1",
            "this is the mean of log rho. Under samples of the *old* policy it estimates -KL(old, "
            "new), and it may be negative.",
            lambda new, old, mask: ((new - old) * mask).sum(1).mean(),
        ),
        Mistake(
            "upside_down",
            "your ratio is old / new: that is k3, which fits samples of the new policy.",
            lambda new, old, mask: (per_token(old, new) * mask).sum(1).mean(),
        ),
        Mistake(
            "sum_not_mean",
            "you add up all responses. Take the mean over them.",
            lambda new, old, mask: (per_token(new, old) * mask).sum(),
        ),
    ),
)
