"""CISPO's loss per token: REINFORCE with a clipped importance weight that has no gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from course.exercises import Case, Exercise, Mistake, random_log_probs
from rl.equations import losses as library


def cispo(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip_high: float) -> Tensor:
    ratio = (log_probs - old_log_probs).exp()
    weight = ratio.clamp(max=1 + clip_high).detach()
    return -weight * advantages * log_probs


def ratio_of(new: Tensor, old: Tensor) -> Tensor:
    return (new - old).exp()


def batch(generator: torch.Generator) -> Mapping[str, Any]:
    old = random_log_probs(generator, 3, 5)
    return {
        "log_probs": old + 0.9 * torch.randn(3, 5, generator=generator),
        "old_log_probs": old,
        "advantages": torch.randn(3, 1, generator=generator),
        "clip_high": 1.0,
    }


def case(about: str, advantage: float, wanted: list[float]) -> Case:
    """Probabilities 0.1, 0.2 and 0.8, all sampled at 0.2; the bound is 2."""
    arguments = {
        "log_probs": torch.tensor([[0.1, 0.2, 0.8]]).log(),
        "old_log_probs": torch.full((1, 3), 0.2).log(),
        "advantages": torch.tensor([[advantage]]),
        "clip_high": 1.0,
    }
    return Case(about, arguments, [wanted])


EXERCISE = Exercise(
    statement=(
        "Compute -w A log pi per token, (N, T), with the weight w = min(pi / pi_old, 1 + clip_high) "
        "held constant (no gradient through it), and advantages (N, 1)."
    ),
    solution=cispo,
    library=library.cispo,
    cases=(
        case("ratios 0.5, 1 and 4, bound 2, A = +1", 1.0, [1.151293, 1.609438, 0.446287]),
        case("the same with A = -1", -1.0, [-1.151293, -1.609438, -0.446287]),
    ),
    random=batch,
    gradient="log_probs",
    mistakes=(
        Mistake(
            "weight_with_gradient",
            "the numbers are right, but a gradient flows through the weight. Detach it: it says "
            "how much a token counts, and log pi alone is what is trained.",
            lambda new, old, A, high: -ratio_of(new, old).clamp(max=1 + high) * A * new,
        ),
        Mistake(
            "no_log_prob",
            "your loss is -w A, in which nothing is left to differentiate. CISPO multiplies the "
            "weight with log pi.",
            lambda new, old, A, high: -ratio_of(new, old).clamp(max=1 + high).detach() * A,
        ),
        Mistake(
            "clipped_below_too",
            "you clip the weight from below as well. CISPO holds it only from above.",
            lambda new, old, A, high: -ratio_of(new, old).clamp(0.8, 1 + high).detach() * A * new,
        ),
        Mistake(
            "not_clipped",
            "the weight is not clipped: a token that has moved far would pull as far.",
            lambda new, old, A, high: -ratio_of(new, old).detach() * A * new,
        ),
        Mistake(
            "bound_is_clip_high",
            "your bound is clip_high. It is relative to a ratio of 1: the weight ends at 1 + "
            "clip_high.",
            lambda new, old, A, high: -ratio_of(new, old).clamp(max=high).detach() * A * new,
        ),
        Mistake(
            "gain_not_loss",
            "this is what is maximised. A loss needs a minus in front.",
            lambda new, old, A, high: -cispo(new, old, A, high),
        ),
    ),
)
