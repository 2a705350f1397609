"""The reward that a policy implies: how far it has moved a response away from the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course.exercises import Case, Exercise, Mistake, ragged_mask, random_log_probs
from rl.equations.losses import row_sums

MASK = torch.tensor([[True, True, True], [True, False, False]])


def implicit_reward(log_probs: Tensor, ref_log_probs: Tensor, mask: Tensor, beta: float) -> Tensor:
    return beta * ((log_probs - ref_log_probs) * mask).sum(1)


def ragged(generator: torch.Generator) -> Mapping[str, Any]:
    mask = ragged_mask(generator, 4, 6)
    ref = random_log_probs(generator, 4, 6)
    log_probs = ref + torch.randn(4, 6, generator=generator)
    return {"log_probs": log_probs, "ref_log_probs": ref, "mask": mask, "beta": 0.2}


EXERCISE = Exercise(
    statement=(
        "Compute beta (log pi(y) - log pi_ref(y)) of each response, (N,), from log-probs of its "
        "tokens (N, T). The log-prob of a response is the sum over the tokens where mask is True."
    ),
    solution=implicit_reward,
    library=lambda log_probs, ref_log_probs, mask, beta: (
        beta * row_sums(log_probs - ref_log_probs, mask)
    ),
    cases=(
        Case(
            "two responses, of 3 tokens and of 1",
            {
                "log_probs": torch.tensor([[-1.0, -2.0, -3.0], [-4.0, -9.0, -9.0]]),
                "ref_log_probs": torch.tensor([[-2.0, -2.0, -4.0], [-3.0, -1.0, -1.0]]),
                "mask": MASK,
                "beta": 0.5,
            },
            [1.0, -0.5],
        ),
    ),
    random=ragged,
    mask="mask",
    mistakes=(
        Mistake(
            "mean_per_token",
            "you take the mean over a response's tokens. The log-probability of a response is "
            "their sum.",
            lambda lp, ref, mask, beta: beta * ((lp - ref) * mask).sum(1) / mask.sum(1),
        ),
        Mistake(
            "padding_counted",
            "padding is counted: multiply by the mask before you add up the tokens.",
            lambda lp, ref, mask, beta: beta * (lp - ref).sum(1),
        ),
        Mistake(
            "reference_forgotten",
            "you leave the reference out: this is beta log pi(y), which punishes every long "
            "response.",
            lambda lp, ref, mask, beta: beta * (lp * mask).sum(1),
        ),
        Mistake(
            "wrong_way_round",
            "the sign is flipped: a response that has become *more* likely than under the "
            "reference has a positive implicit reward.",
            lambda lp, ref, mask, beta: -implicit_reward(lp, ref, mask, beta),
        ),
        Mistake(
            "divided_by_beta",
            "you divide by beta. A policy near its reference (large beta) needed a large reward to "
            "move a little, so the reward is beta *times* the log-ratio.",
            lambda lp, ref, mask, beta: ((lp - ref) * mask).sum(1) / beta,
        ),
    ),
)
