"""The critic's loss, half the squared error, with the clip of the value."""

import torch

from conformance.kinds import KINDS
from course.exercises import Exercise, mistake, shared, some
from rl.equations import losses as library


def value_loss(values, old_values, returns, clip):
    near_old = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum((values - returns) ** 2, (near_old - returns) ** 2) / 2


def by_library(values, old_values, returns, clip):
    return library.value_loss(values, old_values, returns, clip)


@mistake
def without_half(values, old, returns, clip):
    """the half in front is missing."""
    return 2 * value_loss(values, old, returns, clip)


@mistake
def not_clipped(values, old, returns, clip):
    """nothing is clipped: this is half the squared error."""
    return (values - returns) ** 2 / 2


EXERCISE = Exercise(
    statement=(
        "From values, old_values and returns (N, T) compute half of the larger of (V - return)^2 and "
        "(V_old + clip(V - V_old, -clip_range, clip_range) - return)^2, (N, T)."
    ),
    solution=value_loss,
    library=by_library,
    cases=KINDS["value_loss"].cases,
    random=some("values old_values returns clip"),
    gradient="values",
    mistakes=shared("value_loss", "minimum clipped_alone as_a_ratio without_gradient"),
)
