"""A teacher's reward of a response: how much likelier it finds the text than the student does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course.exercises import Case, Exercise, Mistake, ragged_mask, random_log_probs
from rl.equations.losses import row_sums
from rl.equations.token_rewards import teacher_rewards


def teacher_reward(teacher_log_probs: Tensor, log_probs: Tensor, mask: Tensor) -> Tensor:
    return ((teacher_log_probs - log_probs) * mask).sum(1)


def by_the_library(teacher_log_probs: Tensor, log_probs: Tensor, mask: Tensor) -> Tensor:
    return row_sums(teacher_rewards(teacher_log_probs, log_probs, mask, reverse_kl=True), mask)


def ragged(generator: torch.Generator) -> Mapping[str, Any]:
    return {
        "teacher_log_probs": random_log_probs(generator, 4, 6),
        "log_probs": random_log_probs(generator, 4, 6),
        "mask": ragged_mask(generator, 4, 6),
    }


EXERCISE = Exercise(
    statement=(
        "Compute sum_t (log p(y_t) - log q(y_t)) of each response, (N,), over the tokens where mask "
        "is True. p is the teacher, q the student that sampled; log-probs are (N, T)."
    ),
    solution=teacher_reward,
    library=by_the_library,
    cases=(
        Case(
            "two tokens: one that both find as likely, one that the teacher finds half as likely",
            {
                "teacher_log_probs": torch.tensor([[0.5, 0.25, 0.9]]).log(),
                "log_probs": torch.tensor([[0.5, 0.5, 0.1]]).log(),
                "mask": torch.tensor([[True, True, False]]),
            },
            [-0.693147],
        ),
    ),
    random=ragged,
    mask="mask",
    mistakes=(
        Mistake(
            "log_p_alone",
            "this is the sum of log p alone. Every token costs something under it, so the best "
            "response is to say nothing: subtract log q.",
            lambda p, q, mask: (p * mask).sum(1),
        ),
        Mistake(
            "mean_per_token",
            "you take the mean per token. The sum is what estimates -KL(q || p) of responses.",
            lambda p, q, mask: ((p - q) * mask).sum(1) / mask.sum(1),
        ),
        Mistake(
            "wrong_way_round",
            "this is log q / p: it pays for text that the teacher does not like.",
            lambda p, q, mask: ((q - p) * mask).sum(1),
        ),
        Mistake(
            "padding_counted",
            "padding is counted: multiply by the mask before you add up.",
            lambda p, q, mask: (p - q).sum(1),
        ),
        Mistake(
            "probabilities",
            "you subtract probabilities. The reward is the difference of *log*-probabilities.",
            lambda p, q, mask: ((p.exp() - q.exp()) * mask).sum(1),
        ),
    ),
)
