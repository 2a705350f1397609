"""The reward model's loss: minus the log-probability that the chosen response wins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course.exercises import Case, Exercise, Mistake
from reward_model import loss as library


def bradley_terry_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    return -F.logsigmoid(chosen - rejected).mean()


def wrong_winner(chosen: Tensor, rejected: Tensor) -> Tensor:
    return -F.logsigmoid(rejected - chosen).mean()


def without_minus(chosen: Tensor, rejected: Tensor) -> Tensor:
    return F.logsigmoid(chosen - rejected).mean()


def added_up(chosen: Tensor, rejected: Tensor) -> Tensor:
    return -F.logsigmoid(chosen - rejected).sum()


def log_of_sigmoid(chosen: Tensor, rejected: Tensor) -> Tensor:
    return -torch.log(torch.sigmoid(chosen - rejected)).mean()


def without_logarithm(chosen: Tensor, rejected: Tensor) -> Tensor:
    return -torch.sigmoid(chosen - rejected).mean()


def of_the_mean_gap(chosen: Tensor, rejected: Tensor) -> Tensor:
    return -F.logsigmoid((chosen - rejected).mean())


def difference_of_sigmoids(chosen: Tensor, rejected: Tensor) -> Tensor:
    return -(F.logsigmoid(chosen) - F.logsigmoid(rejected)).mean()


def ragged(generator: torch.Generator) -> Mapping[str, Any]:
    pairs = int(torch.randint(2, 9, (1,), generator=generator))
    rejected = torch.randn(pairs, generator=generator)
    return {"chosen": rejected + torch.randn(pairs, generator=generator), "rejected": rejected}


EXERCISE = Exercise(
    statement=(
        "From the scores chosen and rejected (pairs,), compute the mean of -log sigmoid(chosen - "
        "rejected), a scalar. It must stay finite for a pair that is far on the wrong side."
    ),
    solution=bradley_terry_loss,
    library=library.bradley_terry_loss,
    cases=(
        Case(
            "two pairs: 1 against 0.5, and 0.2 against 0.8",
            {"chosen": torch.tensor([1.0, 0.2]), "rejected": torch.tensor([0.5, 0.8])},
            0.755782,
        ),
        Case(
            "equal scores",
            {"chosen": torch.tensor([3.0]), "rejected": torch.tensor([3.0])},
            0.693147,
        ),
        Case(
            "a pair that is 200 on the wrong side",
            {"chosen": torch.tensor([-100.0]), "rejected": torch.tensor([100.0])},
            200.0,
        ),
    ),
    random=ragged,
    gradient="chosen",
    mistakes=(
        Mistake(
            "wrong_winner",
            "your gap is rejected - chosen: the model would learn to prefer the worse answer.",
            wrong_winner,
        ),
        Mistake(
            "without_minus",
            "the minus is missing: this is the log-likelihood, and a loss is minus that.",
            without_minus,
        ),
        Mistake("added_up", "you add up the pairs: take their mean.", added_up),
        Mistake(
            "log_of_sigmoid",
            "right for ordinary gaps. Far on the wrong side the exponential overflows in float32, and "
            "the loss is inf: use F.logsigmoid.",
            log_of_sigmoid,
        ),
        Mistake(
            "without_logarithm",
            "the logarithm is missing: likelihoods multiply, so their logarithms are added.",
            without_logarithm,
        ),
        Mistake(
            "of_the_mean_gap",
            "you average the gaps first. Each pair has a loss of its own: average those.",
            of_the_mean_gap,
        ),
        Mistake(
            "difference_of_sigmoids",
            "the sigmoid is applied to each score. It is applied to the gap, once.",
            difference_of_sigmoids,
        ),
    ),
)
