"""The critic's loss, half the squared error, with the clip of the value."""

import torch

from course.exercises import Arguments, Case, Exercise
from course.mistakes import mistake
from rl.equations import losses as library


def value_loss(values, old_values, returns, clip_range):
    near_old = old_values + (values - old_values).clamp(-clip_range, clip_range)
    return torch.maximum((values - returns) ** 2, (near_old - returns) ** 2) / 2


@mistake
def without_half(values, old, returns, clip_range):
    """the half in front is missing."""
    return 2 * value_loss(values, old, returns, clip_range)


@mistake
def minimum(values, old, returns, clip_range):
    """you take the smaller square. The loss is pessimistic: the larger one."""
    near_old = old + (values - old).clamp(-clip_range, clip_range)
    return torch.minimum((values - returns) ** 2, (near_old - returns) ** 2) / 2


@mistake
def clipped_alone(values, old, returns, clip_range):
    """you use the clipped value alone. Then a value that has gone the wrong way gets no gradient
    and stays there."""
    near_old = old + (values - old).clamp(-clip_range, clip_range)
    return (near_old - returns) ** 2 / 2


@mistake
def not_clipped(values, old, returns, clip_range):
    """nothing is clipped: this is half the squared error."""
    return (values - returns) ** 2 / 2


@mistake
def as_a_ratio(values, old, returns, clip_range):
    """you clip the value like a ratio, to (1 - clip) V_old ... (1 + clip) V_old. A value is clipped
    by a difference: V_old - clip ... V_old + clip."""
    near_old = torch.maximum(torch.minimum(values, old * (1 + clip_range)), old * (1 - clip_range))
    return torch.maximum((values - returns) ** 2, (near_old - returns) ** 2) / 2


@mistake
def without_gradient(values, old, returns, clip_range):
    """the numbers are right, but no gradient reaches the values: the critic would not learn."""
    return value_loss(values, old, returns, clip_range).detach()


def ragged(generator: torch.Generator) -> Arguments:
    old = torch.randn(3, 5, generator=generator)
    return {
        "values": old + 0.4 * torch.randn(3, 5, generator=generator),
        "old_values": old,
        "returns": old + 0.5 * torch.randn(3, 5, generator=generator),
        "clip_range": 0.2,
    }


EXERCISE = Exercise(
    statement=(
        "From values, old_values and returns (N, T) compute half of the larger of (V - return)^2 and "
        "(V_old + clip(V - V_old, -clip_range, clip_range) - return)^2, (N, T)."
    ),
    solution=value_loss,
    library=library.value_loss,
    cases=(
        Case(
            "V = 1, 0, 0.55; old 0.5; returns 2, -1, 0; clip 0.2",
            {
                "values": torch.tensor([[1.0, 0.0, 0.55]]),
                "old_values": torch.full((1, 3), 0.5),
                "returns": torch.tensor([[2.0, -1.0, 0.0]]),
                "clip_range": 0.2,
            },
            [[0.845, 0.845, 0.15125]],
        ),
        Case(
            "an old value of 0, far from its return",
            {
                "values": torch.tensor([[0.1]]),
                "old_values": torch.tensor([[0.0]]),
                "returns": torch.tensor([[1.0]]),
                "clip_range": 0.2,
            },
            [[0.405]],
        ),
    ),
    random=ragged,
    gradient="values",
)
