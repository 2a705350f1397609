"""The controller that holds the KL at a target by turning beta."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course.exercises import Case, Exercise, Mistake
from rl.equations.kl import AdaptiveKL


def adaptive_kl(coef: float, kl: float, target: float, responses: int, horizon: int) -> float:
    error = min(max(kl / target - 1, -0.2), 0.2)
    return coef * (1 + responses / horizon * error)


def by_library(coef: float, kl: float, target: float, responses: int, horizon: int) -> Tensor:
    controller = AdaptiveKL(coef, target, horizon)
    controller.update(kl, responses)
    return torch.tensor(controller.coef)


def not_clipped(coef: float, kl: float, target: float, responses: int, horizon: int) -> float:
    return coef * (1 + responses / horizon * (kl / target - 1))


def wrong_way_round(coef: float, kl: float, target: float, responses: int, horizon: int) -> float:
    return 2 * coef - adaptive_kl(coef, kl, target, responses, horizon)


def added(coef: float, kl: float, target: float, responses: int, horizon: int) -> float:
    return coef + adaptive_kl(1.0, kl, target, responses, horizon) - 1


def no_horizon(coef: float, kl: float, target: float, responses: int, horizon: int) -> float:
    return coef * (1 + min(max(kl / target - 1, -0.2), 0.2))


def in_nats(coef: float, kl: float, target: float, responses: int, horizon: int) -> float:
    return coef * (1 + responses / horizon * min(max(kl - target, -0.2), 0.2))


def ragged(generator: torch.Generator) -> Mapping[str, Any]:
    share = 0.75 + 0.5 * float(torch.rand(1, generator=generator))
    return {
        "coef": 0.5 * float(torch.rand(1, generator=generator)) + 0.05,
        "kl": 6 * share,
        "target": 6.0,
        "responses": 64,
        "horizon": 320,
    }


def case(about: str, kl: float, wanted: float) -> Case:
    """Coefficient 0.2, target 6, 256 responses, horizon 1000."""
    arguments = {"coef": 0.2, "kl": kl, "target": 6.0, "responses": 256, "horizon": 1000}
    return Case(about, arguments, wanted)


EXERCISE = Exercise(
    statement=(
        "From coef, the measured kl, its target, the number of responses and the horizon, compute "
        "coef (1 + responses / horizon * error), error = kl / target - 1, held within -0.2 and 0.2."
    ),
    solution=adaptive_kl,
    library=by_library,
    cases=(
        case("a KL of 9, far above the target of 6", 9.0, 0.21024),
        case("a KL of 5.4, a little below", 5.4, 0.19488),
        case("a KL of 6, on target", 6.0, 0.2),
    ),
    random=ragged,
    tolerance=1e-5,
    mistakes=(
        Mistake(
            "not_clipped",
            "the error is not held within -0.2 and 0.2: one wild batch could turn beta a long way.",
            not_clipped,
        ),
        Mistake(
            "wrong_way_round",
            "your beta falls when the KL is too large. A larger KL needs a higher price.",
            wrong_way_round,
        ),
        Mistake(
            "added",
            "you add the change. It is a factor, so that beta stays positive and moves in "
            "proportion to itself.",
            added,
        ),
        Mistake(
            "no_horizon",
            "responses / horizon is missing: it sets how fast beta turns.",
            no_horizon,
        ),
        Mistake(
            "in_nats",
            "your error is kl - target, in nats. It is the relative error, kl / target - 1.",
            in_nats,
        ),
    ),
)
